"""A study that is deleted while it trains: its processes and files go, its workers go on."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from hpo.client import ApiError
from tests.acceptance.conftest import HPO, Service, await_fact
from tests.acceptance.test_study_states import SLOW, are_training, hpo_study

QUICK = {**SLOW, "name": "quick", "settings": {"steps": 2, "sleep_seconds": 0.0}}


def processes_below(worker: subprocess.Popen[bytes]) -> set[int]:
    return {process.pid for process in psutil.Process(worker.pid).children(recursive=True)}


def test_a_study_that_trains_is_deleted_by_force(service: Service) -> None:
    worker = service.start_worker("--slots", "2", "--devices", "cpu")
    before = processes_below(worker)
    study, _ = service.client.create_study(SLOW)
    await_fact(lambda: are_training(service, 1), what="for the first attempts")
    children = processes_below(worker) - before
    assert len(children) >= 2
    folder = service.folder / "checkpoints" / study["uuid"]
    assert folder.is_dir()
    other = service.folder / "checkpoints" / "another-service" / "1" / "attempt-1"
    other.mkdir(parents=True)
    command = [HPO, "study", "delete", "slow", "--url", service.url]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (refused.returncode, "send force=true" in refused.stderr) == (1, True)
    assert hpo_study(service, "delete", "slow", "--force") == "Study slow is deleted.\n"
    with pytest.raises(ApiError, match="There is no study 'slow'"):
        service.client.study("slow")
    service.client.create_study(QUICK)
    assert service.await_end("quick")["counts"]["COMPLETE"] == 4
    await_fact(lambda: not any(map(psutil.pid_exists, children)), what="for the children to end")
    await_fact(lambda: not folder.exists(), what="for the checkpoints to go")
    assert other.is_dir()
    assert worker.poll() is None
    assert [study["name"] for study in service.client.studies(archived="any")] == ["quick"]
