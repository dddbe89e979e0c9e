"""The programs of docs/ that ask and tell, and `hpo study events`, on a running service."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.conftest import HPO, Service
from tests.pages import block_with


def told(service: Service, *options: str) -> list[dict[str, Any]]:
    """What `hpo study events` prints of the shell's study."""
    words = [HPO, "study", "events", "shell", "--url", service.url, "--json", *options]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_programs_ask_and_tell(sqlite_service: Service) -> None:
    for program in ("curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    service = sqlite_service
    script = block_with("sh", "study=$api/shell").replace("localhost:8080", service.url)
    assert len(script.splitlines()) <= 17
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    *states, best = done.stdout.splitlines()
    study = service.client.study("shell")
    counts = study["counts"]
    assert study["state"] == "completed"
    assert states.count("COMPLETE") == counts["COMPLETE"] > 0
    assert states.count("PRUNED") == counts["PRUNED"] > 0
    assert len(states) == 12
    assert json.loads(best)["value"] == study["best"]["value"]

    ended = told(service, "--kind", "trial_ended")
    assert [event["number"] for event in ended] == list(range(12))
    assert [event["data"]["state"] for event in ended] == states
    after = told(service, "--no-follow", "--after", ended[-1]["id"])
    assert [event["kind"] for event in after] == ["study_state"]


def test_a_python_program_asks_and_optimizes(sqlite_service: Service) -> None:
    service = sqlite_service
    program = block_with("py", "client.ask(").replace("http://localhost:8080", service.url)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("{'number': ")
    trial = service.client.trial("asked", 0)
    assert (trial["state"], len(trial["curve"])) == ("COMPLETE", 3)
    assert service.client.study("local")["state"] == "completed"
