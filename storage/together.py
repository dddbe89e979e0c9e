"""Short writes of many threads in one transaction, for a database that syncs its disk at each.

Whoever gets the turn first carries out all that wait for it, and commits once. What fails in
company is done again alone, so that nobody suffers from another's fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import sqlalchemy as sa

from hpo.errors import Unavailable

T = TypeVar("T")

Part = Callable[[sa.Connection], Any]
# Runs a transaction, again if need be; raises Unavailable when the database is away.
Run = Callable[[Callable[[sa.Connection], None]], None]


class _Wish:
    """A part that waits, and what became of it."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.is_done = False
        self.answer: Any = None
        self.error: Exception | None = None

    def carry_out(self, connection: sa.Connection) -> None:
        self.answer = self.part(connection)


class Together:
    """Collects parts while the turn is another's. A part may be tried more than once."""

    def __init__(self, turn: threading.Lock, run: Run) -> None:
        self._turn, self._run = turn, run
        self._waiting: list[_Wish] = []
        self._guard = threading.Lock()

    def do(self, part: Callable[[sa.Connection], T]) -> T:
        """What the part answers once its transaction is committed. Raises what it raises."""
        wish = _Wish(part)
        with self._guard:
            self._waiting.append(wish)
        with self._turn:
            if not wish.is_done:
                self._lead()
        if wish.error is not None:
            raise wish.error
        answer: T = wish.answer
        return answer

    def _lead(self) -> None:
        with self._guard:
            wishes, self._waiting = self._waiting, []
        try:
            self._carry_out(wishes)
        finally:
            for wish in wishes:
                wish.is_done = True

    def _carry_out(self, wishes: list[_Wish]) -> None:
        def transaction(connection: sa.Connection) -> None:
            for wish in wishes:
                wish.carry_out(connection)

        try:
            self._run(transaction)
        except Exception as error:
            if len(wishes) == 1 or isinstance(error, Unavailable):
                for wish in wishes:
                    wish.error = error
                return
            for wish in wishes:
                self._carry_out([wish])
