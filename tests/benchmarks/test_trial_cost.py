"""What a trial costs beside its training: claim, start, ten reports and its end over REST."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo.cli.local import choose_port, is_ready
from hpo.processes import start_part
from hpo.version import PROTOCOL_VERSION, __version__
from hpo.worker.calls import WorkerClient

N_TRIALS, N_REPORTS = 100, 10
START_SECONDS = 60


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WorkerClient]:
    """A real `hpo api` on a SQLite file."""
    port = choose_port(None)
    api = start_part("api", ["api", "--db", f"sqlite:///{tmp_path}/hpo.db", "--port", str(port)])
    give_up_at = time.monotonic() + START_SECONDS
    with WorkerClient(f"http://127.0.0.1:{port}") as found:
        while not is_ready(found):
            assert not api.has_ended
            assert time.monotonic() < give_up_at
            time.sleep(0.1)
        yield found
    api.end(patience_seconds=10, is_urgent=lambda: False)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_cost_of_a_trial(client: WorkerClient, sampler: str) -> None:
    worker_id = str(uuid.uuid4())
    client.register(
        {
            "id": worker_id,
            "name": "bench",
            "version": __version__,
            "protocol": PROTOCOL_VERSION,
            "slots": 1,
            "devices": ["cpu"],
            "allow": ["*"],
            "objectives": [],
        }
    )
    client.create_study(
        {
            "name": "bench",
            "objective": "bench:nothing",
            "direction": "minimize",
            "n_trials": N_TRIALS,
            "sampler": sampler,
            "space": {f"x{i}": {"type": "float", "low": 0.0, "high": 1.0} for i in range(5)},
        }
    )
    begin = time.perf_counter()
    for number in range(N_TRIALS):
        serve_one(client, worker_id, f"bench-{number}")
    seconds = time.perf_counter() - begin
    counts = client.study("bench")["counts"]
    assert counts["COMPLETE"] + counts["PRUNED"] == N_TRIALS
    print(f"\n{sampler}: {1000 * seconds / N_TRIALS:.1f} ms a trial of {N_REPORTS} reports")  # noqa: T201 - what a benchmark is for


def serve_one(client: WorkerClient, worker_id: str, key: str) -> None:
    """Takes a trial, reports as it is told to, and ends it."""
    claim = client.claim(
        {"worker_id": worker_id, "claim_key": key, "device": "cpu", "wait_seconds": 5}
    )
    assert claim is not None
    token, number = claim["token"], claim["number"]

    def say(verb: str, **fields: object) -> dict[str, object]:
        return client.post_trial("bench", number, verb, {"token": token, **fields}) or {}

    value = sum(claim["params"].values())
    say("start", resumed_from_step=None)
    for step in range(N_REPORTS):
        answer = say(
            "report", step=step, value=value, elapsed_seconds=0.0, metrics={}, user_attrs={}
        )
        if answer["verdict"] == "prune":
            say("prune", user_attrs={})
            return
    say("complete", value=value, user_attrs={})
