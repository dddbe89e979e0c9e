"""A child's output: read without end, kept within bounds, shipped in chunks.

The reader never waits for the API, or a child that prints would stand still while the API is
away. What does not fit is left out and counted in a note.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hpo.errors import HpoError, Unavailable
from hpo.worker.endings import MAX_MESSAGE, clean

CHUNK_CHARACTERS = 16_384  # at most 64 KiB in UTF-8
CHUNKS_PER_REQUEST = 4
MAX_PENDING_CHARACTERS = 1_048_576
FLUSH_SECONDS = 1.0
LINGER_SECONDS = 1.0
POLL_MILLISECONDS = 250
FINAL_SECONDS = 10.0
TAIL_LINES = 30
TAIL_CHARACTERS = 16_384
# Of Python's report of a crash: what hides the words that a library has said before it.
NOISE = re.compile(r'Extension modules: |  File "(<frozen runpy>|.*/hpo/worker/\w+\.py)"')
READ_BYTES = 65_536

Chunk = dict[str, Any]
Ship = Callable[[Sequence[Chunk]], object]


class Backlog:
    """Text that has not been shipped yet, and the last lines of all. Safe between threads."""

    def __init__(self, *, max_characters: int = MAX_PENDING_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._lock = threading.Lock()
        self._texts: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._tail = ""

    def add(self, text: str) -> None:
        """Keeps a text, or counts it when there is no room."""
        with self._lock:
            self._tail = (self._tail + text)[-TAIL_CHARACTERS:]
            if self._size + len(text) > self._max_characters:
                self._dropped += len(text)
                return
            self._note_dropped()
            self._put(text)

    def take(self, n_characters: int) -> str:
        """The oldest text, `n_characters` at most; empty when all has been taken."""
        with self._lock:
            if not self._texts:
                self._note_dropped()
            taken = ""
            while self._texts and len(taken) < n_characters:
                text = self._texts.popleft()
                room = n_characters - len(taken)
                taken += text[:room]
                if text[room:]:
                    self._texts.appendleft(text[room:])
            self._size -= len(taken)
            return taken

    @property
    def tail(self) -> str:
        """The last lines that were written."""
        with self._lock:
            lines = [line for line in self._tail.splitlines() if not NOISE.match(line)]
        return "\n".join(lines[-TAIL_LINES:])[-MAX_MESSAGE:]

    def _note_dropped(self) -> None:
        if self._dropped:
            self._put(f"\n[hpo: {self._dropped} characters of output left out here]\n")
            self._dropped = 0

    def _put(self, text: str) -> None:
        self._texts.append(text)
        self._size += len(text)


class OutputLog:
    """Reads a child's output from a pipe in one thread and ships it from another."""

    def __init__(self, fd: int, ship: Ship) -> None:
        self._fd, self._ship = fd, ship
        self._backlog = Backlog()
        self._unsent: list[Chunk] = []
        self._sequence = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._exited_at: float | None = None
        self._done = threading.Event()
        self._reader = threading.Thread(target=self._read, name="hpo-output", daemon=True)
        self._shipper = threading.Thread(target=self._ship_often, name="hpo-log", daemon=True)
        self._reader.start()
        self._shipper.start()

    @property
    def tail(self) -> str:
        """The last lines of the child."""
        return self._backlog.tail

    def add_line(self, text: str) -> None:
        """Adds a line of the worker's own, if the child's output has not ended the log yet."""
        self._backlog.add(clean(f"{text}\n"))

    def child_has_exited(self) -> None:
        """Reads what is left in the pipe; something else may hold it open, so not forever."""
        self._exited_at = time.monotonic()
        self._reader.join()

    def finish(self) -> None:
        """Ships the rest, for a while."""
        self._done.set()
        self._shipper.join()

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while piece := self._read_piece():
            self._backlog.add(clean(decoder.decode(piece)))
        self._backlog.add(clean(decoder.decode(b"", final=True)))
        os.close(self._fd)

    def _read_piece(self) -> bytes:
        """The next output; empty at its end, or a moment after the child's exit."""
        while not self._has_lingered():
            if self._poll.poll(POLL_MILLISECONDS):
                return os.read(self._fd, READ_BYTES)
        return b""

    def _has_lingered(self) -> bool:
        return self._exited_at is not None and time.monotonic() > self._exited_at + LINGER_SECONDS

    def _ship_often(self) -> None:
        while not self._done.wait(FLUSH_SECONDS):
            self._ship_some()
        give_up_at = time.monotonic() + FINAL_SECONDS
        while not self._ship_some() and time.monotonic() < give_up_at:
            pass

    def _ship_some(self) -> bool:
        """One request at most; True when nothing is left."""
        while len(self._unsent) < CHUNKS_PER_REQUEST:
            text = self._backlog.take(CHUNK_CHARACTERS)
            if not text:
                break
            self._unsent.append({"sequence": self._sequence, "text": text})
            self._sequence += 1
        if not self._unsent:
            return True
        try:
            self._ship(self._unsent)
        except Unavailable:
            time.sleep(FLUSH_SECONDS)
            return False
        except HpoError:
            pass  # the log is refused: it is not worth a trial
        self._unsent = []
        return False
