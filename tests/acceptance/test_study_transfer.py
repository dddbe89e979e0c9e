"""Studies are exported, imported, cloned, warm-started and adopted by commands."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import optuna

from tests.acceptance.conftest import HPO, Service

SPACE = {"batch_size": {"type": "categorical", "choices": [64, 128]}}
OTHERS = {"batch_size": {"type": "categorical", "choices": [128, 256]}}


def hpo_study(service: Service, *words: str) -> str:
    """What `hpo study …` prints."""
    command = [HPO, "study", *words, "--url", service.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_study(service: Service) -> list[dict[str, Any]]:
    """A study for ask and tell with two trials, of which 128 was the better; the trials."""
    document = {"name": "old", "direction": "minimize", "space": SPACE, "n_trials": 2}
    service.client.create_study({**document, "sampler": "grid"})
    for _ in range(2):
        with service.client.ask("old") as trial:
            trial.complete(1.0 / trial.params["batch_size"])
    return [service.client.trial("old", number) for number in range(2)]


def test_a_study_goes_out_and_comes_back(sqlite_service: Service, tmp_path: Path) -> None:
    service, trials = sqlite_service, told_study(sqlite_service)
    file, table = tmp_path / "old.json", tmp_path / "old.csv"
    assert f"Study old is in {file}." in hpo_study(service, "export", "old", "-o", str(file))
    assert (
        json.loads(hpo_study(service, "export", "old", "-o", "-"))["trials"]
        == (json.loads(file.read_bytes())["trials"])
    )
    hpo_study(service, "export", "old", "-o", str(table))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [float(row["value"]) for row in rows] == [trial["value"] for trial in trials]
    words = hpo_study(service, "import", str(file), "--name", "copy")
    assert "Study copy is completed: 2 trials, 0 of them to be tried." in words
    assert [service.client.trial("copy", number) for number in range(2)] == trials


def test_a_clone_and_a_warm_start_take_what_fits(sqlite_service: Service, tmp_path: Path) -> None:
    service = sqlite_service
    told_study(service)
    changes = tmp_path / "changes.yaml"
    changes.write_text(json.dumps({"space": OTHERS, "sampler": "random", "n_trials": 5}))
    words = hpo_study(service, "clone", "old", "new", "-f", str(changes), "--set", "a=1")
    assert "1 trials imported, 1 did not fit (by parameter: batch_size 1)" in words
    assert service.client.study("new")["settings"] == {"a": 1}
    words = hpo_study(service, "warm-start", "new", "old", "--best", "2")
    assert "enqueued from old: 1; others did not fit (by parameter: batch_size 1)." in words
    with service.client.ask("new") as trial:
        assert (trial.number, trial.params) == (1, {"batch_size": 128})
        trial.complete(0.0)


def test_a_study_of_plain_optuna_is_adopted(sqlite_service: Service, sqlite_url: str) -> None:
    service = sqlite_service
    theirs = optuna.create_study(study_name="theirs", storage=sqlite_url)
    theirs.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    words = ["--name", "theirs", "--direction", "minimize", "--n-trials", "2"]
    told = hpo_study(service, "adopt", *words)
    assert "Study theirs is running: 3 trials found; 0 of 2 new ones started." in told
    assert service.client.best("theirs")["value"] == theirs.best_value
