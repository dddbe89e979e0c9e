"""The wire between an attempt and its child: JSON lines over a socket pair, in both directions.

    to the child     attempt | describe, then choice, decision, later, refused
    from the child   start, suggest, report, user_attr, constraint, then result | described

Plain JSON, so that a child may run in another Python than its supervisor; never a pickle.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from hpo.numbers import strict

Message = dict[str, Any]


class Wire:
    """One end of the wire. Any thread may send; one thread reads."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines = end.makefile("rb")
        self._sending = threading.Lock()

    def send(self, kind: str, /, **fields: Any) -> None:
        """Sends one message. Raises OSError when the other end is closed."""
        line = json.dumps(strict({"type": kind, **fields}), allow_nan=False).encode() + b"\n"
        with self._sending:
            self._end.sendall(line)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the other end closes. Raises ValueError when it speaks no JSON."""
        while (message := self.receive()) is not None:
            yield message

    def receive(self) -> Message | None:
        """The next message; None when the other end is closed or broke off within a line."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("a message must be a JSON object")
        return message

    def end_input(self) -> None:
        """Lets the reader see the end after what has arrived, though the other end may be open.

        A child that is gone may have left its end to a process of its own making.
        """
        try:
            self._end.shutdown(socket.SHUT_RD)
        except OSError:
            return  # closed already

    def close(self) -> None:
        """Closes this end."""
        self._lines.close()
        self._end.close()
