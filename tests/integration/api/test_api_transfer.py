"""Studies from others and to elsewhere: what arrives is what left, to the bit."""

from __future__ import annotations

import csv
import io
import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from tests.api_kit import Node, read, serving

SPACE = {
    "x": {"type": "float", "low": 1e-5, "high": 1.0, "log": True},
    "n": {"type": "int", "low": 1, "high": 9, "when": {"kind": ["b"]}},
    "kind": {"type": "categorical", "choices": ["a", "b"]},
    "sizes": {"type": "categorical", "choices": [[1, 2], {"deep": None}, 3]},
}
# What belongs to a server, or is told anew by it.
OWN = {"uuid", "blocked", "models_blocked"}
ODD = [0.1 + 0.2, 5e-324, -1 / 3, 1e308]

NewDatabase = Callable[[str], str]


@pytest.fixture(scope="module")
def services(new_database: NewDatabase) -> Iterator[list[TestClient]]:
    """SQLite, PostgreSQL, SQLite."""
    first, second, third = (new_database(kind) for kind in ("sqlite", "postgresql", "sqlite"))
    with serving(first) as one, serving(second) as two, serving(third) as three:
        yield [one, two, three]


def enqueue(node: Node, study: str, **params: Any) -> None:
    document = {"points": [{"params": params}], "extend": True}
    response = node.client.post(f"/v1/studies/{study}/trials", json=document)
    assert response.status_code == 201, response.text


def rich_study(node: Node) -> str:
    """A study with every kind of trial; its name."""
    pruner = {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 0}
    study = node.launch(
        space=SPACE,
        n_trials=9,
        seed=7,
        pruner=pruner,
        settings={"epochs": 4, "note": "käse"},
        max_steps=4,
        timeout_seconds=1e6,
        tags=["a", "b"],
        notes="käse",
        retry_backoff_seconds=0.0,
    )["name"]
    for index in range(2):
        claim = node.claim()
        for step, value in enumerate(ODD):
            document = {"step": step, "value": value, "metrics": {"loss": value / 3, "bad": "NaN"}}
            assert node.send(claim, "report", **document, elapsed_seconds=step / 7).is_success
        attrs = {"user_attrs": {"a": [1, "NaN"], "b": index}, "constraints": {"size": index - 0.5}}
        assert node.send(claim, "complete", value=0.1 * (index + 1), **attrs).is_success
    pruned = node.claim()
    assert node.send(pruned, "report", step=0, value=-1e9).json()["verdict"] == "prune"
    assert node.send(pruned, "prune").is_success
    failed = node.claim()
    assert node.send(failed, "report", step=0, value="Infinity").is_success
    fault = {"reason": "objective_error", "message": "no", "traceback": "Traceback: …"}
    assert node.send(failed, "fail", **fault).is_success
    lost = node.claim()
    assert node.send(lost, "fail", reason="device_error", message="gone").is_success
    again = node.claim()
    assert (again["number"], again["attempt"]) == (lost["number"], 2)
    assert node.send(again, "complete", value=0.25).is_success
    enqueue(node, study, x=0.5, kind="a", sizes=[1, 2])
    assert node.send(node.claim(), "complete", value=0.75).is_success
    excluded = f"/v1/studies/{study}/trials/5/exclude"
    assert node.client.post(excluded, json={"reason": "wrong labels"}).is_success
    return str(study)


def export(client: httpx2.Client, study: str, form: str = "json") -> httpx2.Response:
    response = client.get(f"/v1/studies/{study}/export", params={"format": form})
    assert response.status_code == 200, response.text
    return response


def bring(client: httpx2.Client, document: Any, **query: Any) -> httpx2.Response:
    return client.post("/v1/studies/import", json=document, params=query)


def seen(client: httpx2.Client, study: str) -> dict[str, Any]:
    """All that the API tells of a study, but what belongs to the server."""
    path = f"/v1/studies/{study}"
    head = {key: value for key, value in read(client.get(path)).items() if key not in OWN}
    listed = read(client.get(f"{path}/trials", params={"curves": "true"}))["items"]
    trials = [read(client.get(f"{path}/trials/{trial['number']}")) for trial in listed]
    others = {
        what: read(client.get(f"{path}/{what}"))
        for what in ("best", "history", "pareto", "pruning", "importances")
    }
    return {"study": head, "listed": listed, "trials": trials, **others}


def document_of(client: httpx2.Client, study: str) -> dict[str, Any]:
    document: dict[str, Any] = read(export(client, study))
    del document["exported_at"]
    return document


class TestRoundTrip:
    def test_a_study_is_the_same_on_three_servers(self, services: list[TestClient]) -> None:
        first, *others = services
        node = Node(first)
        study = rich_study(node)
        for _ in range(3):
            assert node.send(node.claim(), "complete", value=0.5).is_success
        assert read(first.get(f"/v1/studies/{study}"))["state"] == "completed"
        assert first.post(f"/v1/studies/{study}/archive").is_success
        told, sent = seen(first, study), export(first, study)
        assert {trial["state"] for trial in told["trials"]} == {"COMPLETE", "PRUNED", "FAIL"}
        before = document_of(first, study)
        for client in others:
            arrived = client.post(
                "/v1/studies/import",
                content=sent.content,
                headers={"Content-Type": "application/json"},
            )
            assert arrived.status_code == 201, arrived.text
            assert read(arrived)["n_left_out"] == 0
            assert seen(client, study) == told
            sent = export(client, study)
            assert document_of(client, study) == before

    def test_what_had_not_ended_waits_paused(self, services: list[TestClient]) -> None:
        first, second, _ = services
        node = Node(first)
        study = rich_study(node)
        running = node.claim()
        enqueue(node, study, x=0.25)
        answer = bring(second, read(export(first, study)), name="later")
        assert answer.status_code == 201, answer.text
        told = read(answer)
        assert (told["n_trials"], told["n_waiting"], told["n_left_out"]) == (8, 2, 0)
        assert (told["study"]["state"], told["study"]["n_started"]) == ("paused", 6)
        assert "resume" in told["study"]["reason"]
        there = Node(second)
        there.document["allow"] = [node.objective.partition(":")[0]]
        assert second.post("/v1/workers", json=there.document).is_success
        assert second.post("/v1/studies/later/resume").is_success
        claims = [there.claim() for _ in range(2)]
        assert [claim["number"] for claim in claims] == [running["number"], 7]
        assert claims[0]["params"] == running["params"]
        assert claims[1]["params"]["x"] == 0.25
        assert (there.claim()["number"], there.ask().status_code) == (8, 204)
        best = read(second.get("/v1/studies/later/best"))
        assert best == {**read(first.get(f"/v1/studies/{study}/best")), "study": "later"}

    def test_plain_optuna_s_trials_come_along(self, services: list[TestClient]) -> None:
        first, second, _ = services
        name = f"s-{uuid.uuid4().hex}"
        storage: Any = first.app.state.service.store.optuna_storage()  # type: ignore[attr-defined]
        optuna = pytest.importorskip("optuna")
        theirs = optuna.create_study(study_name=name, storage=storage, direction="maximize")
        theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
        document = {"name": name, "direction": "maximize", "n_trials": 2}
        adopted = first.post("/v1/studies/adopt", json=document)
        assert adopted.status_code == 201, adopted.text
        assert read(adopted)["n_trials"] == 3
        assert first.post(f"/v1/studies/{name}/stop").is_success
        sent = document_of(first, name)
        assert [trial["is_counted"] for trial in sent["trials"]] == [None] * 3
        assert bring(second, sent).status_code == 201
        assert document_of(second, name) == sent


class TestExport:
    def test_it_is_strict_json_with_every_bit(self, node: Node) -> None:
        study = rich_study(node)
        document = read(export(node.client, study))
        assert (document["format"], document["study"]["name"]) == (1, study)
        assert document["study"]["space"]["sizes"]["choices"] == [[1, 2], {"deep": None}, 3]
        curve = document["trials"][0]["curve"]
        assert [repr(point["value"]) for point in curve] == [repr(value) for value in ODD]
        assert curve[0]["metrics"]["bad"] == "NaN"
        assert document["trials"][3]["curve"][0]["value"] == "Infinity"
        assert [trial["number"] for trial in document["trials"]] == list(range(6))
        assert set(document["trials"][0]["distributions"]) == set(document["trials"][0]["params"])

    def test_a_table_has_a_row_for_each_trial(self, node: Node) -> None:
        study = rich_study(node)
        answer = export(node.client, study, "csv")
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert f"{study}.csv" in answer.headers["Content-Disposition"]
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert [row["number"] for row in rows] == [str(number) for number in range(6)]
        assert [row["state"] for row in rows][2:4] == ["PRUNED", "FAIL"]
        first = read(node.client.get(f"/v1/studies/{study}/trials/0"))
        assert float(rows[0]["params.x"]) == first["params"]["x"]
        assert rows[5]["params.sizes"] == "[1, 2]"
        assert (rows[0]["user_attrs.a"], rows[0]["user_attrs.b"]) == ('[1, "NaN"]', "0")
        assert (rows[3]["value"], rows[3]["reason"]) == ("", "objective_error")
        assert (rows[4]["excluded"], rows[5]["excluded"]) == ("false", "true")

    def test_more_trials_than_a_page_come_in_order(self, node: Node) -> None:
        study = node.launch(n_trials=1000)["name"]
        points = [{"params": {"x": index / 450}} for index in range(450)]
        path = f"/v1/studies/{study}/trials"
        assert node.client.post(path, json={"points": points}).status_code == 201
        trials = read(export(node.client, study))["trials"]
        assert [trial["enqueued"]["x"] for trial in trials] == [index / 450 for index in range(450)]
        assert bring(node.client, read(export(node.client, study)), name=f"{study}-2").is_success
        copied = read(export(node.client, f"{study}-2"))["trials"]
        assert copied == trials

    def test_there_must_be_such_a_study(self, client: TestClient) -> None:
        assert client.get("/v1/studies/none/export").status_code == 404
        assert client.get("/v1/studies/none/export?format=xml").status_code == 422


def faults(response: httpx2.Response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    return {fault["field"]: fault["message"] for fault in read(response)["errors"]}


class TestImport:
    @pytest.fixture
    def document(self, node: Node) -> dict[str, Any]:
        name = node.launch()["name"]
        assert node.send(node.claim(), "complete", value=1.0).is_success
        document: dict[str, Any] = read(export(node.client, name))
        document["study"]["name"] = f"s-{uuid.uuid4().hex}"
        return document

    @pytest.mark.parametrize(
        ("path", "value", "field"),
        [
            (["format"], 2, "format"),
            (["what"], 1, "what"),
            (["study", "n_trials"], 0, "study.n_trials"),
            (["study", "space", "x", "low"], 2.0, "study.space.x.low"),
            (["study", "sampler"], {"name": "nope"}, "study.sampler"),
            (["trials", 0, "state"], "DONE", "trials.0.state"),
            (["trials", 0, "number"], -1, "trials.0.number"),
            (["trials", 0, "values"], [], "trials.0.values"),
            (["trials", 0, "values"], ["NaN"], "trials.0.values"),
            (["trials", 0, "params", "x"], "a", "trials.0.params.x"),
            (["trials", 0, "params", "x"], 7.0, "trials.0.params.x"),
            (["trials", 0, "params", "y"], 7.0, "trials.0.params.y"),
            (["trials", 0, "distributions", "x"], {"name": "os.system"}, "trials.0.params.x"),
            (["trials", 0, "distributions", "x", "name"], "IntDistribution", "trials.0.params.x"),
            (["trials", 0, "started_at"], "2026-01-01T00:00:00", "trials.0.started_at"),
            (["trials", 0, "message"], "a\0b", "trials.0.message"),
        ],
    )
    def test_a_fault_is_named_and_nothing_is_written(
        self, client: TestClient, document: dict[str, Any], path: list[Any], value: Any, field: str
    ) -> None:
        place: Any = document
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value
        assert field in faults(bring(client, document))
        assert client.get(f"/v1/studies/{document['study']['name']}").status_code == 404

    def test_what_stands_there_twice_is_refused(
        self, client: TestClient, document: dict[str, Any]
    ) -> None:
        document["trials"].append({"number": 0, "state": "FAIL"})
        curve = [{"step": 0, "value": 1.0}] * 2
        document["trials"].append({"number": 1, "state": "FAIL", "curve": curve})
        found = faults(bring(client, document))
        assert {"trials.0.number", "trials.1.number", "trials.2.curve"} <= found.keys()

    def test_a_taken_name_is_refused_and_a_key_answers_again(
        self, client: TestClient, document: dict[str, Any]
    ) -> None:
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        sent = json.dumps(document)
        headers["Content-Type"] = "application/json"
        answers = [
            client.post("/v1/studies/import", content=sent, headers=headers) for _ in range(2)
        ]
        assert [answer.status_code for answer in answers] == [201, 201]
        assert read(answers[0])["study"]["uuid"] == read(answers[1])["study"]["uuid"]
        refused = bring(client, document)
        assert (refused.status_code, read(refused)["code"]) == (409, "study_exists")
        assert bring(client, document, name=f"s-{uuid.uuid4().hex}").status_code == 201
        assert "name" in faults(bring(client, document, name="no name"))

    def test_pickles_of_a_sampler_are_not_taken(
        self, client: TestClient, document: dict[str, Any]
    ) -> None:
        attrs = {"cma:optimizer:0": "80049500", "completed_rung_0": 0.5}
        document["trials"][0]["system_attrs"] = attrs
        assert bring(client, document).status_code == 201
        copied = read(export(client, document["study"]["name"]))["trials"][0]
        assert copied["system_attrs"] == {"completed_rung_0": 0.5}

    @pytest.mark.parametrize("body", [b"{", b"[]", b"NaN", b"[" * 100_000, b"\xff"])
    def test_what_is_no_document_is_refused(self, client: TestClient, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/studies/import", content=body, headers=headers)
        assert response.status_code == 422, response.text


def test_the_limit_of_an_import_is_its_own(new_database: NewDatabase) -> None:
    with serving(new_database("sqlite"), max_import_bytes=2_000_000) as client:
        headers = {"Content-Type": "application/json"}
        for path, size, status in [
            ("/v1/studies/import", 1_500_000, 422),
            ("/v1/studies/import", 2_000_001, 413),
            ("/v1/studies", 1_500_000, 413),
        ]:
            response = client.post(path, content=b"[]" + b" " * (size - 2), headers=headers)
            assert response.status_code == status, (path, size)


class TestClone:
    """Seen from outside; what fits is the matter of the contract's tests."""

    def test_other_choices_make_a_clone_with_the_trials_that_fit(self, node: Node) -> None:
        space = {"batch_size": {"type": "categorical", "choices": [64, 128]}}
        study = node.launch(space=space, n_trials=3)
        for _ in range(3):
            assert node.send(node.claim(), "complete", value=1.0).is_success
        wider = {"batch_size": {"type": "categorical", "choices": [64, 128, 256]}}
        sent = {"name": study["name"], "objective": node.objective, "direction": "maximize"}
        again = node.client.post("/v1/studies", json={**sent, "n_trials": 3, "space": wider})
        assert again.status_code == 409
        assert "batch_size" in json.dumps(read(again)["difference"])
        clone = {"name": f"{study['name']}-2", "changes": {"space": wider}}
        answer = node.client.post(f"/v1/studies/{study['name']}/clone", json=clone)
        assert answer.status_code == 201, answer.text
        told = read(answer)
        assert (told["n_imported"], told["n_left_out"], told["misfits"]) == (3, 0, {})
        assert answer.headers["Location"] == f"/v1/studies/{clone['name']}"
        same = {"sampler", "pruner", "seed", "objective", "direction", "settings", "max_attempts"}
        assert {name: told["study"][name] for name in same} == {n: study[n] for n in same}
        assert node.claim()["number"] == 3

    def test_max_steps_follow_a_change_of_epochs(self, client: TestClient) -> None:
        node = Node(client, direction="maximize", max_steps=10, settings={"epochs": 10, "a": 1})
        study = node.launch(direction=..., settings={"epochs": 5})["name"]
        clone = {"name": f"{study}-2", "changes": {"settings": {"epochs": 7}}}
        answer = node.client.post(f"/v1/studies/{study}/clone", json=clone)
        assert answer.status_code == 201, answer.text
        made = read(answer)["study"]
        assert (made["max_steps"], made["settings"]) == (7, {"epochs": 7, "a": 1})

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"n_trials": 0}, "changes.n_trials"),
            ({"space": {"x": {"type": "float", "low": 2, "high": 1}}}, "changes.space.x.low"),
            ({"sampler": {"name": "tpe", "what": 1}}, "changes.sampler.what"),
            ({"nope": 1}, "changes.nope"),
            ({"name": "other"}, "changes.name"),
            ({"directions": ["minimize", "maximize"]}, "changes.pruner"),
            ({"directions": ["minimize"] * 2, "pruner": "none"}, "changes.directions"),
        ],
    )
    def test_a_change_that_cannot_be_is_named(
        self, node: Node, changes: dict[str, Any], field: str
    ) -> None:
        study = node.launch()["name"]
        clone = {"name": f"{study}-2", "changes": changes}
        assert field in faults(node.client.post(f"/v1/studies/{study}/clone", json=clone))

    def test_null_takes_a_field_back(self, node: Node) -> None:
        study = node.launch(timeout_seconds=5.0, pruner="none")["name"]
        clone = {"name": f"{study}-2", "changes": {"timeout_seconds": None, "pruner": None}}
        made = read(node.client.post(f"/v1/studies/{study}/clone", json=clone))["study"]
        assert (made["budget"]["timeout_seconds"], made["pruner"]["name"]) == (None, "median")


def test_a_warm_start_is_told_with_what_did_not_fit(node: Node) -> None:
    source = node.launch(n_trials=2)["name"]
    values = [0.25, 0.5]
    for value in values:
        assert node.send(node.claim(), "complete", value=value).is_success
    target = node.launch(space={"x": SPACE["x"]})["name"]
    path, body = f"/v1/studies/{target}/warm-start", {"from": source, "k": 1}
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    answers = [node.client.post(path, json=body, headers=headers) for _ in range(2)]
    assert [read(answer) for answer in answers] == [
        {"study": target, "numbers": [0], "misfits": {}}
    ] * 2
    best = read(node.client.get(f"/v1/studies/{source}/best"))
    assert node.claim()["params"] == best["params"]
    assert math.isclose(best["value"], max(values))
    assert node.client.post(path, json={"from": "none"}).status_code == 404
    assert "k" in faults(node.client.post(path, json={"from": source, "k": 0}))
