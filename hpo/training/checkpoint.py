"""Checkpoints: all that a trial needs to go on to the bit, as plain tensors and types.

A file is written aside, flushed to the disk and moved, so that a reader finds the old one or
the new one and never a part. It is read with `weights_only`: a checkpoint runs no code.
"""

from __future__ import annotations

import os
import pickle
import re
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from hpo.errors import HpoError

FORMAT = 3
KEPT = 2
RETRY_SECONDS = (0.5, 2.0)
# The step is the last one reported, and "start" before the first; batches are those after it.
FILE_NAME = re.compile(r"(?:step-(?P<step>\d{8})|start)(?:-batch-(?P<batch>\d{8}))?\.pt")
DAMAGED = (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError)


class CheckpointMismatch(HpoError):
    """A checkpoint belongs to another objective, precision, set of parameters or torch."""

    code = "checkpoint_mismatch"


class Checkpoints:
    """The checkpoints of one trial: written to one folder, read from it and earlier ones."""

    def __init__(
        self,
        folder: Path,
        earlier: tuple[Path, ...] = (),
        *,
        fingerprint: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder, self._earlier = folder, earlier
        self._fingerprint = dict(fingerprint)
        self._is_proven, self._sleep = False, sleep

    def write(self, step: int | None, state: Mapping[str, Any], *, batch: int = 0) -> Path:
        """Stores the state `batch` batches after `step` and keeps the newest two.

        `step` is the last one reported, None before the first. A write that fails is repeated
        after `RETRY_SECONDS`: file servers have their moments.
        """
        for seconds in RETRY_SECONDS:
            try:
                return self._write(step, state, batch)
            except OSError as error:
                say(f"the checkpoint could not be written ({error}); again in {seconds:g} s")
            self._sleep(seconds)
        return self._write(step, state, batch)

    def _write(self, step: int | None, state: Mapping[str, Any], batch: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _file_name(step, batch)
        document = {
            "format": FORMAT,
            "fingerprint": self._fingerprint,
            "step": step,
            "state": dict(state),
        }
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(document, file)
            flush_to_disk(file)
        self._prove_loadable(part)
        os.replace(part, path)
        _flush_folder(self.folder)
        for _, old in _files(self.folder)[KEPT:]:
            old.unlink()
        return path

    def load(self) -> tuple[int | None, dict[str, Any]] | None:
        """The newest sound checkpoint as (step, state), on the CPU; None when there is none.

        Raises CheckpointMismatch when it is not this trial's.
        """
        for path in self._newest_first():
            try:
                document = read_checkpoint(path)
            except DamagedCheckpoint as error:
                say(f"checkpoint {path} is damaged ({error}); looking for an older one")
                continue
            self._check(path, document)
            return document["step"], document["state"]
        return None

    def _newest_first(self) -> Iterator[Path]:
        for folder in (self.folder, *self._earlier):
            for _, path in _files(folder):
                yield path

    def _check(self, path: Path, document: Mapping[str, Any]) -> None:
        found, needed = document["fingerprint"], self._fingerprint
        differing = sorted(key for key in needed | found if needed.get(key) != found.get(key))
        if differing:
            facts = "; ".join(
                f"{key} is {found.get(key)}, this trial has {needed.get(key)}" for key in differing
            )
            raise CheckpointMismatch(f"{path} cannot be resumed: {facts}", differing=differing)

    def _prove_loadable(self, part: Path) -> None:
        if self._is_proven:
            return
        if strangers := get_unsafe_globals_in_checkpoint(part):
            raise TypeError(
                f"the trial's state holds {', '.join(strangers)}; a checkpoint takes tensors, "
                "numbers, strings, lists, tuples and dicts only"
            )
        self._is_proven = True


class DamagedCheckpoint(Exception):
    """The file is not a whole checkpoint."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The document of a checkpoint file. Raises DamagedCheckpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            # torch itself does not look at the checksums: a flipped bit would go unnoticed.
            if bad := archive.testzip():
                raise DamagedCheckpoint(f"wrong checksum of {bad}")
        document: Any = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DamagedCheckpoint(f"it is not of format {FORMAT}")
        return document
    except (*DAMAGED, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise DamagedCheckpoint(str(error).partition("\n")[0] or type(error).__name__) from error


def flush_to_disk(file: BinaryIO) -> None:
    """Returns when the file's content would survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def say(line: str) -> None:
    """Prints a line at once: what a trial prints is its log."""
    print(line, flush=True)  # noqa: T201  # the trial's log


def _file_name(step: int | None, batch: int) -> str:
    beyond = f"-batch-{batch:08d}" if batch else ""
    return ("start" if step is None else f"step-{step:08d}") + beyond + ".pt"


def _files(folder: Path) -> list[tuple[tuple[int, int], Path]]:
    if not folder.is_dir():
        return []
    found = [(FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    numbered = [((int(m["step"] or -1), int(m["batch"] or 0)), path) for m, path in found if m]
    return sorted(numbered, reverse=True)


def _flush_folder(folder: Path) -> None:
    # The new name itself is only safe once its folder is.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
