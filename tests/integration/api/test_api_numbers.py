"""Every answer is strict JSON, and every number comes back bit for bit, on both databases."""

from __future__ import annotations

import math
import struct
from typing import Any

import optuna
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial
from starlette.testclient import TestClient

from hpo.numbers import decode_number, encode_number
from tests.api_kit import Node, read

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ANY = st.floats()
UNIT = optuna.distributions.FloatDistribution(-1e308, 1e308)
SEVERAL = settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
READS = (
    "",
    "/best",
    "/trials?curves=true",
    "/trials?sort=value&descending=true&limit=3",
    "/trials?sort=duration",
    "/trials/0",
    "/trials/4",
    "/importances",
    "/history",
    "/history?by=time&limit=2",
    "/pareto",
    "/pruning",
)


def bits(number: Any) -> bytes:
    """All of a number; SQLite takes negative zero for zero."""
    value = float(decode_number(number)) + 0.0
    return struct.pack(">d", math.nan if math.isnan(value) else value)


def all_reads(client: TestClient, study: str) -> dict[str, Any]:
    """Every answer about a study, read strictly."""
    found = {}
    for path in READS:
        response = client.get(f"/v1/studies/{study}{path}")
        assert response.status_code in (200, 404, 409), (path, response.text)
        found[path] = read(response)
    assert read(client.get("/v1/studies?limit=500"))["items"]
    return found


@SEVERAL
@given(
    value=FINITE, params=st.lists(FINITE, min_size=2, max_size=2), curve=st.lists(ANY, max_size=4)
)
def test_numbers_of_trials_that_workers_run(
    client: TestClient, node: Node, value: float, params: list[float], curve: list[float]
) -> None:
    low, high = sorted(max(-1e300, min(1e300, number)) for number in params)
    space = {"x": {"type": "float", "low": low, "high": high}}
    study = node.launch(space=space, pruner="none", n_trials=1)["name"]
    points = [{"params": {"x": high}, "user_attrs": {"a": [encode_number(n) for n in curve]}}]
    sent = client.post(f"/v1/studies/{study}/trials", json={"points": points})
    assert sent.status_code == 201, sent.text
    claim = node.claim()
    assert bits(claim["params"]["x"]) == bits(high)
    for step, number in enumerate(curve):
        metrics = {"m": encode_number(number)}
        body = {"step": step, "value": encode_number(number), "metrics": metrics}
        node.send(claim, "report", elapsed_seconds=0.5, **body)
    node.send(claim, "complete", value=value)
    trial = all_reads(client, study)["/trials/0"]
    assert bits(trial["enqueued"]["x"]) == bits(high)
    assert bits(trial["params"]["x"]) == bits(high)
    assert [bits(point["value"]) for point in trial["curve"]] == [bits(n) for n in curve]
    assert [bits(point["metrics"]["m"]) for point in trial["curve"]] == [bits(n) for n in curve]
    assert trial["user_attrs"]["a"] == [encode_number(number) for number in curve]
    if trial["state"] == "COMPLETE":
        assert bits(trial["value"]) == bits(value)


@SEVERAL
@given(
    values=st.lists(st.floats(allow_nan=False), min_size=5, max_size=8),
    curve=st.lists(ANY, min_size=1, max_size=4),
)
def test_numbers_of_trials_that_another_program_brought(
    client: TestClient, node: Node, values: list[float], curve: list[float]
) -> None:
    study = node.launch(sampler="tpe", n_trials=50)["name"]
    storage = client.app.state.service.store.optuna_storage()  # type: ignore[attr-defined] # an ASGI app has no state
    theirs = optuna.load_study(study_name=study, storage=storage)
    steps = dict(enumerate(curve))
    for index, value in enumerate(values):
        params = {"x": float(index), "y": value if math.isfinite(value) else 0.0}
        distributions = dict.fromkeys(params, UNIT)
        state = TrialState.PRUNED if index % 3 == 2 else TrialState.COMPLETE
        theirs.add_trial(
            create_trial(
                state=state,
                value=value,
                params={name: max(-1e308, min(1e308, number)) for name, number in params.items()},
                distributions=distributions,
                intermediate_values=steps,
                user_attrs={"not finite": [math.nan, math.inf, -math.inf]},
            )
        )
    client.post(f"/v1/studies/{study}/trials/1/exclude", json={"reason": "a test"})
    found = all_reads(client, study)
    trials = found["/trials?curves=true"]["items"]
    assert [bits(trial["value"]) for trial in trials] == [bits(value) for value in values]
    assert [[bits(p["value"]) for p in trial["curve"]] for trial in trials] == [
        [bits(number) for number in curve]
    ] * len(values)
    complete = [v for i, v in enumerate(values) if i % 3 != 2 and i != 1 and math.isfinite(v)]
    if complete:  # the direction is maximize
        assert bits(found["/best"]["value"]) == bits(max(complete))
        assert found["/pareto"]["trials"][0]["values"] == [found["/best"]["value"]]
        assert found["/history"]["improvements"][-1]["value"] == found["/best"]["value"]
