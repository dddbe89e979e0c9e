"""How a call of an objective ends, in the words of the wire.

Exceptions are told apart by the names of their classes: neither Optuna nor torch is imported here,
and the user's objective may have brought its own.
"""

from __future__ import annotations

import os
import re
import reprlib
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hpo.trial import Reason
from hpo.worker.host import SHARED_MEMORY

MAX_MESSAGE = 2_000
MAX_TRACEBACK = 20_000
OUR_FOLDER = os.path.dirname(__file__)
NO_NUMBERS = re.compile("bool|complex|[SU]")  # of dtypes; S and U are numpy's texts
LOADER_DIED = re.compile(
    r"DataLoader worker .*(killed by signal|exited unexpectedly)|unable to open shared memory"
)

LOADER_HINT = (
    f"a DataLoader worker died; often shared memory is full ({SHARED_MEMORY}; containers get more "
    "with --shm-size) or the host ran out of memory, and num_workers=0 needs neither"
)

End = Literal["value", "pruned", "released", "failed"]

REASONS_BY_CLASS = {
    "OutOfMemoryError": Reason.OUT_OF_MEMORY,
    "MemoryError": Reason.OUT_OF_MEMORY,
    "AcceleratorError": Reason.DEVICE_ERROR,
    "ConnectionError": Reason.LOST,  # of a database or a file server: the next attempt may have it
}
# In this order: CUDA says both "CUDA error" and "out of memory" when memory runs out outside of
# torch's allocator.
REASONS_BY_TEXT = {
    "CUDA out of memory": Reason.OUT_OF_MEMORY,
    "Cannot allocate memory": Reason.OUT_OF_MEMORY,  # errno 12: torch's CPU allocator, a fork
    "std::bad_alloc": Reason.OUT_OF_MEMORY,
    "CUDA error: out of memory": Reason.OUT_OF_MEMORY,
    "CUDA error": Reason.DEVICE_ERROR,
    "device-side assert": Reason.DEVICE_ERROR,
    "cudaError": Reason.DEVICE_ERROR,
    "CUBLAS_STATUS": Reason.DEVICE_ERROR,
    "cuDNN error": Reason.DEVICE_ERROR,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What an objective's call came to; `value` only for "value", the rest only for "failed".

    `values` holds them all when the objective returned several, `value` the first.
    """

    end: End
    value: float | None = None
    values: Sequence[float] | None = None
    reason: Reason | None = None
    message: str = ""
    traceback: str = ""


def ending_of(call: Callable[[], Any]) -> Ending:
    """Calls an objective and says how that ended; raises nothing."""
    try:
        return value_ending(call())
    except BaseException as error:
        return error_ending(error)


def value_ending(value: object) -> Ending:
    """A number, or None when the reports hold the value."""
    if value is None:
        return Ending(end="value")
    if isinstance(value, list | tuple) and len(value) > 1:
        numbers = [number for number in map(as_number, value) if number is not None]
        if len(numbers) == len(value):
            return Ending(end="value", value=numbers[0], values=numbers)
    number = as_number(value)
    if number is None:
        message = f"the objective returned {type(value).__name__}, not a number or None"
        return Ending(end="failed", reason=Reason.INVALID_RESULT, message=message)
    return Ending(end="value", value=number)


def as_number(value: object) -> float | None:
    """A float of a real number or of a 0-d array or tensor, else None."""
    if isinstance(value, bool | str | bytes | bytearray):
        return None
    if isinstance(value, complex) or NO_NUMBERS.search(str(getattr(value, "dtype", ""))):
        return None  # some would convert all the same, and lose their imaginary part
    try:
        return float(value)  # type: ignore[arg-type]  # 0-d arrays and tensors convert
    except Exception:  # integers beyond floats as well
        return None


def error_ending(error: BaseException) -> Ending:
    """How an exception ends an attempt."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if "TrialPruned" in names:
        return Ending(end="pruned")
    if "TrialReleased" in names:
        return Ending(end="released")
    return Ending(
        end="failed",
        reason=reason_of(error, names),
        message=clean(message_of(error))[:MAX_MESSAGE],
        traceback=clean(traceback_of(error))[-MAX_TRACEBACK:],
    )


def reason_of(error: BaseException, names: set[str]) -> Reason:
    """The reason an exception stands for; an unknown one is the objective's own fault."""
    if is_of_dead_loader(error):
        return Reason.OBJECTIVE_ERROR
    if "TrialFailed" in names:
        return _known_reason(getattr(error, "reason", None))
    if getattr(error, "code", None) == Reason.INVALID_RESULT:  # the service did not take the values
        return Reason.INVALID_RESULT
    for name, reason in REASONS_BY_CLASS.items():
        # A device-side assert and exhausted memory may come as the same class.
        if name in names:
            return reason
    return reason_of_text(message_of(error)) or Reason.OBJECTIVE_ERROR


def reason_of_text(text: str) -> Reason | None:
    """The reason that a library's own words stand for."""
    return next((reason for part, reason in REASONS_BY_TEXT.items() if part in text), None)


def message_of(error: BaseException) -> str:
    """What went wrong, in one line or a few."""
    if isinstance(error, SystemExit):
        return f"the objective called sys.exit({reprlib.repr(error.code)})"
    message = last_line_of(error)
    return f"{LOADER_HINT}: {message}" if is_of_dead_loader(error) else message


def last_line_of(error: BaseException) -> str:
    """The last line of Python's own report: it copes with exceptions that cannot be printed."""
    report = traceback.TracebackException(type(error), error, None)
    report.__notes__ = None  # they would stand in the last line
    return list(report.format_exception_only())[-1].strip()


def is_of_dead_loader(error: BaseException) -> bool:
    """Whether torch says that a process of a DataLoader has died, or has no answer from it.

    What it meets first depends on the moment: its handler for dead children, a closed connection,
    a file in shared memory that is gone.
    """
    if LOADER_DIED.search(last_line_of(error)):
        return True
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_fetching = any(
        code.co_name == "_try_get_data" and code.co_filename.endswith("dataloader.py")
        for code in frames
    )
    return is_fetching and isinstance(error, OSError | EOFError)


def traceback_of(error: BaseException) -> str:
    """Python's own report, from the user's first frame on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OUR_FOLDER):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def clean(text: str) -> str:
    """Text that UTF-8 and every database can hold."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _known_reason(reason: object) -> Reason:
    try:
        return Reason(str(reason))
    except ValueError:
        return Reason.OBJECTIVE_ERROR
