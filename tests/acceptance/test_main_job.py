"""The main job with real processes: launched by REST, trained, pruned, and read by others."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import optuna
import pytest
from optuna.storages import RDBStorage

from hpo.client import ApiError
from tests.acceptance.conftest import Service, await_fact

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

QUADRATIC = {
    "name": "quadratic",
    "objective": "objectives.synthetic:quadratic",
    "n_trials": 24,
    "seed": 7,
    "sampler": "random",
}


def trials_of(service: Service, study: str) -> list[dict[str, Any]]:
    return list(service.client.trials(study, curves=True))


def test_two_workers_run_exactly_the_trials_asked_for(service: Service) -> None:
    workers = [service.start_worker("--slots", "2", "--devices", "cpu") for _ in range(2)]
    study, is_new = service.client.create_study(QUADRATIC)
    assert is_new
    study = service.await_end("quadratic")
    assert study["state"] == "completed"
    trials = trials_of(service, "quadratic")
    assert [trial["number"] for trial in trials] == list(range(24))
    assert all(len(trial["attempts"]) == 1 for trial in trials), "a trial ran twice"
    assert {trial["state"] for trial in trials} == {"COMPLETE", "PRUNED"}
    assert len({trial["worker"] for trial in trials}) == 2
    assert len({(trial["params"]["x"], trial["params"]["y"]) for trial in trials}) == 24
    for trial in (trial for trial in trials if trial["state"] == "PRUNED"):
        facts = trial["prune"]
        assert facts["value"] > facts["median"]
        assert facts["n_trials"] >= 5
        assert facts["step"] == trial["last_step"] == trial["curve"][-1]["step"]
    assert [worker.poll() for worker in workers] == [None, None]
    best = service.client.best("quadratic")
    complete = [trial["value"] for trial in trials if trial["state"] == "COMPLETE"]
    assert best["value"] == min(complete)


def test_a_killed_workers_trial_is_finished_by_another(service: Service) -> None:
    """The lease of a dead worker is waited for in the contract tests; here it is let run out."""
    doomed = service.start_worker("--slots", "1", "--devices", "cpu")
    settings = {"steps": 200, "sleep_seconds": 0.05}
    service.client.create_study(
        QUADRATIC | {"n_trials": 1, "settings": settings, "retry_backoff_seconds": 0}
    )
    await_fact(lambda: any(t["last_step"] for t in trials_of(service, "quadratic")))
    os.kill(doomed.pid, signal.SIGKILL)
    doomed.wait()
    service.start_worker("--slots", "1", "--devices", "cpu")
    study = service.await_end("quadratic")
    (trial,) = trials_of(service, "quadratic")
    assert (study["state"], trial["state"], trial["attempt"]) == ("completed", "COMPLETE", 2)
    assert [attempt["reason"] for attempt in trial["attempts"]] == ["lost", None]
    assert len(trial["curve"]) == 200


def test_sigterm_gives_trials_back_and_the_worker_ends_well(sqlite_service: Service) -> None:
    service = sqlite_service
    worker = service.start_worker("--slots", "1", "--devices", "cpu", "--grace-seconds", "20")
    settings = {"epochs": 400, "checkpoint_seconds": 0}
    service.client.create_study(
        {
            "name": "digits",
            "objective": "objectives.digits:mlp",
            "n_trials": 1,
            "seed": 1,
            "settings": settings,
        }
    )
    await_fact(lambda: any(t["last_step"] for t in trials_of(service, "digits")))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=30) == 0
    (trial,) = trials_of(service, "digits")
    assert (trial["state"], trial["awaiting_attempt"]) == ("RUNNING", True)
    assert [attempt["outcome"] for attempt in trial["attempts"]] == ["released"]
    service.start_worker("--slots", "1", "--devices", "cpu")
    resumed = await_fact(
        lambda: next((t for t in trials_of(service, "digits") if len(t["attempts"]) == 2), None)
    )
    await_fact(
        lambda: service.client.trial("digits", 0)["attempts"][1]["resumed_from_step"] is not None
    )
    last_step = service.client.trial("digits", 0)["attempts"][1]["resumed_from_step"]
    assert last_step >= trial["last_step"] - 1
    assert resumed["params"] == trial["params"]


def test_an_unchanged_optuna_objective_runs_from_a_code_folder(
    sqlite_service: Service, tmp_path: Path
) -> None:
    service = sqlite_service
    code = tmp_path / "project"
    code.mkdir()
    (code / "mine.py").write_text(
        "import optuna\n\n\n"
        "def objective(trial):\n"
        "    x = trial.suggest_float('x', -10, 10)\n"
        "    kind = trial.suggest_categorical('kind', ['a', 'b'])\n"
        "    for step in range(5):\n"
        "        trial.report((x - 2) ** 2 + 5 - step, step)\n"
        "        if trial.should_prune():\n"
        "            raise optuna.TrialPruned()\n"
        "    print('kind', kind)\n"
        "    return (x - 2) ** 2\n"
    )
    document = {"name": "mine", "objective": "mine:objective", "n_trials": 12, "seed": 3}
    service.start_worker("--slots", "1", "--devices", "cpu")
    with pytest.raises(ApiError) as missing:
        service.client.create_study(document)
    assert "direction" in str(missing.value)
    study, _ = service.client.create_study(document | {"direction": "minimize"})
    assert "--allow" in study["blocked"]
    service.start_worker("--slots", "2", "--devices", "cpu", "--code", str(code), "--allow", "mine")
    study = service.await_end("mine")
    assert (study["state"], study["blocked"]) == ("completed", None)
    trials = trials_of(service, "mine")
    assert len(trials) == 12
    assert all(set(trial["params"]) == {"x", "kind"} for trial in trials)
    complete = next(trial for trial in trials if trial["state"] == "COMPLETE")
    log = "".join(piece["text"] for piece in service.client.log("mine", complete["number"]))
    assert f"kind {complete['params']['kind']}" in log


def test_plain_optuna_and_the_dashboard_see_the_same_study(
    sqlite_service: Service, sqlite_url: str
) -> None:
    service = sqlite_service
    service.start_worker("--slots", "2", "--devices", "cpu")
    service.client.create_study(QUADRATIC)
    service.await_end("quadratic")
    storage = RDBStorage(sqlite_url)
    study = optuna.load_study(study_name="quadratic", storage=storage)
    ours = trials_of(service, "quadratic")
    assert [t.state.name for t in study.trials] == [t["state"] for t in ours]
    assert [t.params for t in study.trials] == [t["params"] for t in ours]
    assert [t.value for t in study.trials] == [t["value"] for t in ours]
    assert [t.intermediate_values for t in study.trials] == [
        {point["step"]: point["value"] for point in t["curve"]} for t in ours
    ]
    best = service.client.best("quadratic")
    assert (study.best_trial.number, study.best_params) == (best["number"], best["params"])
    storage.remove_session()
    storage.engine.dispose()
    # The dashboard has a process of its own, which begins with the first page.
    with httpx2.Client(base_url=service.url, follow_redirects=True, timeout=60) as browser:
        for path in ("/dashboard", "/dashboard/"):
            page = browser.get(path)
            assert page.status_code == 200
            scripts = re.findall(r'src="([^"]+)"', page.text)
            assert scripts
            assert [browser.get(script).status_code for script in scripts] == [200] * len(scripts)
        refused = browser.delete("/api/studies/1")
        assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
    assert service.client.study("quadratic")["n_started"] == 24


@pytest.mark.skipif(
    not FASHION_MNIST.is_dir(), reason="apt install dataset-fashion-mnist: the data is not here"
)
def test_fashion_mnist_trains_in_bf16_and_fp32(sqlite_service: Service) -> None:
    service = sqlite_service
    service.start_worker("--slots", "2", "--devices", "cpu")
    offered = {found["objective"]: found for found in service.client.objectives()}
    space = offered["objectives.images:cnn"]["space"]
    space["precision"] = {"type": "categorical", "choices": ["bf16", "fp32"]}
    service.client.create_study(
        {
            "name": "images",
            "objective": "objectives.images:cnn",
            "n_trials": 6,
            "seed": 5,
            "space": space,
            "settings": {"epochs": 3, "train_size": 10_000},
            "pruner": "none",
        }
    )
    study = service.await_end("images")
    trials = trials_of(service, "images")
    assert study["state"] == "completed", study["reason"]
    assert {trial["params"]["precision"] for trial in trials} == {"bf16", "fp32"}
    assert study["best"]["value"] >= 0.80
    for trial in trials:
        assert trial["user_attrs"]["precision"] == trial["params"]["precision"]
