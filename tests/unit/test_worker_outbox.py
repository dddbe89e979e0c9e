"""What is said of an attempt arrives in order, whatever the network does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import hpo.worker.outbox as outbox_module
from hpo.client import AccessDenied, ApiError
from hpo.errors import Unavailable
from hpo.worker.outbox import MAX_SERVER_FAULTS, Abandoned, Outbox, delays, persist

OUTCOME = {"token": "t", "value": 1.0, "user_attrs": {}}


def refused(code: str, status: int = 409) -> ApiError:
    return ApiError(status, {"code": code, "detail": code})


class Service:
    """Answers from a script: an exception is raised, anything else answered."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.said: list[tuple[str, Any]] = []

    def __call__(self, verb: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
        answer = self.script.pop(0) if self.script else {}
        if isinstance(answer, Exception):
            raise answer
        self.said.append((verb, document.get("step")))
        return answer


class Ears:
    """Notes what an attempt would hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.lost = threading.Event()

    def on_verdict(self, step: int, answer: Mapping[str, Any]) -> None:
        self.heard.append(("verdict", step, dict(answer)))

    def on_refusal(self, step: int | None, error: ApiError) -> None:
        self.heard.append(("refusal", step, error.code))

    def on_lost(self, error: ApiError) -> None:
        self.heard.append(("lost", error.code))
        self.lost.set()


@pytest.fixture
def ears() -> Ears:
    return Ears()


def test_delays_grow_and_differ() -> None:
    assert list(itertools.islice(delays(lambda: 1.0), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert list(itertools.islice(delays(lambda: 0.0), 2)) == [0.05, 0.1]


def test_letters_arrive_in_order_and_verdicts_are_heard(ears: Ears) -> None:
    service = Service(None, {"verdict": "continue"}, {"verdict": "prune"}, {"state": "PRUNED"})
    outbox = Outbox(service, ears)
    outbox.put("start", {"token": "t", "resumed_from_step": None})
    outbox.put("report", {"token": "t", "step": 0})
    outbox.put("report", {"token": "t", "step": 1})
    outbox.settle("prune", {"token": "t"})
    assert outbox.wait() == {"state": "PRUNED"}
    assert service.said == [("start", None), ("report", 0), ("report", 1), ("prune", None)]
    assert ears.heard == [
        ("verdict", 0, {"verdict": "continue"}),
        ("verdict", 1, {"verdict": "prune"}),
    ]


def test_a_service_that_is_away_is_asked_again(ears: Ears) -> None:
    service = Service(Unavailable(), Unavailable(), {"verdict": "continue"}, Unavailable(), {})
    outbox = Outbox(service, ears)
    outbox.put("report", {"token": "t", "step": 0})
    outbox.settle("complete", dict(OUTCOME))
    assert outbox.wait() == {}
    assert service.said == [("report", 0), ("complete", None)]
    assert not outbox.is_stalled


def test_it_is_stalled_while_the_service_is_away(ears: Ears) -> None:
    asked = threading.Event()
    outbox: list[Outbox] = []

    def away(verb: str, document: Mapping[str, Any]) -> None:
        if outbox and outbox[0].is_stalled:
            asked.set()
        raise Unavailable()

    outbox.append(Outbox(away, ears))
    outbox[0].put("report", {"token": "t", "step": 0})
    assert asked.wait(10)
    outbox[0].abandon()
    assert outbox[0].wait() is None


def test_what_waits_is_bounded_and_the_child_waits_with_it(
    ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "MAX_WAITING", 3)
    is_back = threading.Event()
    said: list[int] = []

    def away_at_first(verb: str, document: Mapping[str, Any]) -> dict[str, Any]:
        assert is_back.wait(10)
        said.append(document["step"])
        return {}

    outbox = Outbox(away_at_first, ears)
    all_put = threading.Event()

    def put_all() -> None:
        for step in range(20):
            outbox.put("report", {"token": "t", "step": step})
        all_put.set()

    threading.Thread(target=put_all).start()
    assert not all_put.wait(0.1)
    is_back.set()
    assert all_put.wait(10)
    outbox.settle("complete", {**OUTCOME, "step": 20})
    outbox.wait()
    assert said == list(range(21))


@pytest.mark.parametrize("code", ["lease_lost", "trial_finished", "not_found"])
def test_a_lost_lease_ends_all_delivery(ears: Ears, code: str) -> None:
    service = Service(refused(code))
    outbox = Outbox(service, ears)
    outbox.put("report", {"token": "t", "step": 0})
    assert ears.lost.wait(10)
    outbox.settle("complete", dict(OUTCOME))
    assert outbox.wait() is None
    assert ears.heard == [("lost", code)]
    assert not service.said


def test_a_refused_report_is_heard_and_turns_a_value_into_a_failure(ears: Ears) -> None:
    service = Service(refused("invalid", 422))
    outbox = Outbox(service, ears)
    outbox.put("report", {"token": "t", "step": 99})
    outbox.settle("complete", dict(OUTCOME))
    assert outbox.wait() == {}
    assert ears.heard == [("refusal", 99, "invalid")]
    assert [verb for verb, _ in service.said] == ["fail"]


def test_a_step_reported_twice_harms_nothing(ears: Ears) -> None:
    service = Service(refused("step_reported"))
    outbox = Outbox(service, ears)
    outbox.put("report", {"token": "t", "step": 0})
    outbox.settle("complete", dict(OUTCOME))
    outbox.wait()
    assert service.said == [("complete", None)]


@pytest.mark.parametrize(
    ("code", "reason"), [("invalid", "objective_error"), ("invalid_result", "invalid_result")]
)
def test_an_outcome_that_is_refused_becomes_a_failure(ears: Ears, code: str, reason: str) -> None:
    told: list[tuple[str, Any]] = []

    def post(verb: str, document: Mapping[str, Any]) -> dict[str, Any]:
        told.append((verb, document.get("reason")))
        if verb == "complete":
            raise refused(code, 422)
        return {"state": "FAIL"}

    outbox = Outbox(post, ears)
    outbox.settle("complete", dict(OUTCOME))
    assert outbox.wait() == {"state": "FAIL"}
    assert told == [("complete", None), ("fail", reason)]


def test_a_failure_that_is_refused_is_dropped(ears: Ears, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(Service(refused("invalid", 422)), ears)
    outbox.settle("fail", {"token": "t"})
    assert outbox.wait() is None
    assert "does not accept an outcome: invalid" in caplog.text


def test_faults_of_the_server_are_tried_a_few_times(ears: Ears) -> None:
    faults = [refused("internal", 500)] * (MAX_SERVER_FAULTS - 1)
    service = Service(*faults, {"state": "COMPLETE"})
    outbox = Outbox(service, ears)
    outbox.settle("complete", dict(OUTCOME))
    assert outbox.wait() == {"state": "COMPLETE"}


def test_a_call_besides_is_persistent_and_ends_with_the_attempt(ears: Ears) -> None:
    outbox = Outbox(Service(Unavailable(), {"value": 3}), ears)
    assert outbox.call("suggest", {"token": "t"}) == {"value": 3}
    outbox.abandon()
    with pytest.raises(Abandoned):
        outbox.call("suggest", {"token": "t"})


def test_a_token_that_is_no_longer_valid_is_waited_for(ears: Ears) -> None:
    denied = AccessDenied(401, {"code": "unauthorized"})
    service = Service(denied, denied, {"verdict": "continue"}, denied, {"state": "COMPLETE"})
    outbox = Outbox(service, ears)
    outbox.put("report", {"step": 0})
    outbox.settle("complete", {"token": "t", "value": 1.0})
    assert outbox.wait() == {"state": "COMPLETE"}


def test_persistence_stops_when_it_is_abandoned_while_waiting() -> None:
    abandoned = threading.Event()

    def away() -> None:
        raise Unavailable()

    give_up: Callable[[], None] = abandoned.set
    with pytest.raises(Abandoned):
        persist(away, abandoned, on_away=give_up)
