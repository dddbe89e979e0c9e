"""A service with tokens as its users meet it: real processes of the real command."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from hpo.access import Role
from hpo.client import AccessDenied, Client
from tests.acceptance.conftest import HPO, Service, await_fact

Done = subprocess.CompletedProcess[str]


def hpo(service: Service, *words: str, token: str | None = None) -> Done:
    """Calls `hpo` for the service, as somebody who has this token."""
    environ = {name: value for name, value in os.environ.items() if name != "HPO_TOKEN"}
    if token is not None:
        environ["HPO_TOKEN"] = token
    return subprocess.run(
        [HPO, *words, "--url", service.url], capture_output=True, text=True, env=environ
    )


def processes_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    root = psutil.Process(process.pid)
    return [root, *root.children(recursive=True)]


def test_a_worker_with_a_token_runs_a_study_and_gives_the_token_to_nobody(
    sqlite_service: Service, tmp_path: Path
) -> None:
    service = sqlite_service
    admin = hpo(service, "token", "create", "me", "--role", "admin").stdout.strip()
    made = hpo(service, "token", "create", "node", "--role", "worker", token=admin)
    file = tmp_path / "token"
    file.write_text(made.stdout)
    file.chmod(0o600)

    refused = hpo(service, "study", "list")
    assert (refused.returncode, "asks for a token" in refused.stderr) == (3, True)
    worker = service.launch_worker("--slots", "1", "--devices", "cpu", "--token-file", str(file))
    with Client(service.url, token=admin) as client:
        await_fact(client.workers, what="for the worker")
        client.create_study(
            {"name": "bowl", "objective": "objectives.synthetic:quadratic", "n_trials": 4}
        )
        service.client = client
        service.await_end("bowl")

        family = processes_of(worker)
        assert len(family) > 1
        for process in family:
            assert "hpo_" not in " ".join(process.cmdline())
        for process in family[1:]:
            assert not {"HPO_TOKEN", "HPO_TOKEN_FILE"} & process.environ().keys()

        log = max(service.folder.glob("worker-*.log"), key=lambda path: path.stat().st_mtime)
        client.revoke_token("node")
        await_fact(lambda: "does not know this token" in log.read_text(), what="for the refusal")
        # It waits for work meanwhile; a new token in the file is taken up.
        file.write_text(client.create_token("node", Role.WORKER)["token"])
        client.amend_study("bowl", {"n_trials": 6})
        service.await_end("bowl")
        assert client.study("bowl")["counts"]["FAIL"] == 0

        client.revoke_token("me")
        with pytest.raises(AccessDenied):
            client.tokens()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(45) == 0
    secrets = {admin, made.stdout.strip(), file.read_text().strip()}
    for log in service.folder.glob("*.log"):
        assert not any(secret in log.read_text() for secret in secrets), log
