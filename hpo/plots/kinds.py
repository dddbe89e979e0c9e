"""The kinds of pictures: what each asks the service for, and how it looks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hpo.errors import InvalidField, TooFewTrials
from hpo.plots.marks import (
    BLUE,
    GREY,
    ORANGE,
    Part,
    Row,
    Study,
    Trial,
    axis,
    counted,
    is_shown,
    is_wide,
    metric_of,
    picture,
    short,
    states,
    tooltip,
    value_of,
    words_of,
)
from hpo.plots.parallel import parallel
from hpo.plots.picture import Picture, converter

if TYPE_CHECKING:
    from hpo.client import Client

MAX_CURVES = 100  # of each state: more lines hide each other
MAX_IMPROVEMENTS = 1000  # as many as the service tells


def plot(client: Client, name: str, kind: str = "history") -> Picture:
    """A picture of a study. Raises InvalidField for a kind that is none, or not for this study.

    Raises TooFewTrials, or ApiError with this code, while there is nothing to show.
    """
    if kind not in KINDS:
        raise InvalidField("kind", f"there is no picture {kind!r}; choose {', '.join(KINDS)}")
    converter()  # what is missing is told before the work
    return KINDS[kind](client, client.study(name))


def history(client: Client, study: Study) -> Picture:
    """Every trial's value, and the best so far."""
    name = study["name"]
    if len(study["directions"]) > 1:
        raise InvalidField("kind", f"study {name} has several directions; take pareto or parallel")
    ended = client.trials(name, state=["COMPLETE", "PRUNED"])
    rows = [
        {"trial": t["number"], "value": value_of(t), "state": t["state"], **_parameters(t)}
        for t in ended
        if is_shown(t)
    ]
    if not rows:
        raise TooFewTrials(f"No trial of study {name} has completed or been pruned yet.")
    steps = client.history(name, limit=MAX_IMPROVEMENTS)["improvements"]
    best = [{"trial": s["number"], "value": s["value"], "state": "best so far"} for s in steps]
    if best:
        best.append({**best[-1], "trial": max(row["trial"] for row in rows)})
    channels = {
        "x": counted("trial"),
        "y": axis("value", metric_of(study), log=is_wide(row["value"] for row in rows)),
        "color": states([*rows, *best]),
    }
    points = {
        "data": {"values": rows},
        "mark": {"type": "circle", "size": 30, "opacity": 1, "fillOpacity": 0.7},
        "encoding": {**channels, "tooltip": tooltip(rows)},
    }
    line = {
        "data": {"values": best},
        "mark": {"type": "line", "interpolate": "step-after"},
        "encoding": channels,
    }
    return picture(study, "history", f"{len(rows)} trials", {"layer": [points, line]})


def curves(client: Client, study: Study) -> Picture:
    """What trials reported, step by step."""
    trials = [trial for trial in _with_curves(client, study) if trial["curve"]]
    rows = [
        {"trial": t["number"], "state": t["state"], "step": p["step"], "value": p["value"]}
        for t in trials
        for p in t["curve"]
        if math.isfinite(p["value"])
    ]
    if not rows:
        raise TooFewTrials(f"No trial of study {study['name']} has reported a finite value yet.")
    spec = {
        "data": {"values": rows},
        "mark": {"type": "line", "strokeWidth": 1.2, "strokeOpacity": 0.7, "point": {"size": 16}},
        "encoding": {
            "x": counted("step"),
            "y": axis("value", metric_of(study), log=is_wide(row["value"] for row in rows)),
            "detail": {"field": "trial"},
            "color": states(rows),
            "tooltip": tooltip(rows),
        },
    }
    n_all = sum(study["counts"].get(state, 0) for state in ("RUNNING", "COMPLETE", "PRUNED"))
    more = f" of {n_all}: running, the best, and pruned last" if len(trials) < n_all else ""
    return picture(study, "curves", f"{len(trials)} trials{more}", spec)


def _with_curves(client: Client, study: Study) -> Iterator[Trial]:
    """Those that run, the best of the completed ones, and those that were pruned last."""
    downward = str(study["directions"][0] == "maximize").lower()
    for query in (
        {"state": "RUNNING"},
        {"state": "COMPLETE", "sort": "value", "descending": downward},
        {"state": "PRUNED", "descending": "true"},
    ):
        found = client.trials(study["name"], curves=True, limit=MAX_CURVES, **query)
        yield from itertools.islice(found, MAX_CURVES)


def importances(client: Client, study: Study) -> Picture:
    """How much each parameter matters."""
    found = client.importances(study["name"])
    rows = found["importances"]
    spec: Part = {
        "data": {"values": rows},
        "mark": {"type": "bar", "color": BLUE},
        "height": {"step": 28},
        "encoding": {
            "x": {"field": "importance", "type": "quantitative", "title": "importance"},
            "y": {"field": "parameter", "type": "nominal", "sort": None, "title": None},
            "tooltip": tooltip(rows),
        },
    }
    return picture(study, "importances", f"PED-ANOVA over {found['n_trials']} trials", spec)


def pareto(client: Client, study: Study) -> Picture:
    """The values of a study with several directions, and its front."""
    name, n_values = study["name"], len(study["directions"])
    if n_values < 2:
        raise InvalidField("kind", f"pareto needs several directions, study {name} has one")
    front = {trial["number"] for trial in client.pareto(name)["trials"]}
    rows = [
        _front_row(trial, trial["number"] in front)
        for trial in client.trials(name, state="COMPLETE")
        if is_shown(trial) and all(map(math.isfinite, trial["values"]))
    ]
    if not rows:
        raise TooFewTrials(f"No trial of study {name} has completed yet.")
    scale = {"domain": ["front", "other"], "range": [ORANGE, GREY]}
    spec: Part = {
        "data": {"values": rows},
        "mark": {"type": "circle", "size": 45, "opacity": 1, "fillOpacity": 0.8},
        "encoding": {
            "x": axis("first", metric_of(study, 0)),
            "y": axis("second", metric_of(study, 1)),
            "color": {"field": "front", "type": "nominal", "title": None, "scale": scale},
            "tooltip": tooltip(rows),
        },
    }
    more = f", by the first two of {n_values} values" if n_values > 2 else ""
    return picture(study, "pareto", f"{len(front)} of {len(rows)} trials{more}", spec)


def _front_row(trial: Trial, is_in_front: bool) -> Row:
    return {
        "trial": trial["number"],
        "first": trial["values"][0],
        "second": trial["values"][1],
        "values": ", ".join(map(short, trial["values"])),
        "front": "front" if is_in_front else "other",
        **_parameters(trial),
    }


def _parameters(trial: Trial) -> Row:
    return {"parameters": words_of(trial["params"])}


KINDS: dict[str, Callable[[Client, Study], Picture]] = {
    "history": history,
    "curves": curves,
    "importances": importances,
    "parallel": parallel,
    "pareto": pareto,
}
