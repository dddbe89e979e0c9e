"""The limits of an attempt: when they are overrun, and what does not count."""

from __future__ import annotations

import queue
import threading

import pytest

from hpo.trial import Reason
from hpo.worker.limits import Limits, Watchdog
from hpo.worker.outcome import Outcome


class Clock:
    """Time that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("limits", "elapsed", "silent", "reason"),
    [
        (Limits(), 1e9, 1e9, None),
        (Limits(seconds_left=10), 9.9, 9.9, None),
        (Limits(seconds_left=10), 10, 0, Reason.TIMED_OUT),
        (Limits(seconds_left=0), 0, 0, Reason.TIMED_OUT),
        (Limits(no_progress_seconds=5), 4.9, 4.9, None),
        (Limits(no_progress_seconds=5), 100, 4.9, None),
        (Limits(no_progress_seconds=5), 100, 5, Reason.NO_PROGRESS),
        (Limits(seconds_left=10, no_progress_seconds=5), 10, 5, Reason.TIMED_OUT),
    ],
)
def test_a_limit_is_overrun_when_it_is_reached(
    limits: Limits, elapsed: float, silent: float, reason: Reason | None
) -> None:
    outcome = limits.overrun(elapsed, silent)
    assert (outcome and outcome.fields["reason"]) == reason


def test_the_next_look_is_when_the_first_limit_can_be_reached() -> None:
    limits = Limits(seconds_left=10, no_progress_seconds=5)
    assert limits.seconds_to_next(1, 1) == 4
    assert limits.seconds_to_next(8, 1) == 2
    assert Limits(seconds_left=10).seconds_to_next(1, 1) == 9
    assert Limits().seconds_to_next(1, 1) is None


def watched(limits: Limits, clock: Clock) -> tuple[Watchdog, queue.Queue[Outcome]]:
    overruns: queue.Queue[Outcome] = queue.Queue()
    watchdog = Watchdog(limits, overruns.put, clock=clock)
    watchdog.start()
    return watchdog, overruns


def test_time_in_which_the_service_is_awaited_is_no_silence() -> None:
    clock = Clock()
    watchdog, overruns = watched(Limits(no_progress_seconds=50), clock)
    clock.now += 20
    with watchdog.waiting_for_service():
        clock.now += 1000
    assert overruns.empty()
    clock.now += 20
    with watchdog.waiting_for_service():
        pass  # looks again: 40 s of its own
    assert overruns.empty()
    clock.now += 20
    with watchdog.waiting_for_service():
        message = overruns.get(timeout=10).fields["message"]
    assert message.startswith("no report for 60.0 s, where no_progress_seconds allows 50;")


def test_waits_may_overlap_and_an_end_too_many_is_none() -> None:
    clock = Clock()
    watchdog, overruns = watched(Limits(no_progress_seconds=50), clock)
    watchdog.end_wait()
    watchdog.begin_wait()  # a model compiles
    clock.now += 1000
    with watchdog.waiting_for_service():
        clock.now += 1000
    clock.now += 1000
    watchdog.end_wait()
    clock.now += 40
    watchdog.begin_wait()
    watchdog.end_wait()
    assert overruns.empty()
    clock.now += 10
    watchdog.begin_wait()  # looks again
    assert overruns.get(timeout=10).fields["message"].startswith("no report for 50.0 s")


def test_a_report_begins_the_count_anew() -> None:
    clock = Clock()
    watchdog, overruns = watched(Limits(no_progress_seconds=50), clock)
    for _ in range(10):
        clock.now += 40
        watchdog.note_report()
    assert overruns.empty()
    watchdog.stop()


def test_nothing_is_overrun_after_the_end() -> None:
    clock = Clock()
    watchdog, overruns = watched(Limits(seconds_left=1), clock)
    watchdog.stop()
    clock.now += 100
    watchdog.note_report()
    assert overruns.empty()


def test_no_limits_need_no_thread() -> None:
    before = threading.active_count()
    watched(Limits(), Clock())
    assert threading.active_count() == before
