"""The demo, and what plain Optuna finds in its file afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

pytestmark = pytest.mark.alone


@pytest.mark.filterwarnings("default")  # plain Optuna's own
def test_the_demo_ends_with_good_parameters_that_plain_optuna_finds_too(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hpo.cli", "demo", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    assert time.monotonic() - begin < 180
    shown = re.search(r"Validation accuracy: ([\d.]+)", done.stdout)
    spared = re.search(
        r"(\d+) of 20 trials were pruned; that saved (\d+) of 400 epochs", done.stdout
    )
    assert shown is not None
    assert spared is not None
    assert float(shown[1]) >= 0.96
    assert int(spared[1]) >= 1
    assert int(spared[2]) >= 1
    assert re.search(r"Dashboard: http://127\.0\.0\.1:\d+/dashboard", done.stdout)

    (database,) = tmp_path.glob("demo-*/hpo.db")
    study = optuna.load_study(study_name="digits", storage=f"sqlite:///{database}")
    assert f"{study.best_value:.4f}" == shown[1]
    assert len(study.trials) == 20
    states = [trial.state for trial in study.trials]
    assert states.count(optuna.trial.TrialState.PRUNED) == int(spared[1])
    for name, value in study.best_params.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        assert re.search(rf"│ {name} +│ +{re.escape(text)} │", done.stdout), name
