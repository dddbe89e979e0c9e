"""Each command of the command line once, against one running service with one worker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import typer.main

import hpo.cli
from hpo.cli.completion import study_names
from tests.acceptance.conftest import Service

Call = Callable[..., list[Any]]

# These serve or measure until they are ended; tests of their own run them.
ELSEWHERE = {"up", "demo", "api", "dashboard", "worker", "amp-benchmark"}


def all_commands(group: Any = None, words: str = "") -> Iterator[str]:
    for name, command in (group or typer.main.get_command(hpo.cli.app)).commands.items():
        path = f"{words} {name}".strip()
        yield from all_commands(command, path) if hasattr(command, "commands") else [path]


@pytest.fixture
def called() -> set[str]:
    """The commands that were called."""
    return set()


@pytest.fixture
def call(
    called: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Calls a command as the console script does, with and without --json; answers its lines.

    With an exit code it answers what it refused by.
    """
    known = set(all_commands())

    def call(*words: str, as_json: bool = True, code: int = 0) -> list[Any]:
        called.add(" ".join(words[:2]) if " ".join(words[:2]) in known else words[0])
        monkeypatch.setattr(sys, "argv", ["hpo", *words, *(["--json"] if as_json else [])])
        with pytest.raises(SystemExit) as ended:
            hpo.cli.main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, (words, out, err)
        lines = (err if code else out).splitlines()
        return [json.loads(line) for line in lines] if as_json else lines

    return call


def test_each_command_does_what_it_says(
    sqlite_service: Service,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    called: set[str],
) -> None:
    service = sqlite_service
    monkeypatch.setenv("HPO_URL", service.url)
    service.start_worker("--slots", "2", "--devices", "cpu", "--grace-seconds", "1")
    call("db", "upgrade", "--db", f"sqlite:///{tmp_path / 'other.db'}")
    _look_at_workers(call)
    _run_a_study(call)
    assert study_names(service.url, "fir", patience_seconds=30) == ["first"]
    assert study_names(service.url, "", patience_seconds=30) == ["first"]
    _look_at_refusals(call)
    _look_at_results(call)
    _change_trials(service, call)
    _change_a_study(call)
    _copy_studies(call, tmp_path, sqlite_url)
    _use_tokens(call, monkeypatch)
    assert called == set(all_commands()) - ELSEWHERE


def _look_at_workers(call: Call) -> None:
    ((worker,),) = call("workers")
    assert worker["is_alive"]
    assert any(worker["name"] in line for line in call("workers", as_json=False))
    offers = {offer["objective"] for offer in call("objective", "list")[0]}
    assert "objectives.synthetic:quadratic" in offers
    assert call("objective", "check", "objectives.synthetic:quadratic")[0]["works"]


def _run_a_study(call: Call) -> None:
    objective = ("--objective", "objectives.synthetic:quadratic", "--pruner", "none")
    made = call("study", "create", "--name", "first", "--n-trials", "6", "--watch", *objective)
    assert (made[0]["state"], made[-1]["state"]) == ("running", "completed")
    assert [study["name"] for study in call("study", "list")[0]] == ["first"]
    assert len(call("study", "show", "first", "--trials")[0]["trials"]) == 6
    assert call("study", "watch", "first")[-1]["state"] == "completed"
    kinds = {event["kind"] for event in call("study", "events", "first", "--no-follow")}
    assert {"trial_started", "trial_ended"} <= kinds


def _look_at_refusals(call: Call) -> None:
    (missing,) = call("study", "show", "nothing", code=1)
    assert (missing["status"], missing["code"]) == (404, "not_found")
    other = ("--n-trials", "7", "--direction", "minimize")
    (exists,) = call("study", "create", "--name", "first", *other, code=1)
    assert (exists["status"], exists["code"]) == (409, "study_exists")
    assert exists["difference"]["n_trials"] == {"existing": 6, "requested": 7}
    (invalid,) = call("study", "extend", "first", "--timeout-seconds", "1e12", code=1)
    assert [fault["field"] for fault in invalid["errors"]] == ["timeout_seconds"]
    (late,) = call("study", "delete", "other", code=1)
    assert late["code"] == "not_found"


def _look_at_results(call: Call) -> None:
    (best,) = call("study", "best", "first")
    number = str(best["number"])
    assert call("study", "trial", "first", number)[0]["value"] == best["value"]
    shown = call("study", "trial", "first", number, as_json=False)
    assert any("COMPLETE" in line for line in shown)
    assert call("study", "log", "first", number, "--follow") == []
    assert call("study", "pareto", "first")[0]["trials"][0]["number"] == best["number"]
    assert {s["parameter"] for s in call("study", "importances", "first")[0]["importances"]} == {
        *("x", "y")
    }
    assert call("study", "history", "first")[0]["improvements"][-1]["value"] == best["value"]
    assert call("study", "pruning", "first")[0]["n_pruned"] == 0
    (found,) = call("study", "replicate", "first", "--seeds", "1", "--watch")
    assert len(found["trials"]) == 1


def _change_trials(service: Service, call: Call) -> None:
    assert call("study", "exclude", "first", "0", "--reason", "why")[0]["exclusion"]["reason"]
    assert call("study", "include", "first", "0")[0]["exclusion"] is None
    space = {"x": {"type": "float", "low": 0.0, "high": 1.0}}
    asked = {"name": "asked", "directions": ["minimize", "maximize"], "n_trials": 4}
    service.client.create_study({**asked, "space": space})
    with service.client.ask("asked") as trial:
        trial.complete([1.0, 2.0])
    service.client.post_ask("asked", {"lease_seconds": 600.0})  # trial 1, which runs from now on
    told = call("study", "cancel-trial", "asked", "1", as_json=False)
    assert told[0].endswith("or when none comes, after the API's --lease-seconds.")
    assert call("study", "requeue", "asked", "0")[0]["numbers"] == [2]
    assert call("study", "enqueue", "asked", "--param", "x=0.5")[0]["numbers"] == [3]
    assert call("study", "cancel-trial", "asked", "3")[0]["state"] == "FAIL"
    assert call("study", "best", "asked")[0]["trials"][0]["values"] == [1.0, 2.0]
    front = call("study", "best", "asked", as_json=False)
    assert any("value 1 (maximize)" in line for line in front)
    shown = call("study", "show", "asked", as_json=False)
    assert "Its best trials form a front: hpo study pareto asked" in shown


def _change_a_study(call: Call) -> None:
    assert call("study", "pause", "asked")[0]["state"] == "paused"
    assert call("study", "resume", "asked")[0]["state"] == "running"
    (extended,) = call("study", "extend", "asked", "--n-trials", "9", "--max-parallel-trials", "2")
    assert (extended["budget"]["n_trials"], extended["budget"]["max_parallel_trials"]) == (9, 2)
    assert call("study", "label", "asked", "--tag", "a")[0]["tags"] == ["a"]
    assert [study["name"] for study in call("study", "list", "--tag", "a")[0]] == ["asked"]
    assert call("study", "stop", "asked")[0]["state"] == "stopping"
    assert call("study", "cancel", "asked", "--now")[0]["state"] == "stopped"
    assert call("study", "archive", "asked")[0]["archived_at"]
    assert call("study", "unarchive", "asked")[0]["archived_at"] is None


def _copy_studies(call: Call, folder: Path, sqlite_url: str) -> None:
    (drawn,) = call("study", "plot", "first", "-o", str(folder / "first.png"))
    assert Path(drawn["file"]).read_bytes().startswith(b"\x89PNG")
    file = str(folder / "first.json")
    assert call("study", "export", "first", "-o", file)[0]["file"] == file
    (brought,) = call("study", "import", file, "--name", "copy")
    assert (brought["study"]["name"], brought["n_trials"]) == ("copy", 6)
    (cloned,) = call("study", "clone", "first", "second", "--no-trials")
    assert cloned["study"]["name"] == "second"
    assert len(call("study", "warm-start", "second", "first", "--best", "1", "--extend")[0]) > 0
    theirs = optuna.create_study(study_name="theirs", storage=sqlite_url)
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    words = ("--name", "theirs", "--direction", "minimize", "--n-trials", "2")
    assert call("study", "adopt", *words)[0]["n_trials"] == 1
    assert call("study", "delete", "copy", "--yes")[0]["name"] == "copy"


def _use_tokens(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last, for from now on the service asks for one."""
    (made,) = call("token", "create", "me", "--role", "admin")
    monkeypatch.setenv("HPO_TOKEN", made["token"])
    monkeypatch.delenv("HPO_TOKEN")
    (denied,) = call("study", "list", code=3)
    assert (denied["status"], denied["code"]) == (401, "unauthorized")
    assert "HPO_TOKEN" in denied["detail"]
    monkeypatch.setenv("HPO_TOKEN", made["token"])
    call("token", "create", "other", "--role", "reader")
    assert call("token", "revoke", "other") == [{"name": "other", "revoked": True}]
    revoked = {token["name"]: token["revoked_at"] is not None for token in call("token", "list")[0]}
    assert revoked == {"me": False, "other": True}
