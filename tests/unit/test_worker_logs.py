"""A child's output is read to its end and kept within bounds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hpo.client import ApiError
from hpo.errors import Unavailable
from hpo.worker.logs import CHUNK_CHARACTERS, TAIL_LINES, Backlog, OutputLog


class Shelf:
    """Takes chunks; fails first as often as it is told."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.chunks: list[dict[str, Any]] = []
        self.shipped = threading.Event()

    def __call__(self, chunks: Sequence[dict[str, Any]]) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.chunks += [dict(chunk) for chunk in chunks]
        self.shipped.set()

    @property
    def text(self) -> str:
        return "".join(chunk["text"] for chunk in self.chunks)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reader and writer; the log closes the reader, the test the writer."""
    return os.pipe()


def ended(log: OutputLog, writer: int) -> OutputLog:
    os.close(writer)
    log.child_has_exited()
    log.finish()
    return log


def test_output_arrives_whole_and_in_order(pipe: tuple[int, int]) -> None:
    shelf = Shelf()
    log = OutputLog(pipe[0], shelf)
    text = "".join(f"line {number}\n" for number in range(5_000))
    os.write(pipe[1], text.encode())
    ended(log, pipe[1])
    assert shelf.text == text
    assert [chunk["sequence"] for chunk in shelf.chunks] == list(range(len(shelf.chunks)))
    assert max(len(chunk["text"]) for chunk in shelf.chunks) == CHUNK_CHARACTERS
    assert log.tail.splitlines() == text.splitlines()[-TAIL_LINES:]


def test_output_is_shipped_while_the_child_lives(pipe: tuple[int, int]) -> None:
    shelf = Shelf()
    log = OutputLog(pipe[0], shelf)
    os.write(pipe[1], b"early")
    assert shelf.shipped.wait(10)
    ended(log, pipe[1])
    assert shelf.text == "early"


def test_characters_that_are_cut_by_a_read_stay_whole(pipe: tuple[int, int]) -> None:
    shelf = Shelf()
    log = OutputLog(pipe[0], shelf)
    for byte in "ä€\n".encode():
        os.write(pipe[1], bytes([byte]))
    os.write(pipe[1], b"\xff\x00")
    ended(log, pipe[1])
    assert shelf.text == "ä€\n\ufffd\ufffd"


def test_a_chunk_is_sent_again_when_the_api_was_away(pipe: tuple[int, int]) -> None:
    shelf = Shelf(Unavailable())
    log = OutputLog(pipe[0], shelf)
    os.write(pipe[1], b"once")
    ended(log, pipe[1])
    assert shelf.chunks == [{"sequence": 0, "text": "once"}]


def test_a_refused_log_is_dropped(pipe: tuple[int, int]) -> None:
    shelf = Shelf(ApiError(409, {"code": "lease_lost"}))
    log = OutputLog(pipe[0], shelf)
    os.write(pipe[1], b"lost")
    ended(log, pipe[1])
    assert shelf.chunks == []


def test_a_pipe_that_is_held_open_is_left_after_a_moment(pipe: tuple[int, int]) -> None:
    shelf = Shelf()
    log = OutputLog(pipe[0], shelf)
    os.write(pipe[1], b"last words")
    log.child_has_exited()
    log.finish()
    os.close(pipe[1])
    assert shelf.text == "last words"


def test_the_last_lines_leave_out_what_python_says_of_us() -> None:
    backlog = Backlog()
    backlog.add("the last words\nFatal Python error: Aborted\n")
    backlog.add('  File "/code/mine.py", line 1 in mine\n')
    backlog.add('  File "/lib/hpo/worker/child.py", line 2 in serve\n')
    backlog.add(f"\nExtension modules: {', '.join(['a.module'] * 500)} (total: 500)\n")
    assert backlog.tail.splitlines() == [
        "the last words",
        "Fatal Python error: Aborted",
        '  File "/code/mine.py", line 1 in mine',
    ]


def test_a_full_backlog_counts_what_it_leaves_out() -> None:
    backlog = Backlog(max_characters=10)
    for text in ("12345678", "abcdefgh", "XYZ"):
        backlog.add(text)
    assert backlog.take(4) == "1234"
    assert backlog.take(100) == "5678"
    assert "11 characters of output left out" in backlog.take(1_000)
    assert backlog.take(1) == ""
    backlog.add("12")
    assert backlog.take(9) == "12"
    assert backlog.tail == "12345678abcdefghXYZ12"
