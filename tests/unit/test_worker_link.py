"""The child's link: waits a moment for a verdict, hears late ones, notices the end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpo.objective import Trial
from hpo.space import IntRange
from hpo.trial import Measurement, Verdict
from hpo.worker.link import WireLink
from hpo.worker.wire import Wire

AT_ONCE = 0.01


class Pair:
    """A link and the supervisor's end of its wire."""

    def __init__(self, verdict_wait_seconds: float) -> None:
        near, far = socket.socketpair()
        self.supervisor = Wire(far)
        self.child = Wire(near)
        self.closed = threading.Event()
        self.link = WireLink(
            self.child, on_close=self.closed.set, verdict_wait_seconds=verdict_wait_seconds
        )
        self.link.listen()

    def close(self) -> None:
        self.supervisor.close()
        assert self.closed.wait(10)
        self.child.close()

    def answer_in_turn(self, *answers: dict[str, Any]) -> None:
        """Answers one message each, from a thread."""

        def answer() -> None:
            for fields in answers:
                self.supervisor.receive()
                self.supervisor.send(fields.pop("type"), **fields)

        threading.Thread(target=answer).start()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair(30.0)
    yield pair
    pair.close()


@pytest.fixture
def hasty() -> Iterator[Pair]:
    pair = Pair(AT_ONCE)
    yield pair
    pair.close()


def trial_of(pair: Pair) -> Trial:
    return Trial(pair.link, study="digits", number=0, checkpoint_dir=Path())


def test_a_verdict_answers_its_report(pair: Pair) -> None:
    pair.answer_in_turn(
        {"type": "decision", "step": 4, "verdict": "prune", "evidence": {"median": 2.0}}
    )
    decision = pair.link.report(Measurement(step=4, value=float("nan")))
    assert decision is not None
    assert decision.verdict is Verdict.PRUNE
    assert decision.evidence == {"median": 2.0}


def test_a_report_without_verdict_goes_on_and_hears_it_later(hasty: Pair) -> None:
    trial = trial_of(hasty)
    trial.report(1.0, 0)
    assert not trial.should_prune()
    hasty.supervisor.send("decision", step=0, verdict="prune")
    hasty.answer_in_turn({"type": "later", "step": 1}, {"type": "later", "step": 1})
    trial.report(1.0, 1)  # answered after the late verdict
    trial.report(1.0, 2)
    assert trial.should_prune()


def test_a_report_does_not_wait_when_it_is_told_so(pair: Pair) -> None:
    pair.answer_in_turn({"type": "later", "step": 0})
    assert pair.link.report(Measurement(step=0, value=1.0)) is None


def test_a_value_is_asked_for(pair: Pair) -> None:
    pair.answer_in_turn({"type": "choice", "value": 3})
    assert pair.link.suggest("n", IntRange(low=1, high=9)) == 3


def test_a_refused_parameter_is_the_objectives_error(pair: Pair) -> None:
    pair.answer_in_turn({"type": "choice", "refused": "n: another range than before"})
    with pytest.raises(ValueError, match="another range"):
        pair.link.suggest("n", IntRange(low=1, high=9))


def test_a_refused_report_is_the_objectives_error_once(pair: Pair) -> None:
    pair.answer_in_turn({"type": "refused", "message": "step: must be below 9"})
    with pytest.raises(ValueError, match="must be below 9"):
        pair.link.report(Measurement(step=9, value=1.0))
    assert pair.link.late_decision() is None


def test_a_warning_is_written_to_the_log(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.answer_in_turn(
        {"type": "decision", "step": 0, "verdict": "continue", "warning": "step 0 stands"}
    )
    pair.link.report(Measurement(step=0, value=1.0))
    assert capsys.readouterr().err == "hpo: step 0 stands\n"


def test_a_pause_stays_until_it_is_obeyed_but_not_after_a_prune(pair: Pair) -> None:
    trial = trial_of(pair)
    assert not trial.should_stop
    pair.link.ask_pause()
    assert trial.should_stop
    assert trial.should_stop
    pair.answer_in_turn({"type": "decision", "step": 0, "verdict": "prune"})
    trial.report(1.0, 0)
    assert trial.should_prune()
    assert not trial.should_stop


def test_start_is_said_once_and_before_reports(pair: Pair) -> None:
    trial = trial_of(pair)
    trial.start(7)
    assert pair.supervisor.receive() == {"type": "start", "resumed_from_step": 7}
    with pytest.raises(RuntimeError, match="once"):
        trial.start(7)


def test_user_attributes_travel_at_once_and_must_be_json(pair: Pair) -> None:
    pair.link.set_user_attr("scores", [1.0, float("inf")])
    assert pair.supervisor.receive() == {
        "type": "user_attr",
        "key": "scores",
        "value": [1.0, "Infinity"],
    }
    with pytest.raises(TypeError, match="'model' must be a JSON value"):
        pair.link.set_user_attr("model", object())


def test_the_wire_breaks_off_within_a_line() -> None:
    near, far = socket.socketpair()
    wire = Wire(near)
    far.sendall(b'{"type": "x"}\n{"type"')
    far.close()
    assert list(wire) == [{"type": "x"}]
    wire.close()


def test_the_wire_refuses_what_is_no_message() -> None:
    near, far = socket.socketpair()
    wire = Wire(near)
    far.sendall(b"3\n")
    with pytest.raises(ValueError, match="must be a JSON object"):
        wire.receive()
    far.close()
    wire.close()
