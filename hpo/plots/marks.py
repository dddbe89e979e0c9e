"""What all pictures have in common: frame, axes, colours, and words of a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpo.plots.picture import Picture

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH, HEIGHT = 640, 380
GREY, BLUE, ORANGE, GREEN = "#a3a3a3", "#3b76af", "#d9631e", "#3a923a"
COLORS = {"COMPLETE": BLUE, "PRUNED": GREY, "RUNNING": GREEN, "best so far": ORANGE}
WIDE = 1000.0  # the largest value by the smallest, from which on the axis is logarithmic

Row = dict[str, Any]
Part = dict[str, Any]
Study = Mapping[str, Any]
Trial = Mapping[str, Any]


def picture(study: Study, kind: str, subtitle: str, spec: Part) -> Picture:
    """The frame around a picture, and what it is called."""
    title = f"{study['name']}: {kind}"
    return Picture(
        title,
        {
            "$schema": SCHEMA,
            "title": {"text": title, "subtitle": subtitle, "anchor": "start"},
            "width": WIDTH,
            "height": HEIGHT,
            "background": "white",
            **spec,
        },
    )


def axis(field: str, title: str, *, log: bool = False) -> Part:
    """A channel for numbers; its scale holds the data and no more."""
    scale = {"type": "log"} if log else {"zero": False}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def counted(field: str) -> Part:
    """A channel for whole numbers, called as its field."""
    return {**axis(field, field), "axis": {"tickMinStep": 1, "format": "d"}}


def states(rows: Iterable[Row]) -> Part:
    """A channel that colours by state; the legend has those that occur."""
    found = {row["state"] for row in rows}
    domain = [state for state in COLORS if state in found]
    scale = {"domain": domain, "range": [COLORS[state] for state in domain]}
    return {"field": "state", "type": "nominal", "title": None, "scale": scale}


def tooltip(rows: Sequence[Row]) -> list[Part]:
    """What a page tells of the point under the mouse: the fields of its row."""
    return [{"field": field, "type": "nominal"} for field in rows[0]]


def is_wide(values: Iterable[float]) -> bool:
    """Whether only a logarithmic axis shows all of these."""
    found = list(values)
    return min(found) > 0 and max(found) / min(found) > WIDE


def metric_of(study: Study, index: int = 0) -> str:
    """What one of a study's values is called, and which way it is to go."""
    several = len(study["directions"]) > 1
    names = study["metrics"] or [study["metric"]]
    name = names[index] if index < len(names) else None
    return f"{name or (f'value {index}' if several else 'value')} ({study['directions'][index]})"


def value_of(trial: Trial) -> float:
    """A trial's first value; of a pruned one the last that it reported."""
    found = trial["values"][0] if trial["values"] else trial["last_value"]
    return math.nan if found is None else float(found)


def is_shown(trial: Trial) -> bool:
    """Whether a trial has a finite value and nobody has excluded it."""
    return trial["exclusion"] is None and math.isfinite(value_of(trial))


def words_of(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{name} {short(value)}" for name, value in params.items())


def short(value: Any) -> str:
    """A number with six digits, anything else as it is."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
