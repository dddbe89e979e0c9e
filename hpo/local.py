"""A service of one's own for a notebook: `hpo up` as a process that ends with the client."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpo.errors import HpoError
from hpo.processes import Part, start_part

LOG_NAME = "up.log"
SHOWN_LINES = 15
GRACE_SECONDS = 30.0
PARTS_SECONDS = 20.0  # for the worker and the API to end, beside the grace of trials


class LocalServiceFailed(HpoError):
    """The service did not start."""

    code = "local_service_failed"


def start_service(data: Path, options: Mapping[str, Any]) -> tuple[str, Callable[[], None]]:
    """Starts `hpo up` and waits until it is; answers its address, and what ends it."""
    data.mkdir(parents=True, exist_ok=True)
    log = data / LOG_NAME
    start = log.stat().st_size if log.exists() else 0
    words = ["up", "--json", "--data", str(data), "--port", "0", *_words(options)]
    part = start_part("service", words, log=log, stdout=subprocess.PIPE)
    patience = float(options.get("grace_seconds", GRACE_SECONDS)) + PARTS_SECONDS

    def end() -> None:
        part.end(patience_seconds=patience, is_urgent=lambda: False)

    try:
        return _address(part, log, start), end
    except BaseException:
        end()
        raise


def _address(part: Part, log: Path, start: int) -> str:
    """What `hpo up --json` says when it is up. Raises LocalServiceFailed when it ends before."""
    assert part.process.stdout is not None
    with part.process.stdout as answers:
        line = answers.readline()  # it ends by itself when it cannot start
    if not line:
        raise LocalServiceFailed(
            f"the service did not start: {_why(_lines(log, start))}; see {log}"
        )
    return str(json.loads(line)["url"])


def _why(lines: list[str]) -> str:
    """The problem that a command with --json ends with, or its last words."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return str(json.loads(lines[-1])["detail"])
    return "\n".join(lines[-SHOWN_LINES:])


def _lines(log: Path, start: int) -> list[str]:
    """What was written since this start."""
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options of `hpo up` as it reads them: `settings` are its `--set`, True is a flag."""
    return [
        word
        for name, value in options.items()
        for text in _texts(value)
        for word in (
            f"--{'set' if name == 'settings' else name.replace('_', '-')}",
            *([] if value is True else [text]),
        )
    ]


def _texts(value: Any) -> Iterator[str]:
    if value is None or value is False:
        return
    if isinstance(value, Mapping):
        yield from (f"{name}={_plain(found)}" for name, found in value.items())
    elif isinstance(value, list | tuple):
        yield from map(str, value)
    else:
        yield str(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
