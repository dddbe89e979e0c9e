"""Ask and tell over HTTP, and from Python."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import hpo.ask
from hpo import FloatRange, Trial, TrialPruned, TrialReleased, objective
from hpo.ask import AskedTrial, NoTrial
from hpo.client import ApiError, Client
from tests.api_kit import Node, Running, read

SPACE = {"x": {"type": "float", "low": 0, "high": 1}}


@pytest.fixture(scope="module")
def running(new_database: Callable[[str], str]) -> Iterator[Running]:
    service = Running(new_database("sqlite"))
    yield service
    service.stop()


@pytest.fixture
def local(running: Running) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{running.port}") as client:
        yield client


def document(**fields: Any) -> dict[str, Any]:
    defaults = {"n_trials": 3, "direction": "minimize", "space": SPACE, "sampler": "random"}
    return {"name": f"s-{uuid.uuid4().hex}", **defaults, **fields}


def ask(client: TestClient, name: str, key: str | None = None, **fields: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/v1/studies/{name}/ask", json=fields, headers=headers)


def test_a_study_without_an_objective_is_asked(client: TestClient) -> None:
    sent = document()
    study = read(client.post("/v1/studies", json=sent))
    assert (study["objective"], study["blocked"]) == (None, None)
    asked = read(ask(client, sent["name"], count=2, worker="shell", lease_seconds=30))
    assert (asked["state"], asked["reason"]) == ("running", None)
    first, second = asked["trials"]
    assert (first["number"], second["number"], first["lease_seconds"]) == (0, 1, 30.0)
    assert first["objective"] is None
    trial = f"/v1/studies/{sent['name']}/trials/0"
    token = {"token": first["token"]}
    assert client.post(f"{trial}/renew", json=token).status_code == 204
    report = {**token, "step": 0, "value": "NaN"}
    assert read(client.post(f"{trial}/report", json=report))["verdict"] == "prune"
    assert read(client.post(f"{trial}/prune", json=token))["state"] == "PRUNED"
    assert read(client.get(trial))["worker"] == "shell"
    assert read(client.post(f"{trial}/renew", json=token))["code"] == "trial_finished"


def test_an_ask_that_is_sent_again_gets_the_same_answer(client: TestClient) -> None:
    sent = document()
    client.post("/v1/studies", json=sent)
    key = uuid.uuid4().hex
    first = read(ask(client, sent["name"], key))
    (trial,) = first["trials"]
    told = {"token": trial["token"], "value": 1.0}
    client.post(f"/v1/studies/{sent['name']}/trials/0/complete", json=told)
    assert read(ask(client, sent["name"], key)) == first
    assert read(ask(client, sent["name"], key, count=2))["code"] == "idempotency_key_reused"
    assert read(ask(client, sent["name"]))["trials"][0]["number"] == 1


def test_what_cannot_be_asked(client: TestClient, node: Node) -> None:
    refused = ask(client, node.launch()["name"])
    assert (refused.status_code, read(refused)["code"]) == (409, "conflict")
    assert "without `objective`" in read(refused)["detail"]
    assert ask(client, "nobody").status_code == 404
    for fields in ({"count": 0}, {"lease_seconds": 5}, {"worker": ""}):
        assert ask(client, "nobody", **fields).status_code == 422
    answer = client.post("/v1/studies", json=document(direction=None))
    (error,) = read(answer)["errors"]
    assert error["field"] == "direction"
    assert "ask and tell" in error["message"]


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "nsgaii"])
def test_trials_that_are_out_at_once_are_different_points(client: TestClient, sampler: str) -> None:
    space = {**SPACE, "y": {"type": "float", "low": 0, "high": 1}}
    sent = document(n_trials=16, space=space, sampler=sampler, seed=42)
    client.post("/v1/studies", json=sent)
    asked = [read(ask(client, sent["name"], count=2, worker=f"w{n}")) for n in range(8)]
    points = {(t["params"]["x"], t["params"]["y"]) for answer in asked for t in answer["trials"]}
    assert len(points) == 16


def test_an_ask_waits_for_a_trial(client: TestClient) -> None:
    sent = document(max_parallel_trials=1)
    client.post("/v1/studies", json=sent)
    (trial,) = read(ask(client, sent["name"]))["trials"]
    started_at = time.monotonic()
    assert "max_parallel_trials" in read(ask(client, sent["name"], wait_seconds=0.3))["reason"]
    assert time.monotonic() - started_at >= 0.3
    client.post(f"/v1/studies/{sent['name']}/stop")
    at = f"/v1/studies/{sent['name']}/trials/0/complete"
    client.post(at, json={"token": trial["token"], "value": 1.0})
    asked = read(ask(client, sent["name"], wait_seconds=60))
    assert (asked["trials"], asked["state"]) == ([], "stopped")


def test_a_trial_in_a_with_is_told_how_it_ended(local: Client) -> None:
    sent = document(n_trials=5)
    local.create_study(sent)
    name = sent["name"]
    with local.ask(name) as trial:
        trial.set_user_attr("who", "me")
        trial.report(0.5, 0, loss=2.0)
    with pytest.raises(ZeroDivisionError), local.ask(name) as trial:
        1 / 0  # noqa: B018  # the exception is the point
    with local.ask(name) as trial:
        trial.report(float("nan"), 0)
        assert trial.should_prune()
    with local.ask(name) as trial:
        raise TrialPruned
    with pytest.raises(KeyboardInterrupt), local.ask(name) as trial:
        raise KeyboardInterrupt
    with local.ask(name) as again:
        again.complete(0.25)
    found = list(local.trials(name))
    assert [one["state"] for one in found] == ["COMPLETE", "FAIL", "PRUNED", "PRUNED", "COMPLETE"]
    assert (found[0]["value"], found[0]["user_attrs"]) == (0.5, {"who": "me"})
    failed = local.trial(name, 1)["attempts"][0]
    assert "1 / 0" in failed["traceback"]
    assert (again.number, again.attempt) == (trial.number, 2)
    with pytest.raises(NoTrial, match="completed") as none:
        local.ask(name)
    assert none.value.state == "completed"
    assert local.wait(name, timeout_seconds=10)["state"] == "completed"


def test_an_ask_that_is_interrupted_gives_back_what_it_got(
    local: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C came after the trial was handed out and before the answer was read."""
    name, post_ask = local.create_study(document())[0]["name"], local.post_ask

    def interrupted(*args: Any, **options: Any) -> Any:
        post_ask(*args, **options)
        monkeypatch.setattr(local, "post_ask", post_ask)
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "post_ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.ask(name, wait_seconds=10)
    assert local.trial(name, 0)["awaiting_attempt"]
    with local.ask(name) as trial:
        assert (trial.number, trial.attempt) == (0, 2)
        trial.complete(1.0)


def test_what_a_script_gives_wrongly_is_named(local: Client) -> None:
    given: dict[str, Any] = {"name": "wrong", "n_trials": 1, "direction": "minimize"}
    for start in (local.launch, lambda **fields: local.optimize(len, **fields)):
        with pytest.raises(TypeError, match=r"space\.x: must be a FloatRange, .* got tuple"):
            start(**given, space={"x": (0, 1)})
        with pytest.raises(TypeError, match=r"sampler: give its name, .* got object"):
            start(**given, sampler=object())
    with pytest.raises(ValueError, match="n_parallel must be 1 or more, got 0"):
        local.optimize(len, **given, n_parallel=0)


def test_a_trial_that_was_taken_away_is_dropped(local: Client) -> None:
    local.create_study(sent := document())

    def report_after_the_end() -> None:
        with local.ask(sent["name"]) as trial:
            local.post_trial(sent["name"], 0, "complete", trial_told(trial, value=1.0))
            trial.report(1.0, 0)

    with pytest.raises(ApiError, match="has ended"):
        report_after_the_end()
    assert local.trial(sent["name"], 0)["state"] == "COMPLETE"


def test_a_report_that_is_refused_fails_the_trial(local: Client) -> None:
    local.create_study(sent := document(max_steps=1))
    with pytest.raises(ApiError, match="max_steps"), local.ask(sent["name"]) as trial:
        trial.report(1.0, 1)
    assert local.trial(sent["name"], 0)["reason"] == "objective_error"


def test_a_value_that_is_missing_can_be_told_and_fails_what_nobody_mends(local: Client) -> None:
    local.create_study(sent := document())
    with local.ask(sent["name"]) as trial:
        with pytest.raises(ApiError, match="value: is required") as refused:
            trial.complete()
        assert (refused.value.status, refused.value.code) == (422, "invalid_result")
        trial.complete(0.5)
    with pytest.raises(ApiError, match="value: is required"), local.ask(sent["name"]):
        pass
    with pytest.raises(ApiError, match="got 2"), local.ask(sent["name"]) as trial:
        trial.complete([1.0, 2.0])
    found = [(one["state"], one["reason"]) for one in local.trials(sent["name"])]
    assert found == [("COMPLETE", None), *[("FAIL", "invalid_result")] * 2]


def trial_told(trial: AskedTrial, **fields: Any) -> dict[str, Any]:
    return {"token": trial.link._token, **fields}


@objective(direction="minimize", space={"x": FloatRange(low=0, high=1)}, max_steps=2)
def bowl(trial: Trial) -> float:
    for step in range(2):
        trial.report(trial.params["x"] + step, step)
        if trial.should_prune():
            raise TrialPruned
    return float(trial.params["x"])


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_a_local_function_is_optimized(local: Client, n_parallel: int, tmp_path: Path) -> None:
    name = f"s-{uuid.uuid4().hex}"
    options = {"n_parallel": n_parallel, "sampler": "random", "checkpoints": tmp_path}
    study = local.optimize(bowl, name=name, n_trials=8, **options)
    assert study["state"] == "completed"
    assert study["max_steps"] == 2
    found = list(local.trials(name))
    assert [trial["number"] for trial in found] == list(range(8))
    assert min(t["value"] for t in found if t["state"] == "COMPLETE") == study["best"]["value"]
    assert local.optimize(bowl, name=name, n_trials=8, **options) == study  # nothing is left


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_optimizing_is_broken_off_and_goes_on(
    local: Client, error: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    name, calls = f"s-{uuid.uuid4().hex}", []

    def breaking(trial: Trial) -> float:
        calls.append(trial.number)
        if len(calls) == 2:
            raise error
        return trial.suggest_float("x", 0, 1)

    options = {"name": name, "n_trials": 4, "direction": "minimize", "progress": True}
    with pytest.raises(error):
        local.optimize(breaking, **options)
    study = local.optimize(breaking, **options)
    assert study["state"] == "completed"
    is_given_back = error is KeyboardInterrupt
    assert calls == ([0, 1, 1, 2, 3] if is_given_back else [0, 1, 2, 3])
    assert study["counts"]["FAIL"] == (0 if is_given_back else 1)
    assert "4/4" in capsys.readouterr().out


def test_an_exception_that_is_named_goes_no_further(local: Client) -> None:
    def failing(trial: Trial) -> float:
        if trial.number % 2:
            raise KeyError("odd")
        return 1.0

    name = f"s-{uuid.uuid4().hex}"
    study = local.optimize(
        failing, name=name, n_trials=4, direction="minimize", n_parallel=2, catch=(KeyError,)
    )
    assert (study["counts"]["COMPLETE"], study["counts"]["FAIL"]) == (2, 2)


def test_a_thread_keeps_the_lease_of_a_trial_in_a_with(
    local: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    post = local.post_trial
    monkeypatch.setattr(local, "post_trial", lambda *said: (sent.append(said[2]), post(*said))[1])
    local.create_study(asked := document(n_trials=1))
    with local.ask(asked["name"]) as trial:
        assert "renew" not in sent
        trial.complete(1.0)
    local.create_study(asked := document(n_trials=1))
    trial = local.ask(asked["name"])
    trial._lease_seconds = 0.03
    with trial:
        give_up_at = time.monotonic() + 20
        while sent.count("renew") < 2:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        trial.complete(1.0)


def test_asking_goes_on_while_the_service_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from hpo.errors import Unavailable

    answers: list[Any] = [Unavailable(), Unavailable(), "found"]

    def call() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pauses: list[float] = []
    assert hpo.ask.insist(call, pause=pauses.append) == "found"
    assert pauses == [0.1, 0.2]
    with pytest.raises(Unavailable):
        hpo.ask.insist(lambda: (_ for _ in ()).throw(Unavailable()), seconds=0)


def test_a_program_that_ends_gives_its_trials_back(local: Client) -> None:
    local.create_study(sent := document())
    with local.ask(sent["name"]) as trial:
        trial.link.is_stopped = True
        with pytest.raises(TrialReleased):
            trial.report(1.0, 0)
        trial.release()
    assert local.trial(sent["name"], 0)["awaiting_attempt"]
