"""Each public method of the Python client once, against one service that it starts itself."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import hpo
from hpo.access import Role
from hpo.ask import AskedTrial
from hpo.client import ApiError

OBJECTIVE = '''
from hpo import FloatRange, Trial, TrialPruned, objective

BOWL = {"x": FloatRange(low=-1, high=1), "y": FloatRange(low=-1, high=1)}


@objective(direction="minimize", space=BOWL)
def small(trial: Trial) -> float:
    """A bowl whose trials leave a model and a line behind."""
    print("a line of trial", trial.number)
    value = trial.params["x"] ** 2 + trial.params["y"] ** 2
    trial.report(value, 0)
    trial.save_model(lambda path: path.write_text(str(trial.number)))
    return value
'''
X = {"x": {"type": "float", "low": 0.0, "high": 1.0}}


def public(kind: type) -> Iterator[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


def inventory() -> set[str]:
    kinds = (hpo.Client, hpo.Study, AskedTrial)
    return {f"{kind.__name__}.{name}" for kind in kinds for name in public(kind)}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The methods and properties that have been used."""
    seen: set[str] = set()
    for kind in (hpo.Client, hpo.Study, AskedTrial):
        for name in public(kind):
            member = inspect.getattr_static(kind, name)
            monkeypatch.setattr(kind, name, noting(member, f"{kind.__name__}.{name}", seen))
    return seen


def noting(member: Any, name: str, seen: set[str]) -> Any:
    """The same member, which notes that it was used."""
    if isinstance(member, property):
        return property(noting(member.fget, name, seen))
    if isinstance(member, classmethod):
        return classmethod(noting(member.__func__, name, seen))

    @functools.wraps(member)
    def noted(*args: Any, **options: Any) -> Any:
        seen.add(name)
        return member(*args, **options)

    return noted


def test_each_method_does_what_it_says(called: set[str], tmp_path: Path) -> None:
    (tmp_path / "small_models.py").write_text(OBJECTIVE)
    options: dict[str, Any] = {"code": tmp_path, "allow": ["small_models"], "devices": "cpu"}
    with hpo.Client.local(tmp_path / "data", slots=1, grace_seconds=1, **options) as client:
        _look_at_the_service(client)
        study = _run_a_study(client)
        _read_results(client, study, tmp_path)
        _steer(client)
        _ask_and_tell(client)
        _work_by_documents(client)
        _optimize(client)
        _change_trials(client, study)
        _label_and_archive(client, study)
        _copy(client, tmp_path)
        _use_tokens(client)
    assert client.is_closed
    client.close()  # once more does nothing
    assert inventory() - called == set()


def _look_at_the_service(client: hpo.Client) -> None:
    client.ready()
    (worker,) = client.workers()
    assert worker["is_alive"]
    (offer,) = client.objectives()
    assert (offer["objective"], offer["direction"]) == ("small_models:small", "minimize")


def _run_a_study(client: hpo.Client) -> hpo.Study:
    with pytest.raises(ApiError, match="no study 'bowl'"):
        client.open("bowl")
    study = client.launch(
        name="bowl", objective="small_models:small", n_trials=6, sampler="random", pruner="none"
    )
    assert study.wait(progress=False).state == "completed"
    assert client.open("bowl").document == client.study("bowl") == study.refresh().document
    assert client.wait("bowl")["state"] == client.study_when("bowl", [], 0)["state"] == "completed"
    assert [found["name"] for found in client.studies(state="completed")] == ["bowl"]
    return study


def _read_results(client: hpo.Client, study: hpo.Study, folder: Path) -> None:
    best = study.best
    assert best == client.best(study.name)
    assert best is not None
    assert (best["value"], best["params"]) == (study.best_value, study.best_params)
    assert client.trial("bowl", best["number"])["value"] == best["value"]
    assert [trial["number"] for trial in study.trials("COMPLETE")] == list(range(6))
    for number, file in ((None, "best.pt"), (best["number"], "again.pt")):
        path = study.download_model(folder / file, number)
        assert path.read_text() == str(best["number"])
    table = study.dataframe()
    assert list(table.index) == list(range(6))
    assert table["value"].idxmin() == best["number"]
    assert table.loc[best["number"], "params.x"] == best["params"]["x"]
    assert study.dataframe("PRUNED").empty
    (chunk,) = client.log("bowl", 3)
    assert chunk["text"].startswith("a line of trial 3\n")
    shares = study.importances()["importances"]
    assert sum(share["importance"] for share in shares) == pytest.approx(1)
    assert study.history(by="time")["improvements"][-1]["number"] == best["number"]
    assert [trial["number"] for trial in study.pareto()["trials"]] == [best["number"]]
    assert study.plot("history").png().startswith(b"\x89PNG")
    assert study.trial(best["number"])["value"] == best["value"]
    assert (study.pruning()["n_complete"], study.pruning()["n_pruned"]) == (6, 0)
    told = list(study.events(after="0", until="now", kinds=("trial_ended",)))
    assert [event.number for event in told] == list(range(6))
    with client.event_source("bowl", {"after": "0", "until": "now"}) as source:
        assert {"trial_started", "end"} <= {event.event for event in source}


def asked(client: hpo.Client, name: str, **fields: Any) -> hpo.Study:
    """A study whose trials this program tries."""
    return client.launch(name=name, n_trials=9, direction="minimize", **fields)


def _steer(client: hpo.Client) -> None:
    study = asked(client, "steered", space=X)
    assert study.pause().state == "paused"
    assert study.resume().document["state"] == "running"
    assert study.enqueue({"x": 0.5}, {"x": 0.25}) == [0, 1]
    assert study.extend(n_trials=20, priority=3).document["priority"] == 3
    document, etag = client.study_and_etag("steered")
    assert document["budget"]["n_trials"] == 20
    client.amend_study("steered", {"timeout_seconds": 60}, etag=etag)
    with pytest.raises(ApiError, match="changed since") as stale:
        client.amend_study("steered", {"timeout_seconds": None}, etag=etag)
    assert stale.value.code == "precondition_failed"
    assert study.stop().document["state"] == "stopped"
    assert asked(client, "cancelled").cancel(now=True).document["state"] == "stopped"


def _ask_and_tell(client: hpo.Client) -> None:
    study = asked(client, "asked")
    with study.ask() as trial:  # told by its last report
        trial.start(None)
        trial.set_uncounted(True)
        trial.report(trial.suggest_float("x", 0, 1), 0, accuracy=0.5)
        assert [trial.should_prune(), trial.should_stop, trial.is_interrupted] == [False] * 3
        assert trial.decision.verdict == "continue"
        assert trial.suggest_int("n", 1, 3) in (1, 2, 3)
        assert trial.suggest_categorical("kind", ["a", "b"]) in ("a", "b")
        trial.set_user_attr("note", [1])
        trial.set_constraint("limit", -1.0)
    told = client.trial("asked", 0)
    assert (told["state"], told["user_attrs"], told["constraints"]) == (
        *("COMPLETE", {"note": [1]}),
        {"limit": -1.0},
    )
    assert study.ask().complete(0.5)["state"] == "COMPLETE"
    assert study.ask().prune()["state"] == "PRUNED"
    assert study.ask().fail("no luck")["state"] == "FAIL"
    given_back = study.ask()
    given_back.release()
    with contextlib.suppress(ZeroDivisionError), study.ask() as again:
        assert (again.number, again.attempt) == (given_back.number, given_back.attempt + 1)
        again.save_model(lambda path: path.write_text("of no use to the service"))
        raise ZeroDivisionError("a test")
    states = [trial["state"] for trial in study.trials()]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "FAIL"]


def _work_by_documents(client: hpo.Client) -> None:
    made, is_new = client.create_study({"name": "plain", "n_trials": 1, "direction": "minimize"})
    assert (made["name"], is_new) == ("plain", True)
    (trial,) = client.post_ask("plain", {"worker": "me"})["trials"]
    told = {"token": trial["token"], "value": float("nan")}
    settled = client.post_trial("plain", trial["number"], "complete", told)
    assert settled is not None
    assert (settled["state"], settled["reason"]) == ("PRUNED", "diverged")


def _optimize(client: hpo.Client) -> None:
    done = client.optimize(
        lambda trial: trial.suggest_float("x", -5, 5) ** 2,
        name="optimized",
        n_trials=4,
        direction="minimize",
        n_parallel=2,
    )
    assert (done["state"], done["counts"]["COMPLETE"]) == ("completed", 4)


def _change_trials(client: hpo.Client, study: hpo.Study) -> None:
    assert study.best is not None
    number = study.best["number"]
    assert client.exclude_trial("bowl", number, "a mistake")["exclusion"]["reason"] == "a mistake"
    assert study.best["number"] != number
    assert client.include_trial("bowl", number)["exclusion"] is None
    assert study.best["number"] == number
    (waiting,) = client.enqueue("asked", [{"params": {"x": 0.5}}])
    assert client.cancel_trial("asked", waiting)["reason"] == "cancelled"
    again = client.requeue("asked", waiting)
    assert client.trial("asked", again)["enqueued"] == {"x": 0.5}


def _label_and_archive(client: hpo.Client, study: hpo.Study) -> None:
    client.amend_study(study.name, {"tags": ["paper"], "notes": "Keep it."})
    assert [found["name"] for found in client.studies(tag="paper")] == ["bowl"]
    assert client.archive_study("bowl")["archived_at"]
    assert list(client.studies(tag="paper")) == []
    assert client.unarchive_study("bowl")["archived_at"] is None


def _copy(client: hpo.Client, folder: Path) -> None:
    file = client.export_study("bowl", folder / "bowl.json")
    with client.exported("bowl") as pieces:
        assert json.loads(b"".join(pieces))["trials"] == json.loads(file.read_text())["trials"]
    assert client.import_study(file, name="copy")["n_trials"] == 6
    assert next(client.trials("copy"))["params"] == client.trial("bowl", 0)["params"]
    made = client.clone_study("asked", "clone", {"n_trials": 12})
    assert made["n_imported"] == 3
    started = client.warm_start("clone", "asked", k=1)
    assert len(started["numbers"]) == 1
    theirs = optuna.create_study(
        study_name="theirs", storage=f"sqlite:///{folder / 'data' / 'hpo.db'}"
    )
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    adopted = client.adopt_study({"name": "theirs", "n_trials": 1, "direction": "minimize"})
    assert adopted["n_trials"] == 2
    assert client.delete_study("copy")["name"] == "copy"
    with pytest.raises(ApiError, match="no study 'copy'"):
        client.study("copy")


def _use_tokens(client: hpo.Client) -> None:
    """Last, for from now on the service asks for one."""
    made = client.create_token("me", Role.ADMIN)
    with pytest.raises(ApiError, match="asks for a token"):
        client.tokens()
    with hpo.Client(client.url, token=made["token"]) as admin:
        admin.create_token("other", Role.READER)
        admin.revoke_token("other")
        found: Callable[[str], bool] = {
            token["name"]: token["revoked_at"] is not None for token in admin.tokens()
        }.__getitem__
        assert (found("me"), found("other")) == (False, True)
