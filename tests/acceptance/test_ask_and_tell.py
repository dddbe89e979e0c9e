"""The README's programs that ask and tell, and `hpo study events`, on a running service."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import HPO, Service

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def block(language: str, text: str = "") -> str:
    """The README's only block of a language that holds a text."""
    every = re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    (found,) = (block for block in every if text in block)
    return str(found)


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
    script = block("sh").replace("localhost:8080", service.url)
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
    program = block("py", "client.ask").replace("http://localhost:8080", service.url)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("{'number': ")
    trial = service.client.trial("asked", 0)
    assert (trial["state"], len(trial["curve"])) == ("COMPLETE", 3)
    assert service.client.study("local")["state"] == "completed"
