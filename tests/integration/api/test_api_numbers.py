"""Every answer is strict JSON, and every number comes back bit for bit, on both databases."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
from typing import Any

import optuna
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial
from starlette.testclient import TestClient

from hpo.numbers import NON_FINITE, encode_number
from tests.api_kit import Node, await_fact, no_literal, read

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
    "/export",
)


def bits(number: Any) -> bytes:
    """All of a number, also of a cell of a table; SQLite takes negative zero for zero."""
    value = float(NON_FINITE.get(number, number)) + 0.0
    return struct.pack(">d", math.nan if math.isnan(value) else value)


def all_reads(client: TestClient, study: str) -> dict[str, Any]:
    """Every answer about a study, read strictly; events by their kind."""
    found = {}
    for path in READS:
        response = client.get(f"/v1/studies/{study}{path}")
        assert response.status_code in (200, 404, 409), (path, response.text)
        found[path] = read(response)
    assert read(client.get("/v1/studies?limit=500"))["items"]
    stream = client.get(f"/v1/studies/{study}/events?after=0&until=now")
    for line in stream.text.splitlines():
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "), parse_constant=no_literal)
            found.setdefault(event.get("kind"), []).append(event.get("data"))
    table = client.get(f"/v1/studies/{study}/export?format=csv").text
    found["csv"] = list(csv.DictReader(io.StringIO(table)))
    return found


def imported(client: TestClient, document: dict[str, Any]) -> dict[str, Any]:
    """What a study that was exported is like once it has come back."""
    answer = client.post("/v1/studies/import", params={"name": "again"}, json=document)
    assert answer.status_code == 201, answer.text
    found = all_reads(client, "again")
    assert client.delete("/v1/studies/again?force=true").status_code == 202
    await_fact(lambda: client.get("/v1/studies/again").status_code == 404)
    return found


def test_text_of_a_table_is_no_formula_and_numbers_stay(client: TestClient, node: Node) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "plain", "'quoted"]
    space = {
        "kind": {"type": "categorical", "choices": texts},
        "x": {"type": "float", "low": -1.0, "high": 1.0},
    }
    study = node.launch(space=space, n_trials=len(texts))["name"]
    points = [{"params": {"kind": text, "x": -0.5}, "user_attrs": {"a": text}} for text in texts]
    client.post(f"/v1/studies/{study}/trials", json={"points": points})
    for _ in texts:
        node.send(node.claim(), "complete", value=-0.25)
    rows = all_reads(client, study)["csv"]
    guarded = ["'=1+1", "'+1", "'-1", "'@x", "'\t=1", "plain", "'quoted"]
    assert [row["params.kind"] for row in rows] == guarded
    assert [row["user_attrs.a"] for row in rows] == guarded
    assert {(row["value"], row["params.x"]) for row in rows} == {("-0.25", "-0.5")}


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
    found = all_reads(client, study)
    trial = found["/trials/0"]
    reported = [event["value"] for event in found.get("report", [])]
    assert [bits(number) for number in reported] == [bits(n) for n in curve]
    told = found["/export"]["trials"][0]
    assert [bits(point["value"]) for point in told["curve"]] == [bits(n) for n in curve]
    assert bits(told["params"]["x"]) == bits(found["csv"][0]["params.x"]) == bits(high)
    assert bits(trial["enqueued"]["x"]) == bits(high)
    assert bits(trial["params"]["x"]) == bits(high)
    assert [bits(point["value"]) for point in trial["curve"]] == [bits(n) for n in curve]
    assert [bits(point["metrics"]["m"]) for point in trial["curve"]] == [bits(n) for n in curve]
    assert trial["user_attrs"]["a"] == [encode_number(number) for number in curve]
    if trial["state"] == "COMPLETE":
        assert bits(trial["value"]) == bits(value)
        assert bits(found["trial_ended"][0]["value"]) == bits(value)
        assert bits(told["values"][0]) == bits(found["csv"][0]["value"]) == bits(value)


@SEVERAL
@given(
    values=st.lists(st.floats(allow_nan=False), min_size=5, max_size=8),
    curve=st.lists(ANY, min_size=1, max_size=4),
)
def test_numbers_of_trials_that_another_program_brought(
    client: TestClient, node: Node, values: list[float], curve: list[float]
) -> None:
    study = node.launch(sampler="tpe", n_trials=50, space=...)["name"]
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
    for seen in (found, imported(client, found["/export"])):
        compare(seen, values, curve)


def compare(found: dict[str, Any], values: list[float], curve: list[float]) -> None:
    """Each place in which a number of these trials stands."""
    told = found["/export"]["trials"]
    assert [bits(trial["values"][0]) for trial in told] == [bits(value) for value in values]
    assert [bits(row["value"]) for row in found["csv"]] == [bits(value) for value in values]
    assert all([bits(p["value"]) for p in t["curve"]] == [bits(n) for n in curve] for t in told)
    attrs = [trial["user_attrs"]["not finite"] for trial in told]
    assert attrs == [["NaN", "Infinity", "-Infinity"]] * len(values)
    trials = found["/trials?curves=true"]["items"]
    assert [bits(trial["value"]) for trial in trials] == [bits(value) for value in values]
    assert [[bits(p["value"]) for p in trial["curve"]] for trial in trials] == [
        [bits(number) for number in curve]
    ] * len(values)
    if nearest := found["/pruning"]["nearest"]:
        assert bits(nearest["value"]) in map(bits, curve)
        assert bits(nearest["gap"]) == bits(nearest["best_value"] - nearest["value"])
    complete = [v for i, v in enumerate(values) if i % 3 != 2 and i != 1 and math.isfinite(v)]
    if complete:  # the direction is maximize
        assert bits(found["/best"]["value"]) == bits(max(complete))
        assert found["/pareto"]["trials"][0]["values"] == [found["/best"]["value"]]
        assert found["/history"]["improvements"][-1]["value"] == found["/best"]["value"]
