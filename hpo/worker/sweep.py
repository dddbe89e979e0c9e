"""Removes checkpoints that a lost attempt left on this node, once its trial has ended elsewhere.

A worker clears up behind the trials that it settles itself. What stays is of trials that went to
another node, or that the service ended while this one was away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from hpo.client import ApiError
from hpo.trial import TrialState
from hpo.worker import checkpoints

logger = logging.getLogger(__name__)


class Directory(Protocol):
    """The part of the client that is asked which trials have ended."""

    def studies(self, **query: Any) -> Iterator[dict[str, Any]]:
        """All studies. Raises HpoError."""

    def trials(self, name: str, *, state: str | None = None) -> Iterator[dict[str, Any]]:
        """All trials of a study. Raises HpoError."""

    def trial(self, name: str, number: int) -> Mapping[str, Any]:
        """One trial. Raises HpoError."""


def sweep(root: Path, directory: Directory) -> None:
    """Removes the folders of trials that have ended. Raises HpoError when it cannot ask.

    Folders are listed before the service is asked: whatever it calls ended had a folder then, so
    no trial that is claimed meanwhile is taken for an old one.
    """
    folders = checkpoints.trial_folders(root)
    if not folders:
        return
    names = {study["uuid"]: study["name"] for study in directory.studies()}
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
