"""The model that an attempt leaves in its folder, and its way to the service.

A model never costs a trial: whatever goes wrong is said in the log, and the trial completes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hpo.client import ApiError
from hpo.errors import HpoError, Unavailable
from hpo.files import sha256_of
from hpo.worker.claim import Claim
from hpo.worker.outbox import Document, delays

MODEL_FILE = re.compile(r"model(?:\.step-(?P<step>\d+))?(?P<suffix>(?:\.[A-Za-z0-9_]{1,16}){1,2})")
UNFINISHED = (".part", ".tmp")
PATIENCE_SECONDS = 60.0  # for an API that is away just now
PIECE_BYTES = 1024 * 1024


class ModelTaker(Protocol):
    """The part of the client that models go through."""

    def offer_model(self, study: str, number: int, document: Mapping[str, Any]) -> Document:
        """Whether the service wants a model. Raises Unavailable, or ApiError."""

    def put_model(
        self, study: str, number: int, pieces: Iterator[bytes], *, size_bytes: int, token: str
    ) -> None:
        """Sends it. Raises Unavailable, or ApiError when it is refused."""


class Cancelled(HpoError):
    """The worker stops."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFile:
    """A model on this node; `step` is None when its name does not tell."""

    path: Path
    step: int | None
    suffix: str


def find_model(
    own: Path, earlier: Sequence[Path], *, resumed_from_step: int | None
) -> ModelFile | None:
    """The model of an attempt: its own, else that of an attempt before it whose steps stand.

    An attempt that began anew has put aside what earlier ones did, and one that went on after
    a step what they did beyond it.
    """
    found = _newest(own)
    if found is not None or resumed_from_step is None:
        return found
    for folder in earlier:
        found = _newest(folder)
        if found is not None:
            stands = found.step is None or found.step <= resumed_from_step
            return found if stands else None
    return None


def _newest(folder: Path) -> ModelFile | None:
    files = [path for path in folder.glob("model.*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        match = MODEL_FILE.fullmatch(path.name)
        if match and path.suffix not in UNFINISHED:
            step = match["step"]
            return ModelFile(
                path=path, step=None if step is None else int(step), suffix=match["suffix"]
            )
    return None


class Shipment:
    """Takes the model of one attempt to the service, if the service wants it."""

    def __init__(self, claim: Claim, taker: ModelTaker, note: Callable[[str], None]) -> None:
        self._claim, self._taker, self._note = claim, taker, note
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Gives the model up, so that the trial can complete before the worker is gone."""
        self._cancelled.set()

    def send(self, find: Callable[[], ModelFile | None], value: float | None) -> None:
        """Sends the model that is found, of a trial with this value. Raises nothing."""
        if self._claim.keep_models == 0:
            return
        try:
            model = find()
            if model is not None:
                self._send(model, value)
        except (HpoError, OSError) as error:
            self._note(f"the trial completes without its model: {error}")
        except Exception as error:
            self._note(f"the trial completes without its model: {type(error).__name__}: {error}")

    def _send(self, model: ModelFile, value: float | None) -> None:
        claim, size_bytes = self._claim, model.path.stat().st_size
        offer = {
            "token": claim.token,
            "value": value,
            "step": model.step,
            "sha256": sha256_of(model.path),
            "size_bytes": size_bytes,
            "suffix": model.suffix,
        }

        def once() -> str | None:
            answer = self._taker.offer_model(claim.study, claim.number, offer)
            if not answer["wanted"]:
                return str(answer["reason"])
            pieces = self._pieces(model.path)
            self._taker.put_model(
                claim.study, claim.number, pieces, size_bytes=size_bytes, token=claim.token
            )
            return None

        refusal = self._patiently(once)
        self._note(
            f"its model is stored, {size_bytes} bytes"
            if refusal is None
            else f"its model is not stored: {refusal}"
        )

    def _patiently(self, once: Callable[[], str | None]) -> str | None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        for delay in delays():
            try:
                return once()
            except Unavailable:
                if time.monotonic() + delay > give_up_at:
                    raise
            except ApiError as error:
                raise HpoError(f"the service refused it: {error}") from error
            if self._cancelled.wait(delay):
                raise Cancelled()
        raise AssertionError("the delays never end")

    def _pieces(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                if self._cancelled.is_set():
                    raise Cancelled()
                yield piece
