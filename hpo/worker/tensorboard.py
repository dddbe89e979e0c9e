"""What trials report, as TensorBoard reads it: one run for each trial, in a folder of the node.

TensorBoard's own package writes the records; it needs neither torch nor TensorFlow for that. A
thread of its own writes them, so that a folder that hangs or is full costs curves and no trial.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hpo.errors import HpoError
from hpo.numbers import decode_number
from hpo.study import Direction, ValueRule
from hpo.worker.claim import Claim

MAX_WAITING = 10_000  # records that a folder may be behind
CLOSE_SECONDS = 2.0
FINAL_TAG = "final_value"

logger = logging.getLogger(__name__)


class TensorBoardMissing(HpoError):
    """--tensorboard needs TensorBoard's package: pip install 'hpo-service[tensorboard]'"""

    code = "missing_extra"


def require_tensorboard(folder: Path | None) -> None:
    """Raises TensorBoardMissing when something is to be written and nothing can write it."""
    if folder is not None and importlib.util.find_spec("tensorboard") is None:
        raise TensorBoardMissing()


def run_folder(root: Path, claim: Claim) -> Path:
    """Where the curves of a trial lie, over all its attempts."""
    return root / claim.study / f"trial-{claim.number:05d}"


class Board:
    """Writes one attempt of a trial; without a folder it does nothing. It never raises."""

    def __init__(self, claim: Claim, root: Path | None) -> None:
        self._claim, self._root = claim, root
        self._pending: queue.Queue[Callable[[Records], None] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._reported: dict[int, float] = {}
        self._is_whole = True

    def begin(self, resumed_from_step: int | None) -> None:
        """The attempt begins; what an earlier one has written beyond this step does not count."""
        if self._root is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._write, name="hpo-tensorboard", daemon=True)
        self._thread.start()
        self._is_whole = resumed_from_step is None
        first = 0 if resumed_from_step is None else resumed_from_step + 1
        self._put(lambda records: records.begin(first, self._claim.params))

    def report(self, report: Mapping[str, Any]) -> None:
        """A measurement: its value and its metrics."""
        step, values = report["step"], {"value": report["value"], **report.get("metrics", {})}
        self._reported[step] = decode_number(report["value"])
        self._put(lambda records: records.scalars(step, values))

    def end(self, outcome: Mapping[str, Any] | None) -> None:
        """The attempt is over, with this outcome's members, or without one."""
        final = None if outcome is None else self._final(outcome.get("value"))
        if final is not None:
            step = max(self._reported, default=0)
            self._put(lambda records: records.scalars(step, {FINAL_TAG: final}))
        self._put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _final(self, returned: Any) -> Any:
        """The trial's value as far as it is known here: not when the best may be an earlier one."""
        if returned is not None or not self._reported:
            return returned
        if self._claim.value_rule == ValueRule.LAST:
            return self._reported[max(self._reported)]
        best = max if self._claim.direction == Direction.MAXIMIZE else min
        finite = filter(math.isfinite, self._reported.values())
        return best(finite, default=None) if self._is_whole else None

    def _put(self, record: Callable[[Records], None] | None) -> None:
        if self._thread is not None:
            try:
                self._pending.put_nowait(record)
            except queue.Full:
                logger.debug("%s: a curve's record is left out", self._claim.label)

    def _write(self) -> None:
        assert self._root is not None
        folder = run_folder(self._root, self._claim)
        try:
            with Records(folder, suffix=f"attempt-{self._claim.attempt}") as records:
                while (write := self._pending.get()) is not None:
                    write(records)
        except Exception as error:  # whatever it is, the trial goes on
            logger.warning(
                "%s: no curves for TensorBoard in %s (%s); the trial goes on without",
                self._claim.label,
                folder,
                error,
            )


class Records:
    """A file of TensorBoard's events."""

    def __init__(self, folder: Path, *, suffix: str) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file: BinaryIO = (folder / f"{name}.{suffix}").open("ab")
        self._writer = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self, first_step: int, params: Mapping[str, Any]) -> None:
        """Says from which step the curves go on, and under which parameters."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))
        plain = {name: _plain(value) for name, value in params.items()}
        self._add(summary=hparams_pb(plain))

    def scalars(self, step: int, values: Mapping[str, Any]) -> None:
        """Values by name at a step."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = [
            Summary.Value(tag=name, simple_value=decode_number(value))
            for name, value in values.items()
        ]
        self._add(step=step, summary=Summary(value=found))

    def _add(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)
