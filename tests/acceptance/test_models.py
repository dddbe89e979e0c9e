"""The best weights of a study, from real trainings to a file, and replication, by the command."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from objectives.digits import mlp
from tests.acceptance.conftest import HPO, Service, await_fact, serve

STUDY = {
    "name": "digits",
    "objective": "objectives.digits:mlp",
    "n_trials": 3,
    "value_rule": "best",
    "seed": 5,
    "settings": {"epochs": 2},
    "pruner": "none",
}
LARGE = """
import os
from hpo import Trial

def large(trial: Trial) -> float:
    trial.save_model(lambda path: (path.touch(), os.truncate(path, 150_000_000)))
    return float(trial.attempt)
"""


def command(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HPO, "study", *words, "--url", service.url],
        cwd=service.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a study whose trials have trained."""
    folder = tmp_path_factory.mktemp("digits")
    services = serve(f"sqlite:///{folder / 'hpo.db'}", folder)
    service = next(services)
    service.start_worker("--devices", "cpu")
    service.client.create_study(STUDY)
    service.await_end("digits")
    yield service
    next(services, None)


def test_the_weights_that_were_downloaded_have_the_value(digits: Service) -> None:
    best = digits.client.best("digits")
    done = command(digits, "best", "digits", "--download")
    assert done.returncode == 0, done.stderr
    file = digits.folder / f"digits-{best['number']}.pt"
    assert f"Its model is in {file.name}." in done.stdout
    document = torch.load(file, weights_only=True)
    assert (document["step"], document["value"]) == (best["model"]["step"], best["value"])
    model = mlp.model(document["params"])
    model.load_state_dict(document["state_dict"])
    model.eval()
    inputs, target = mlp.data(document["params"]).valid
    with torch.no_grad():
        accuracy = (model(inputs).argmax(dim=1) == target).double().mean()
    assert float(accuracy) == pytest.approx(best["value"])


def test_a_file_is_overwritten_by_force_only(digits: Service, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_text("mine")
    done = command(digits, "best", "digits", "--download", str(file))
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert file.read_text() == "mine"
    done = command(digits, "best", "digits", "--download", str(file), "--force", "--json")
    assert json.loads(done.stdout)["file"] == str(file)
    assert torch.load(file, weights_only=True)["format"] == 1
    assert command(digits, "best", "digits", str(file)).returncode == 2, "FILE needs --download"


def test_the_best_parameters_are_tried_under_other_seeds(digits: Service) -> None:
    best = digits.client.best("digits")
    words = ("replicate", "digits", "--seeds", "2", "--watch", "--json")
    found = json.loads(command(digits, *words).stdout)
    assert (found["study"], found["state"]) == ("digits-replicate", "completed")
    assert found["original"] == {key: best[key] for key in ("number", "value", "params")}
    values = [trial["value"] for trial in found["trials"]]
    assert found["mean"] == pytest.approx(sum(values) / 2)
    assert found["standard_deviation"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    seeds = {trial["seed"] for trial in found["trials"]}
    original = torch.load(digits.folder / f"digits-{best['number']}.pt", weights_only=True)
    assert len(seeds | {original["seed"]}) == 3
    trials = list(digits.client.trials("digits-replicate"))
    assert [trial["params"] for trial in trials] == [best["params"]] * 2
    again = command(digits, "replicate", "digits", "--seeds", "2")
    assert f"replicates trial digits/{best['number']}, value" in again.stdout
    assert "2 of 2 values: mean" in again.stdout
    other = (best["number"] + 1) % 3
    refused = command(digits, "replicate", "digits", "--trial", str(other))
    assert refused.returncode == 1
    assert "choose another --name" in refused.stderr


def artifacts(service: Service) -> list[Path]:
    folder = service.folder / "artifacts"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def has_begun(service: Service) -> bool:
    """Whether some of a model has come, and not all of it."""
    sizes = [path.stat().st_size for path in artifacts(service) if path.name[0] == "."]
    return any(0 < size < 150_000_000 for size in sizes)


def kill(worker: Any) -> None:
    """The worker and what it has started, as a node that loses its power."""
    for process in [*psutil.Process(worker.pid).children(recursive=True), worker]:
        process.kill()
    worker.wait()


def test_an_upload_cut_half_way_leaves_nothing_and_the_next_attempt_sends_it(
    sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "large_models.py").write_text(LARGE)
    code = ("--code", str(tmp_path), "--allow", "large_models", "--devices", "cpu")
    code += ("--isolation", "spawn")  # nothing of it needs torch
    services = serve(sqlite_url, tmp_path, lease_seconds=2.0)
    service = next(services)
    try:
        worker = service.start_worker(*code)
        study = {"name": "large", "objective": "large_models:large", "direction": "minimize"}
        service.client.create_study({**study, "n_trials": 1, "retry_backoff_seconds": 0})
        await_fact(lambda: has_begun(service), what="for the upload")
        kill(worker)
        await_fact(lambda: not artifacts(service), what="for the end of what came half way")
        assert service.client.trial("large", 0)["model"] is None
        service.launch_worker(*code)
        assert service.await_end("large")["state"] == "completed"
        trial = service.client.trial("large", 0)
        assert (trial["value"], trial["model"]["size_bytes"]) == (2.0, 150_000_000)
        await_fact(lambda: len(artifacts(service)) == 1, what="for one whole file")
        file = service.client.download_model("large", 0, tmp_path / "copy.pt")
        assert file.stat().st_size == 150_000_000
    finally:
        next(services, None)
