"""Studies and trials as small HTML tables: what a notebook shows of them. Everything is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from hpo.bars import n_ended

SHOWN_CHARACTERS = 200

Document = Mapping[str, Any]


class TrialDocument(dict[str, Any]):
    """A trial as the service tells it, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return trial_html(self)


def study_html(study: Document) -> str:
    """State, progress, best trial and its parameters."""
    n_trials = study["budget"]["n_trials"]
    counts = ", ".join(f"{n} {state}" for state, n in study["counts"].items() if n)
    done = f"{n_ended(study)} of {n_trials} trials ({counts or 'none'})"
    best = study["best"]
    rows: list[tuple[str, Any]] = [
        ("state", study["state"]),
        ("progress", done),
        ("objective", study["objective"] or "none, for ask and tell"),
        ("direction", ", ".join(study["directions"])),
    ]
    if why := study["reason"] or study["blocked"]:
        rows.append(("why", why))
    if best:
        rows.append(("best", f"{_short(best['value'])} (trial {best['number']})"))
    bar = f'<progress max="{int(n_trials)}" value="{n_ended(study)}"></progress>'
    return _table(f"Study {study['name']}", rows, (best or {}).get("params", {}), below=bar)


def trial_html(trial: Document) -> str:
    """State, values, steps, and parameters."""
    rows: list[tuple[str, Any]] = [("state", trial["state"])]
    if why := ": ".join(filter(None, [trial["reason"], trial["message"].partition("\n")[0]])):
        rows.append(("why", why))
    if trial["values"]:
        rows.append(("value", ", ".join(map(_short, trial["values"]))))
    if trial["last_step"] is not None:
        rows.append(("last report", f"{_short(trial['last_value'])} at step {trial['last_step']}"))
    rows.append(("attempt", trial["attempt"]))
    if trial["worker"]:
        rows.append(("worker", f"{trial['worker']} {trial['device'] or ''}"))
    return _table(f"Trial {trial['number']}", rows, trial["params"])


def _table(
    title: str, rows: Iterable[tuple[str, Any]], params: Document, *, below: str = ""
) -> str:
    cells = [*rows, *params.items()]
    lines = "".join(
        f"<tr><th>{_text(name)}</th><td>{_text(fact)}</td></tr>" for name, fact in cells
    )
    return f"<table><caption>{_text(title)}</caption>{lines}</table>{below}"


def _text(value: Any) -> str:
    words = _short(value)
    kept = words if len(words) <= SHOWN_CHARACTERS else f"{words[:SHOWN_CHARACTERS]}…"
    return html.escape(kept)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
