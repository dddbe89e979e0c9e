"""Parallel coordinates: a line for each completed trial, through its parameters to its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.errors import TooFewTrials
from hpo.plots.marks import WIDTH, Part, Row, Study, Trial, is_shown, metric_of, picture, short
from hpo.plots.picture import Picture

if TYPE_CHECKING:
    from hpo.client import Client

MAX_LINES = 500
AXIS_WIDTH = 130


def parallel(client: Client, study: Study) -> Picture:
    """Which parameters went with which values."""
    completed = client.trials(study["name"], state="COMPLETE")
    trials = [trial for trial in completed if is_shown(trial) and trial["params"]]
    if not trials:
        raise TooFewTrials(f"No trial with parameters of study {study['name']} has completed yet.")
    names = dict.fromkeys(name for trial in trials for name in trial["params"])
    rules = study["space"] or {}
    axes = [
        axis_of(name, [t["params"].get(name) for t in trials], log=_is_log(rules.get(name)))
        for name in names
    ]
    axes.append(axis_of(metric_of(study), [t["values"][0] for t in trials]))
    shown = thinned(trials, maximize=study["directions"][0] == "maximize")
    rows = [
        {"trial": trial["number"], "value": trial["values"][0], "axis": n, "at": at}
        for trial in shown
        for n, (axis, value) in enumerate(zip(axes, _values(trial, names), strict=True))
        if (at := axis.place(value)) is not None
    ]
    n_shown = f"{len(shown)} of {len(trials)}" if len(shown) < len(trials) else str(len(shown))
    spec = {
        "layer": [_lines(rows, study), _texts(axes)],
        "width": max(WIDTH, AXIS_WIDTH * len(axes)),
        "resolve": {"axis": {"x": "shared"}},
    }
    return picture(study, "parallel", f"{n_shown} completed trials", spec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One upright axis: where a value stands on it, from 0 to 1, and what is written beside it."""

    name: str
    place: Callable[[Any], float | None]
    labels: Mapping[float, str]


def axis_of(name: str, values: Sequence[Any], *, log: bool = False) -> Axis:
    """The axis for a parameter's values; trials that do not have it say None."""
    given = [value for value in values if value is not None]
    if not all(_is_number(value) for value in given):
        words = sorted({short(value) for value in given})
        places = {word: n / max(len(words) - 1, 1) for n, word in enumerate(words)}
        return Axis(
            name=name,
            place=lambda value: None if value is None else places[short(value)],
            labels={place: word for word, place in places.items()},
        )
    bend: Callable[[float], float] = math.log if log and min(given) > 0 else float
    low, high = bend(min(given)), bend(max(given))
    return Axis(
        name=name,
        place=lambda value: None if value is None else (bend(value) - low) / ((high - low) or 1),
        labels={0.0: short(min(given)), 1.0: short(max(given))},
    )


def thinned(trials: Sequence[Trial], *, maximize: bool) -> list[Trial]:
    """So many trials that lines can be told apart, evenly from the worst to the best."""
    ordered = sorted(trials, key=lambda trial: float(trial["values"][0]), reverse=not maximize)
    stride = max(len(ordered) / MAX_LINES, 1)
    n_shown = min(len(ordered), MAX_LINES)
    return [ordered[len(ordered) - 1 - int(n * stride)] for n in reversed(range(n_shown))]


def _lines(rows: Sequence[Row], study: Study) -> Part:
    best_is_dark = "descending" if study["directions"][0] == "maximize" else "ascending"
    color = {
        "field": "value",
        "type": "quantitative",
        "title": metric_of(study),
        "sort": best_is_dark,
        "scale": {"scheme": "viridis"},
    }
    return {
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1, "strokeOpacity": 0.6},
        "encoding": {**_channels(), "color": color, "detail": {"field": "trial"}},
    }


def _texts(axes: Sequence[Axis]) -> Part:
    """What stands beside the axes; names stand below them."""
    rows = [
        {"axis": n, "at": at, "text": text}
        for n, axis in enumerate(axes)
        for at, text in [(-0.09, axis.name), *axis.labels.items()]
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 10, "limit": AXIS_WIDTH},
        "encoding": {**_channels(), "text": {"field": "text"}},
    }


def _channels() -> Part:
    upright = {"title": None, "labels": False, "ticks": False, "grid": True, "domain": False}
    return {
        "x": {
            "field": "axis",
            "type": "ordinal",
            "scale": {"type": "point", "padding": 0.3},
            "axis": upright,
        },
        "y": {
            "field": "at",
            "type": "quantitative",
            "axis": None,
            "scale": {"domain": [-0.1, 1.02], "nice": False},
        },
    }


def _values(trial: Trial, names: Mapping[str, None]) -> list[Any]:
    return [*(trial["params"].get(name) for name in names), trial["values"][0]]


def _is_log(rule: Mapping[str, Any] | None) -> bool:
    return bool(rule and rule.get("log"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
