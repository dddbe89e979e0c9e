"""Studies as objects, on a running service, and the service that a client starts for itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import hpo
from hpo.client import ApiError
from hpo.listening import StudyFailed
from hpo.local import LocalServiceFailed
from tests.acceptance.conftest import Service, await_fact, is_ready
from tests.pages import block_with

ROOT = Path(__file__).resolve().parents[2]
BOWL = {"x": hpo.FloatRange(low=-5, high=5), "y": {"type": "float", "low": -5, "high": 5}}
USER_SCRIPT = """
import hpo

with hpo.Client("http://localhost:8080") as client:
    study: hpo.Study = client.launch(
        name="bowl",
        objective="objectives.synthetic:quadratic",
        n_trials=20,
        space={"x": hpo.FloatRange(low=-5, high=5), "k": {"type": "int", "low": 1, "high": 3}},
        direction=hpo.Direction.MINIMIZE,
        settings={"steps": 3},
        sampler={"name": "tpe", "n_startup_trials": 5},
        tags=["paper"],
    )
    value: float | None = study.wait(timeout_seconds=60).best_value
    numbers: list[int] = study.enqueue({"x": 1.0}, extend=True)
    for event in study.events(after="0", until="now"):
        print(event.kind, event.number)
    with study.pause().resume().ask() as trial:
        trial.report(trial.suggest_float("x", 0, 1), 0)
"""


def launched(service: Service, **fields: Any) -> hpo.Study:
    fixed = {"objective": "objectives.synthetic:quadratic", "direction": "minimize", "space": BOWL}
    search = {"n_trials": 6, "sampler": "random", "pruner": "none", "seed": 1}
    document = {"name": "bowl", "settings": {"steps": 3}, **fixed, **search, **fields}
    return service.client.launch(**document)


def asked(service: Service) -> hpo.Study:
    """A study whose only trial has been tried here."""
    study = service.client.launch(name="asked", n_trials=1, direction="minimize", space=BOWL)
    with study.ask() as trial:
        trial.report(trial.params["x"] ** 2, 0)
    return study


def test_a_study_is_launched_steered_and_read(
    sqlite_service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service = sqlite_service
    study = launched(service)
    assert repr(study) == "<Study bowl: running, 0/6 trials (none)>"
    assert launched(service).document["uuid"] == study.document["uuid"]
    assert (study.best, study.best_params, study.best_value) == (None, None, None)
    assert study.pause().document["state"] == study.state == "paused"
    with pytest.raises(TimeoutError, match="bowl is paused after 0"):
        study.wait(progress=False, timeout_seconds=0)
    (number,) = study.enqueue({"x": 1, "y": -2})
    assert study.extend(n_trials=7).resume().state == "running"

    service.start_worker("--allow", "objectives.synthetic")
    service.api.send_signal(signal.SIGKILL)
    service.api.wait()
    service.start_api()
    assert study.wait(check=True) is study
    assert "7/7 best 0, completed" in capsys.readouterr().out
    assert study.best_params == {"x": 1, "y": -2}
    assert study.best is not None
    assert (study.best["number"], study.best_value) == (number, 0.0)
    assert repr(study) == "<Study bowl: completed, 7/7 trials (7 COMPLETE), best 0>"
    assert [trial["number"] for trial in study.trials()] == list(range(7))
    assert study.trials("PRUNED") == []
    ended = [event.number for event in study.events(after="0", until="now", kinds=["trial_ended"])]
    assert sorted(filter(lambda n: n is not None, ended)) == list(range(7))
    shares = [found["importance"] for found in study.importances()["importances"]]
    assert sum(shares) == pytest.approx(1)
    assert study.history()["improvements"][-1]["number"] == number
    assert [trial["number"] for trial in study.pareto()["trials"]] == [number]
    assert study.pruning()["n_complete"] == 7

    failing = launched(service, name="failing", settings={"steps": "many"}, max_failed_trials=1)
    assert failing.wait(progress=False).state == "failed"
    with pytest.raises(StudyFailed, match="study failing failed: "):
        failing.wait(progress=False, check=True)


def test_refusals_carry_the_problem_document(
    sqlite_service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = sqlite_service.client
    with pytest.raises(ApiError) as missing:
        client.open("nothing")
    assert missing.value.problem["status"] == missing.value.status == 404
    study = launched(sqlite_service)
    assert client.open("bowl").document["uuid"] == study.document["uuid"]
    with pytest.raises(ApiError, match="bowl") as other:
        launched(sqlite_service, settings={"steps": 4})
    assert other.value.code == "study_exists"
    assert "settings" in str(other.value.problem["difference"])
    with pytest.raises(ApiError, match=r"x: .*5"):
        study.enqueue({"x": 9})
    with pytest.raises(ValueError, match="give one of n_trials"):
        study.extend()
    with pytest.raises(hpo.HpoError, match="no best trial yet"):
        study.download_model(tmp_path / "best.pt")
    assert study.cancel(now=True).document["state"] == "stopped"
    done = asked(sqlite_service)
    assert done.wait(progress=False).state == "completed"
    with pytest.raises(ApiError, match="no model"):
        done.download_model(tmp_path / "best.pt")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        done.dataframe()
    with hpo.Client(sqlite_service.url) as other_client:
        closed = other_client.open("asked")
    for call in (closed.refresh, closed.wait, closed.events, lambda: other_client.open("asked")):
        with pytest.raises(hpo.HpoError, match="has been closed; make another"):
            call()


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_trials_are_a_table(sqlite_service: Service) -> None:
    study = asked(sqlite_service)
    table = study.dataframe()
    (trial,) = study.trials()
    assert list(table.index) == [0]
    assert table.loc[0, "params.x"] == trial["params"]["x"]
    assert table.loc[0, "value"] == trial["value"]
    assert study.dataframe("PRUNED").empty


def test_the_readmes_program_has_a_service_of_its_own(tmp_path: Path) -> None:
    program = block_with("py", "Client.local(") + "print(client.url)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    *_, best, pruned, url = done.stdout.splitlines()
    assert re.fullmatch(r"\d\S* {'x': \S+, 'y': \S+}", best)
    assert re.fullmatch(r"\d+ of 20 trials were pruned", pruned)
    with hpo.Client(url) as client:
        assert not is_ready(client)
    log = (tmp_path / "hpo-data" / "up.log").read_text(encoding="utf-8")
    assert log.endswith("The service has ended; its studies are kept.\n")


def test_a_local_service_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import hpo, os, signal\n"
        "options = {'settings': {'steps': 2}, 'allow': ['objectives.synthetic']}\n"
        "client = hpo.Client.local('data', slots=1, **options)\n"
        "client.ready()\n"
        "print(client.url, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert done.returncode == -signal.SIGKILL
    log = tmp_path / "data" / "up.log"
    await_fact(lambda: "The service has ended" in log.read_text(), what="for the end")
    with hpo.Client(done.stdout.strip()) as client:
        assert not is_ready(client)


def test_a_local_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        LocalServiceFailed, match=r"did not start: No such option: --slotz .*; see .*up\.log"
    ):
        hpo.Client.local(tmp_path / "data", slotz=1)
    assert os.listdir(tmp_path / "data") == ["up.log"]


def test_a_typed_script_passes_mypy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USER_SCRIPT, encoding="utf-8")
    checked = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*checked, str(script)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    wrong = USER_SCRIPT.replace("study.pause()", "study.paused()")
    script.write_text(wrong, encoding="utf-8")
    done = subprocess.run([*checked, str(script)], capture_output=True, text=True, cwd=ROOT)
    assert 'has no attribute "paused"' in done.stdout
