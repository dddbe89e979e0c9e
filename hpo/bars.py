"""A bar for a study that is waited for in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

ENDED = ("COMPLETE", "PRUNED", "FAIL")


def n_ended(study: Mapping[str, Any]) -> int:
    """How many trials of a study have ended, in whatever way."""
    return sum(study["counts"].get(state, 0) for state in ENDED)


@contextmanager
def study_bar(study: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Shows the trials that have ended, the best value, and what a study waits for."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    # Names and reasons may be long, and a narrow terminal must not lose the count for them.
    count = Column(no_wrap=True, min_width=2 * len(str(study["budget"]["n_trials"])) + 1)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=count),
    )
    with Progress(*columns, TextColumn("{task.fields[words]}")) as bar:
        line = bar.add_task(study["name"], total=study["budget"]["n_trials"], words="")

        def show(study: Mapping[str, Any]) -> None:
            total = study["budget"]["n_trials"]
            bar.update(line, completed=n_ended(study), total=total, words=_words(study))

        show(study)
        yield show


def _words(study: Mapping[str, Any]) -> str:
    best = f"best {study['best']['value']:.6g}" if study["best"] else ""
    state = "" if study["state"] == "running" else study["state"]
    why = "" if state == "completed" else study["reason"] or study["blocked"]
    return ", ".join(word for word in (best, state, why) if word)
