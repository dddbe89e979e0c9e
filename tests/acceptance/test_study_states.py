"""Studies that are paused, cancelled, extended and out of time, with real workers and commands."""

from __future__ import annotations

import datetime as dt
import subprocess
from typing import Any

from tests.acceptance.conftest import HPO, Service, await_fact, is_ready

SLOW = {
    "name": "slow",
    "objective": "objectives.synthetic:quadratic",
    "n_trials": 4,
    "sampler": "random",
    "pruner": "none",
    "settings": {"steps": 5000, "sleep_seconds": 0.02},
}


def hpo_study(service: Service, *words: str) -> str:
    """What `hpo study …` prints."""
    command = [HPO, "study", *words, "--url", service.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trials_of(service: Service) -> list[dict[str, Any]]:
    return [service.client.trial("slow", t["number"]) for t in service.client.trials("slow")]


def are_training(service: Service, attempt: int) -> bool:
    """Whether two trials have reported in this attempt."""
    current = [t for t in trials_of(service) if t["attempt"] == attempt and t["curve"]]
    return len([t for t in current if t["curve"][-1]["attempt"] == attempt]) == 2


def restart_api(service: Service) -> None:
    api = service.processes[0]
    api.kill()
    api.wait()
    service.start(*api.args[1:])  # type: ignore[index]  # a list, as Service.start gave it
    await_fact(lambda: is_ready(service.client), what="for the API")


def test_a_pause_outlives_the_service_and_a_cancelled_study_ends(service: Service) -> None:
    service.start_worker("--slots", "2", "--devices", "cpu")
    service.client.create_study(SLOW)
    await_fact(lambda: are_training(service, 1), what="for the first attempts")
    assert "Study slow is paused: 2 of 4 trials started" in hpo_study(service, "pause", "slow")
    await_fact(lambda: service.client.study("slow")["awaiting_attempt"] == 2, what="for the pause")
    restart_api(service)
    study = service.client.study("slow")
    assert (study["state"], study["awaiting_attempt"], study["n_started"]) == ("paused", 2, 2)
    assert "Study slow is running" in hpo_study(service, "resume", "slow")
    await_fact(lambda: are_training(service, 2), what="for the second attempts")
    assert "Cancelled on request." in hpo_study(service, "cancel", "slow")
    study = service.await_end("slow")
    assert (study["state"], study["reason"]) == ("stopped", "Cancelled on request.")
    assert study["n_started"] == 2
    for trial in trials_of(service):
        assert (trial["state"], trial["reason"]) == ("FAIL", "cancelled")
        assert [attempt["outcome"] for attempt in trial["attempts"]] == ["released", "stopped"]


def test_a_study_ends_when_its_time_is_over(sqlite_service: Service) -> None:
    service = sqlite_service
    service.start_worker("--slots", "2", "--devices", "cpu")
    service.client.create_study({**SLOW, "timeout_seconds": 2})
    study = service.await_end("slow")
    assert study["state"] == "completed"
    assert study["reason"] == "The study has run for its timeout_seconds (2)."
    assert study["n_started"] == 2
    for trial in trials_of(service):
        assert (trial["state"], trial["reason"]) == ("FAIL", "timed_out")
        steps = [point["step"] for point in trial["curve"] if point["verdict"] == "stop"]
        assert steps == [trial["last_step"]], "it went on after it was told to stop"
        began, ended = (dt.datetime.fromisoformat(trial[at]) for at in ("started_at", "ended_at"))
        assert 1.5 <= (ended - began).total_seconds() < 30


def test_workers_add_nothing_to_an_ended_study_until_it_is_extended(
    sqlite_service: Service,
) -> None:
    service = sqlite_service
    service.start_worker("--slots", "2", "--devices", "cpu")
    service.client.create_study({**SLOW, "settings": {"steps": 2, "sleep_seconds": 0.0}})
    assert service.await_end("slow")["state"] == "completed"
    for _ in range(2):
        service.start_worker("--slots", "2", "--devices", "cpu")
    study = service.client.study("slow")
    assert (study["n_started"], study["counts"]["COMPLETE"]) == (4, 4)
    assert "of 7 trials started" in hpo_study(service, "extend", "slow", "--n-trials", "7")
    study = service.await_end("slow")
    assert (study["n_started"], study["counts"]["COMPLETE"]) == (7, 7)
    assert study["reason"] == "All 7 trials have ended."
