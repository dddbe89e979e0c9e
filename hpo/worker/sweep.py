"""Removes checkpoints that a lost attempt left on this node, once its trial has ended elsewhere,
and those of studies that were deleted.

A worker clears up behind the trials that it settles itself. What stays is of trials that went to
another node, or that the service ended while this one was away. A study that the service does not
know may be another service's: only what it calls deleted goes with its folder.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from hpo.client import ApiError
from hpo.errors import HpoError
from hpo.trial import TrialState
from hpo.worker import checkpoints

SWEEP_SECONDS = 1800.0

logger = logging.getLogger(__name__)


class Directory(Protocol):
    """The part of the client that is asked which trials have ended."""

    def studies(self, **query: Any) -> Iterator[dict[str, Any]]:
        """All studies. Raises HpoError."""

    def trials(self, name: str, *, state: str | None = None) -> Iterator[dict[str, Any]]:
        """All trials of a study. Raises HpoError."""

    def trial(self, name: str, number: int) -> Mapping[str, Any]:
        """One trial. Raises HpoError."""


class Sweeper:
    """Sweeps now and then, in a thread of its own, so that no heartbeat waits for a disk."""

    def __init__(
        self,
        root: Path,
        directory: Directory,
        *,
        is_held: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._directory, self._clock = root, directory, clock
        self._is_held = is_held  # whether a child of ours may still write for this study
        self._told: frozenset[str] = frozenset()
        self._done: frozenset[str] = frozenset()
        self._wake = threading.Event()
        self._is_stopped = False

    def tell(self, deleted: Iterable[str]) -> None:
        """The studies that were deleted lately, as each heartbeat says it."""
        self._told = frozenset(deleted)
        if self._told - self._done:
            self._wake.set()

    def stop(self) -> None:
        self._is_stopped = True
        self._wake.set()

    def serve(self) -> None:
        """Sweeps until it is stopped."""
        sweep_at = self._clock()
        while not self._is_stopped:
            if self._clock() >= sweep_at:
                self._try(lambda: sweep(self._root, self._directory))
                sweep_at = self._clock() + SWEEP_SECONDS
            self._try(self._remove_deleted)
            self._wake.wait(max(0.0, sweep_at - self._clock()))
            self._wake.clear()

    def _try(self, clear_up: Callable[[], None]) -> None:
        try:
            clear_up()
        except (HpoError, OSError) as error:
            logger.debug("old checkpoints stay for now: %s", error)
        except Exception:
            logger.exception("old checkpoints could not be removed")

    def _remove_deleted(self) -> None:
        """What a child still holds is left to the heartbeat after its end."""
        told = self._told
        for study_uuid in sorted(told - self._done):
            if self._is_held(study_uuid):
                continue
            if checkpoints.remove_study_folder(self._root, UUID(study_uuid)):
                logger.info("study %s was deleted: its checkpoints are removed", study_uuid)
            self._done |= {study_uuid}
        self._done &= told


def sweep(root: Path, directory: Directory) -> None:
    """Removes the folders of trials that have ended. Raises HpoError when it cannot ask.

    Folders are listed before the service is asked: whatever it calls ended had a folder then, so
    no trial that is claimed meanwhile is taken for an old one.
    """
    folders = checkpoints.trial_folders(root)
    if not folders:
        return
    names = {study["uuid"]: study["name"] for study in directory.studies(archived="any")}
    for study_uuid, numbers in folders.items():
        if study_uuid not in names:
            logger.debug("checkpoints of study %s stay: it is not known here", study_uuid)
            continue
        _sweep_study(root, directory, study_uuid, names[study_uuid], numbers)


def _sweep_study(
    root: Path, directory: Directory, study_uuid: str, name: str, numbers: set[int]
) -> None:
    # One request for all that run, as on a folder that nodes share most of them do.
    running = directory.trials(name, state=TrialState.RUNNING)
    for number in sorted(numbers - {trial["number"] for trial in running}):
        try:
            trial = directory.trial(name, number)
        except ApiError as error:
            logger.debug("checkpoints of %s/%d stay: %s", name, number, error)
            continue
        if TrialState(trial["state"]).is_finished:
            checkpoints.remove_trial_folder(root, study_uuid, number)
            logger.info("trial %s/%d has ended: its checkpoints are removed", name, number)
