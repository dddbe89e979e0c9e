"""Workers are killed and stopped; no trial is lost, and none counts twice."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Service, await_fact, serve
from tests.acceptance.faults import JITTER, TRAINING, have_ended, kill, stopped, whole_trials

# Each of these starts its children anew and so needs no torch: a dozen fit on two cores.
LIGHT = ("--devices", "cpu", "--isolation", "spawn", "--allow", "jitter")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "jitter.py").write_text(JITTER)
    return folder


@pytest.fixture
def short_leases(empty_database_url: str, tmp_path: Path) -> Iterator[Service]:
    """A service whose leases are waited for several times in a test."""
    yield from serve(empty_database_url, tmp_path, lease_seconds=3)


def launch(service: Service, code: Path, n_slots: int) -> subprocess.Popen[bytes]:
    return service.launch_worker(*LIGHT, "--code", str(code), "--slots", str(n_slots))


def create(service: Service, **fields: Any) -> None:
    document = {
        "name": "many",
        "objective": "jitter:jitter",
        "direction": "minimize",
        "space": {"x": {"type": "float", "low": 0, "high": 1}},
        "n_trials": 50,
        "seed": 5,
        "pruner": "none",
        "sampler": "random",
        "retry_backoff_seconds": 0,
        **fields,
    }
    service.client.create_study(document)


def test_twelve_slots_end_exactly_fifty_trials(service: Service, code: Path) -> None:
    n_workers = 12 if "postgresql" in service.database_url else 4
    workers = [launch(service, code, 12 // n_workers) for _ in range(n_workers)]
    await_fact(lambda: len(service.client.workers()) == n_workers, what="for the workers")
    create(service)
    study = service.await_end("many")
    trials = list(service.client.trials("many", curves=True))
    assert (study["state"], study["n_started"]) == ("completed", 50)
    assert [trial["number"] for trial in trials] == list(range(50))
    assert {trial["state"] for trial in trials} == {"COMPLETE"}
    assert {len(trial["attempts"]) for trial in trials} == {1}
    ran = Counter((code / "ran.txt").read_text().split())
    assert ran == Counter(map(str, range(50))), "a trial's code ran twice, or never"
    assert {worker.poll() for worker in workers} == {None}


def test_a_worker_killed_each_second_costs_no_trial_and_doubles_none(
    short_leases: Service, code: Path
) -> None:
    service = short_leases
    workers = [launch(service, code, 3) for _ in range(4)]
    await_fact(lambda: len(service.client.workers()) == 4, what="for the workers")
    create(service, settings={"longest_seconds": 1}, max_attempts=100)
    choose, orphans, n_killed = random.Random(1), [], 0
    give_up_at = time.monotonic() + 15
    while time.monotonic() < give_up_at and service.client.study("many")["state"] == "running":
        place = choose.randrange(4)
        orphans += kill(workers[place].pid)
        n_killed += 1
        workers[place] = launch(service, code, 3)
        time.sleep(1)  # the fault itself: one worker a second
    study = service.await_end("many")
    assert n_killed >= 5
    assert (study["state"], study["n_started"]) == ("completed", 50)
    trials = whole_trials(service.client, "many", 50, n_steps=1)
    lost = [a for t in trials for a in t["attempts"] if a["reason"] == "lost"]
    assert lost, "no kill hit a trial"
    assert have_ended(orphans), "a killed worker left processes behind"


@pytest.fixture
def training(code: Path) -> Path:
    (code / "noisy.py").write_text(TRAINING)
    return code


def start_trainer(service: Service, code: Path) -> subprocess.Popen[bytes]:
    return service.start_worker(
        *("--devices", "cpu", "--slots", "1", "--code", str(code), "--allow", "noisy")
    )


def train(service: Service, name: str, epoch_seconds: float) -> None:
    service.client.create_study(
        {
            "name": name,
            "objective": "noisy:noisy",
            "n_trials": 1,
            "seed": 11,
            "settings": {"checkpoint_seconds": 0, "epoch_seconds": epoch_seconds},
            "retry_backoff_seconds": 0,
        }
    )


def test_a_trial_killed_in_epoch_4_is_resumed_to_the_bit(
    short_leases: Service, training: Path
) -> None:
    service = short_leases
    for _ in range(2):
        start_trainer(service, training)
    train(service, "cut", epoch_seconds=0.5)
    await_fact(lambda: last_step(service, "cut") >= 3, what="for epoch 4")
    orphans = kill(int(service.client.trial("cut", 0)["worker"].rpartition(":")[2]))
    killed_at = time.monotonic()
    assert have_ended(orphans), "the killed worker's child trains on"
    await_fact(lambda: len(service.client.trial("cut", 0)["attempts"]) == 2)
    # The lease of 3 s and a renewal take 3.5 s; the rest is a slow machine's.
    assert time.monotonic() - killed_at < 12
    assert service.await_end("cut")["state"] == "completed"
    train(service, "whole", epoch_seconds=0)
    assert service.await_end("whole")["state"] == "completed"
    cut, whole = service.client.trial("cut", 0), service.client.trial("whole", 0)
    first, second = cut["attempts"]
    assert (first["outcome"], first["reason"]) == ("failed", "lost")
    assert second["resumed_from_step"] >= 3
    assert [point["step"] for point in cut["curve"]] == list(range(10))
    assert {point["attempt"] for point in cut["curve"]} == {1, 2}
    assert cut["params"] == whole["params"]
    assert [p["value"] for p in cut["curve"]] == [p["value"] for p in whole["curve"]]
    assert cut["user_attrs"]["weights"] == whole["user_attrs"]["weights"]


def last_step(service: Service, study: str) -> int:
    trials = list(service.client.trials(study))
    return max(
        (trial["last_step"] for trial in trials if trial["last_step"] is not None), default=-1
    )


def test_a_worker_that_stood_still_past_its_lease_writes_nothing_and_goes_on(
    short_leases: Service, training: Path
) -> None:
    service = short_leases
    frozen = start_trainer(service, training)
    train(service, "cut", epoch_seconds=0.5)
    await_fact(lambda: last_step(service, "cut") >= 1, what="for the first steps")
    with stopped(frozen.pid) as every:
        start_trainer(service, training)
        await_fact(lambda: len(service.client.trial("cut", 0)["attempts"]) == 2)
        children = every[2:]  # after the worker and its fork server
        assert children
    assert have_ended(children), "the child of a lost lease trains on"
    assert service.await_end("cut")["state"] == "completed"
    trial = service.client.trial("cut", 0)
    first, second = trial["attempts"]
    assert (first["outcome"], first["reason"]) == ("failed", "lost")
    assert (second["outcome"], second["worker"] != first["worker"]) == ("complete", True)
    assert [point["step"] for point in trial["curve"]] == list(range(10))
    resumed_from = second["resumed_from_step"]
    assert {p["attempt"] for p in trial["curve"] if p["step"] >= resumed_from} == {2}
    for name in ("next", "after"):  # both workers have room: the one that stood still claims, too
        train(service, name, epoch_seconds=0.5)
    await_fact(lambda: last_step(service, "next") >= 0 and last_step(service, "after") >= 0)
    workers = {service.client.trial(name, 0)["worker"] for name in ("next", "after")}
    assert workers == {first["worker"], second["worker"]}


def test_reports_that_died_with_their_worker_are_made_again_from_the_checkpoint(
    sqlite_service: Service, training: Path
) -> None:
    """The API is away when the worker dies: its checkpoint knows steps that nobody else does."""
    service = sqlite_service
    doomed = start_trainer(service, training)
    train(service, "cut", epoch_seconds=0.3)
    await_fact(lambda: last_step(service, "cut") >= 1, what="for the first steps")
    service.api.kill()
    service.api.wait()
    unreported = set(service.folder.glob("checkpoints/*/0/attempt-1/step-*.pt"))
    await_fact(
        lambda: not unreported & set(service.folder.glob("checkpoints/*/0/attempt-1/step-*.pt")),
        what="for checkpoints that are newer than any report",
    )
    kill(doomed.pid)
    service.start_api()
    service.await_ready()
    start_trainer(service, training)
    assert service.await_end("cut")["state"] == "completed"
    (trial,) = whole_trials(service.client, "cut", 1, n_steps=10)
    reported = {p["step"] for p in trial["curve"] if p["attempt"] == 1}
    assert trial["attempts"][1]["resumed_from_step"] > max(reported) + 1
