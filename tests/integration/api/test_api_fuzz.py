"""Requests made from the OpenAPI document, good and bad ones, alone and in sequences.

Schemathesis looks at every answer with all of its checks. `make fuzz` does the same for longer,
and each time with other requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from starlette.testclient import TestClient

from hpo.access import Role
from tests.api_kit import Running
from tests.fuzz.documented import Documented
from tests.fuzz.hooks import TOKEN_NAME
from tests.fuzz.machine import Service

ROOT = Path(__file__).resolve().parents[3]
SECONDS = os.environ.get("HPO_FUZZ_SECONDS")
ALL = ["--max-time", str(SECONDS)]
# Few requests, the same ones each time.
BOUNDED = ["--generation-deterministic", "--seed", "1", "--max-examples", "2", "--phases"]
SEQUENCES = settings(
    max_examples=20 if SECONDS else 5,
    stateful_step_count=40,
    derandomize=not SECONDS,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink] if SECONDS else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# The first token that is made closes the service to a run without one.
OPEN = ["--exclude-path", "/v1/tokens", "--exclude-checks", "ignored_auth"]


@pytest.mark.parametrize(
    ("kind", "has_token", "phases"),
    [
        ("sqlite", False, "examples,coverage --include-tag studies"),
        ("postgresql", False, "examples,fuzzing,stateful"),
        ("sqlite", True, "fuzzing,stateful"),
        ("postgresql", True, "coverage --exclude-tag studies"),
    ],
    ids=["sqlite", "postgresql", "sqlite, with a token", "postgresql, with a token"],
)
def test_every_answer_is_as_the_openapi_document_says(
    new_database: Callable[[str], str], kind: str, has_token: bool, phases: str
) -> None:
    running = Running(new_database(kind))
    try:
        options = OPEN
        if has_token:
            tokens = running.app.state.service.store.tokens
            _, secret = tokens.create(TOKEN_NAME, Role.ADMIN)
            options = ["--header", f"Authorization: Bearer {secret}"]
        bounds = ALL if SECONDS else [*BOUNDED, *phases.split()]
        found = fuzz(f"http://127.0.0.1:{running.port}/openapi.json", *options, *bounds)
    finally:
        running.stop()
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_sequences_of_requests_leave_the_service_sound(
    new_database: Callable[[str], str], kind: str
) -> None:
    running = Running(new_database(kind))
    try:
        send = Documented(running.client)
        give_up_at = time.monotonic() + float(SECONDS or 0)
        while True:  # once, or with other sequences until the time is over
            run_state_machine_as_test(lambda: Service(running.client, send), settings=SEQUENCES)
            if time.monotonic() >= give_up_at:
                break
    finally:
        running.stop()


def test_a_null_character_in_a_path_leads_nowhere(client: TestClient) -> None:
    for method, path in [("DELETE", "/v1/tokens/%00"), ("GET", "/v1/studies/%00")]:
        assert client.request(method, path).status_code == 404, path


def fuzz(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Schemathesis in a process of its own: it brings its own settings for Hypothesis."""
    program = [str(Path(sys.executable).with_name("schemathesis")), "--config-file"]
    config = str(ROOT / "tests/fuzz/schemathesis.toml")
    return subprocess.run(
        [*program, config, "run", url, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
