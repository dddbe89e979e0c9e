"""Where attempts keep their checkpoints: `<root>/<study uuid>/<trial number>/attempt-<K>/`.

An attempt writes only to its own folder, so a child that outlived its lease cannot harm its
successor; it reads those of the attempts before it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from uuid import UUID

from hpo.worker.claim import Claim

PREFIX = "attempt-"


def trial_folder(root: Path, study_uuid: str, number: int) -> Path:
    """The folder of all attempts of a trial."""
    return root.resolve() / study_uuid / str(number)


def trial_folders(root: Path) -> dict[str, set[int]]:
    """Numbers of the trials that have a folder here, by the UUID of their study."""
    found: dict[str, set[int]] = {}
    for folder in root.glob("*/*/"):
        if folder.name.isdecimal():
            found.setdefault(folder.parent.name, set()).add(int(folder.name))
    return found


def make_attempt_folder(root: Path, claim: Claim) -> Path:
    """Creates the folder that this attempt may write to. Raises OSError."""
    folder = _folder_of(root, claim) / f"{PREFIX}{claim.attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def earlier_folders(root: Path, claim: Claim) -> list[Path]:
    """The folders of earlier attempts that this node can see, newest first."""
    parent = _folder_of(root, claim)
    candidates = (parent / f"{PREFIX}{attempt}" for attempt in range(claim.attempt - 1, 0, -1))
    return [folder for folder in candidates if folder.is_dir()]


def remove_trial_folder(root: Path, study_uuid: str, number: int) -> None:
    """Removes a settled trial's checkpoints, and the study's folder with its last trial."""
    folder = trial_folder(root, study_uuid, number)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # other trials are still there
        folder.parent.rmdir()


def remove_study_folder(root: Path, study_uuid: UUID) -> bool:
    """Removes all checkpoints of a study that was deleted; whether there were any."""
    folder = root.resolve() / str(study_uuid)
    if not folder.is_dir():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return True


def _folder_of(root: Path, claim: Claim) -> Path:
    return trial_folder(root, claim.study_uuid, claim.number)
