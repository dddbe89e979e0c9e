"""Follows a study while it runs: snapshots of it, one after the other, until it ends.

A server that is away for a while ends nothing: workers go on meanwhile, and so does the watch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpo.errors import HpoError, Unavailable
from hpo.study import StudyState

if TYPE_CHECKING:
    from hpo.client import Client

POLL_SECONDS = 1.0
SHOWN_TRIALS = 20


class StillRunning(HpoError):
    """The time to watch is over and the study has not ended."""

    code = "still_running"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A study at one moment; `outage` says why it is not of now."""

    study: dict[str, Any]
    running: Sequence[dict[str, Any]] = ()
    outage: str = ""

    @property
    def has_ended(self) -> bool:
        return StudyState(self.study["state"]).is_ended

    @property
    def n_trials(self) -> int:
        return int(self.study["budget"]["n_trials"])

    @property
    def n_ended(self) -> int:
        counts = self.study["counts"]
        return sum(counts.get(state, 0) for state in ("COMPLETE", "PRUNED", "FAIL"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Savings:
    """What pruning spared, counted in steps of the objective."""

    n_pruned: int
    n_finished: int
    saved_steps: int
    all_steps: int

    @property
    def share(self) -> float:
        return self.saved_steps / self.all_steps if self.all_steps else 0.0


def follow(
    client: Client,
    name: str,
    *,
    timeout_seconds: float | None = None,
    look_around: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Snapshot]:
    """Yields snapshots, the last one of the ended study. Raises StillRunning at the timeout.

    `look_around` is called before each; what it raises ends the watch.
    """
    give_up_at = clock() + (float("inf") if timeout_seconds is None else timeout_seconds)
    snapshot = look(client, name)
    while True:
        yield snapshot
        if snapshot.has_ended:
            return
        if clock() >= give_up_at:
            raise StillRunning(
                f"study {name} still runs after {timeout_seconds:g} s, {snapshot.n_ended} of "
                f"{snapshot.n_trials} trials have ended; go on with: hpo study watch {name}"
            )
        pause(POLL_SECONDS)
        look_around()
        try:
            snapshot = look(client, name)
        except Unavailable as error:
            snapshot = Snapshot(study=snapshot.study, running=snapshot.running, outage=str(error))


def look(client: Client, name: str) -> Snapshot:
    """The study and its running trials now."""
    study = client.study(name)
    if StudyState(study["state"]).is_ended:
        return Snapshot(study=study)
    running = itertools.islice(client.trials(name, state="RUNNING"), SHOWN_TRIALS)
    return Snapshot(study=study, running=list(running))


def savings(client: Client, study: dict[str, Any]) -> Savings | None:
    """What pruning spared an ended study; None when nobody said how many steps a trial has."""
    max_steps = study["max_steps"]
    if max_steps is None:
        return None
    pruned = list(client.trials(study["name"], state="PRUNED"))
    done = sum(0 if trial["last_step"] is None else trial["last_step"] + 1 for trial in pruned)
    n_finished = len(pruned) + study["counts"]["COMPLETE"]
    return Savings(
        n_pruned=len(pruned),
        n_finished=n_finished,
        saved_steps=len(pruned) * max_steps - done,
        all_steps=n_finished * max_steps,
    )
