"""Bodies of the worker protocol: no coercion, non-finite numbers as strings, text made storable."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from api.faults import fault_of
from api.schemas.base import Body, Reply
from api.schemas.claims import (
    ClaimBody,
    CompleteBody,
    DecisionReply,
    FailBody,
    LogBody,
    ReportBody,
    StartBody,
    SuggestBody,
)
from api.schemas.workers import Heartbeat, WorkerRegister
from hpo.errors import VersionMismatch
from hpo.space import IntRange
from hpo.trial import Decision, Reason, Verdict

WORKER = {
    "id": "6f1a6b0e-31d7-4b39-a5d5-3a7c2f4f9d10",
    "name": "node:1",
    "version": "0.1.0",
    "protocol": 1,
    "slots": 1,
    "devices": ["cpu"],
    "allow": ["objectives.*"],
}
CLAIM = {"worker_id": WORKER["id"], "claim_key": "k", "device": "cpu"}
REPORT = {"token": "t", "step": 0, "value": 1.0}
DEEP: dict[str, Any] = json.loads('{"a":' * 40 + "1" + "}" * 40)


def faults(body: type[Body], document: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        body.model_validate(document)
    found = [fault_of(dict(error)) for error in caught.value.errors()]
    return {fault.field: fault.message for fault in found}


@pytest.mark.parametrize(
    ("body", "document", "field"),
    [
        (ReportBody, {**REPORT, "step": -1}, "step"),
        (ReportBody, {**REPORT, "step": 1.5}, "step"),
        (ReportBody, {**REPORT, "step": "1"}, "step"),
        (ReportBody, {**REPORT, "step": True}, "step"),
        (ReportBody, {**REPORT, "step": 2**31}, "step"),
        (ReportBody, {**REPORT, "value": "0.5"}, "value"),
        (ReportBody, {**REPORT, "value": "inf"}, "value"),
        (ReportBody, {**REPORT, "value": True}, "value"),
        (ReportBody, {**REPORT, "value": None}, "value"),
        (ReportBody, {**REPORT, "value": 10**400}, "value"),
        (ReportBody, {**REPORT, "elapsed_seconds": -1}, "elapsed_seconds"),
        (ReportBody, {**REPORT, "elapsed_seconds": math.nan}, "elapsed_seconds"),
        (ReportBody, {**REPORT, "metrics": {"a": "x"}}, "metrics.a"),
        (ReportBody, {**REPORT, "metrics": {"": 1}}, "metrics."),
        (ReportBody, {**REPORT, "user_attrs": {"a": "\0"}}, "user_attrs.a"),
        (ReportBody, {**REPORT, "user_attrs": DEEP}, "user_attrs.a"),
        (ReportBody, {**REPORT, "extra": 1}, "extra"),
        (ReportBody, {"step": 0, "value": 1.0}, "token"),
        (ReportBody, {**REPORT, "token": "x" * 65}, "token"),
        (StartBody, {"token": "t", "resumed_from_step": -1}, "resumed_from_step"),
        (SuggestBody, {"token": "t", "name": "n", "parameter": {"type": "x"}}, "parameter.type"),
        (FailBody, {"token": "t", "reason": "bad luck"}, "reason"),
        (ClaimBody, {**CLAIM, "wait_seconds": 61}, "wait_seconds"),
        (ClaimBody, {**CLAIM, "wait_seconds": math.inf}, "wait_seconds"),
        (ClaimBody, {**CLAIM, "worker_id": "node7"}, "worker_id"),
        (ClaimBody, {**CLAIM, "claim_key": "x" * 129}, "claim_key"),
        (ClaimBody, {**CLAIM, "claim_key": "a\0"}, "claim_key"),
        (ClaimBody, {**CLAIM, "device": ""}, "device"),
        (WorkerRegister, {**WORKER, "slots": 0}, "slots"),
        (WorkerRegister, {**WORKER, "objectives": [{"objective": "m"}]}, "objectives.0.objective"),
        (Heartbeat, {"tokens": ["\0"]}, "tokens.0"),
        (
            LogBody,
            {"token": "t", "chunks": [{"sequence": 0, "text": "é" * 40_000}]},
            "chunks.0.text",
        ),
        (LogBody, {"token": "t", "chunks": [{"sequence": 0, "text": 1}]}, "chunks.0.text"),
    ],
)
def test_a_fault_names_its_field(body: type[Body], document: Any, field: str) -> None:
    assert list(faults(body, document)) == [field]


@pytest.mark.parametrize(
    ("sent", "read"),
    [(1, 1.0), (0.1, 0.1), ("Infinity", math.inf), ("-Infinity", -math.inf), (math.inf, math.inf)],
)
def test_values_are_read_to_the_last_bit(sent: Any, read: float) -> None:
    body = ReportBody.model_validate({**REPORT, "value": sent, "metrics": {"m": sent}})
    measurement = body.to_measurement()
    assert (measurement.value, measurement.metrics) == (read, {"m": read})


def test_nan_is_read_from_its_string() -> None:
    assert math.isnan(CompleteBody.model_validate({"token": "t", "value": "NaN"}).value or 0)


def test_an_unsaid_value_is_none() -> None:
    assert CompleteBody.model_validate({"token": "t", "value": None}).value is None


def test_attributes_keep_non_finite_numbers_as_strings() -> None:
    body = ReportBody.model_validate({**REPORT, "user_attrs": {"a": [math.nan, {"b": -math.inf}]}})
    assert body.user_attrs == {"a": ["NaN", {"b": "-Infinity"}]}


def test_output_is_cleaned_rather_than_refused() -> None:
    body = FailBody.model_validate(
        {"token": "t", "reason": "objective_error", "message": "a\0b", "traceback": "\udcff!"}
    )
    failure = body.to_failure()
    assert failure.reason is Reason.OBJECTIVE_ERROR
    assert (failure.message, failure.traceback) == ("a\N{REPLACEMENT CHARACTER}b", "?!")


def test_a_suggestion_carries_a_parameter() -> None:
    parameter = {"type": "int", "low": 1, "high": 4}
    body = SuggestBody.model_validate({"token": "t", "name": "n", "parameter": parameter})
    assert body.parameter.to_parameter() == IntRange(low=1, high=4)


def test_another_protocol_is_named_before_unknown_fields() -> None:
    with pytest.raises(VersionMismatch) as caught:
        WorkerRegister.model_validate({"protocol": 2, "field_of_tomorrow": 1})
    assert caught.value.facts["worker_protocol"] == 2
    assert caught.value.facts["server_protocol"] == 1


def test_replies_carry_non_finite_numbers_as_strings_wherever_they_stand() -> None:
    evidence = {"median": math.inf, "seen": [math.nan], "of": {"a": -math.inf}}
    reply: Reply = DecisionReply.of(Decision(verdict=Verdict.PRUNE, evidence=evidence))
    document = json.loads(reply.model_dump_json())
    assert document["evidence"] == {
        "median": "Infinity",
        "seen": ["NaN"],
        "of": {"a": "-Infinity"},
    }
