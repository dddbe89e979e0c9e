"""A service of one's own for a notebook: `hpo up` as a process that ends with the client."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpo.errors import HpoError
from hpo.processes import POLL_SECONDS, Part, start_part

LOG_NAME = "up.log"
SHOWN_LINES = 15
START_SECONDS = 200.0  # beyond what `hpo up` grants its own parts
GRACE_SECONDS = 30.0
PARTS_SECONDS = 20.0  # for the worker and the API to end, beside the grace of trials


class LocalServiceFailed(HpoError):
    """The service did not start."""

    code = "local_service_failed"


def start_service(data: Path, options: Mapping[str, Any]) -> tuple[str, Callable[[], None]]:
    """Starts `hpo up` and waits until it is; answers its address, and what ends it."""
    data.mkdir(parents=True, exist_ok=True)
    log, port = data / LOG_NAME, _free_port()
    start = log.stat().st_size if log.exists() else 0
    words = ["up", "--data", str(data), "--port", str(port), *_words(options)]
    part = start_part("service", words, log=log)
    patience = float(options.get("grace_seconds", GRACE_SECONDS)) + PARTS_SECONDS

    def end() -> None:
        part.end(patience_seconds=patience, is_urgent=lambda: False)

    try:
        _await_start(part, lambda: _lines(log, start), log)
    except BaseException:
        end()
        raise
    return f"http://127.0.0.1:{port}", end


def _await_start(part: Part, lines: Callable[[], list[str]], log: Path) -> None:
    give_up_at = time.monotonic() + START_SECONDS
    while not any("is up; Ctrl-C ends it." in line for line in lines()):
        if part.has_ended or time.monotonic() > give_up_at:
            said = "\n".join(lines()[-SHOWN_LINES:])
            raise LocalServiceFailed(f"the service did not start; {log} ends with:\n{said}")
        time.sleep(POLL_SECONDS)


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
