"""What happens before the first trial: preloads, and the child that describes the node."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

from hpo.client import AccessDenied
from hpo.errors import HpoError, Unavailable
from hpo.worker import agent, probe
from hpo.worker.children import child_environment
from hpo.worker.devices import Slot
from hpo.worker.forkserver import disown_finalizers, preload
from hpo.worker.options import WorkerOptions

OPTIONS = WorkerOptions(url="http://127.0.0.1:8080")
SLOTS = [Slot(index=0, device="GPU-a")]


class FakeChildren:
    """Notes whether forks were given up."""

    spawns = False

    def use_spawn(self) -> None:
        self.spawns = True


def describe(
    answers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, Any]], FakeChildren]:
    children = FakeChildren()
    monkeypatch.setattr(probe, "_ask", lambda *_: answers.pop(0))
    return probe.describe_node(OPTIONS, SLOTS, children), children  # type: ignore[arg-type]  # a double


def test_a_failed_preload_is_told_and_does_not_stop_the_others() -> None:
    failed = preload(["json.tool", "no_such_module"])
    assert failed == {"no_such_module": "ModuleNotFoundError: No module named 'no_such_module'"}


def test_cuda_that_fails_in_forks_makes_children_start_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [{"device_fault": "RuntimeError: bad fork"}, {"objectives": [{"objective": "a:b"}]}]
    objectives, children = describe(answers, monkeypatch)
    assert children.spawns
    assert objectives == [{"objective": "a:b"}]
    assert "CUDA does not work in a fork (RuntimeError: bad fork)" in caplog.text


def test_a_node_that_works_keeps_its_forks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    _, children = describe([{"objectives": [], "device_fault": None}], monkeypatch)
    assert not children.spawns
    assert "none with a descriptor" in caplog.text


def test_children_inherit_what_torch_reads_at_its_import() -> None:
    environment = child_environment(
        {"PATH": "/bin", "OMP_NUM_THREADS": "64", "HPO_TOKEN": "hpo_x", "HPO_TOKEN_FILE": "y"}, 3
    )
    assert environment == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "3",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "PYTHONSAFEPATH": "1",
    }


def test_finalizers_of_preloads_are_left_to_the_server() -> None:
    before = {finalizer: finalizer.atexit for finalizer in list(weakref.finalize._registry)}  # type: ignore[attr-defined]  # as the code under test
    finalizer = weakref.finalize(OPTIONS.__class__, print)
    disown_finalizers()
    assert finalizer.atexit is False
    finalizer.detach()
    for other, is_at_exit in before.items():
        other.atexit = is_at_exit


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(Unavailable(), 1), (AccessDenied(401, {"detail": "asks for a token"}), 3)],
)
def test_a_worker_that_cannot_begin_ends_with_a_code_that_says_why(
    error: HpoError, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise error

    monkeypatch.setattr(agent, "_serve", refuse)
    monkeypatch.setattr(agent.Signals, "listen", lambda _: None)
    assert agent.run_worker(OPTIONS) == exit_code


def test_a_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = agent._token_of(WorkerOptions(url=OPTIONS.url, token_file=file))
    assert callable(token)
    for secret in ("hpo_1", "hpo_2"):
        file.write_text(f"{secret}\n")
        assert token() == secret
    file.unlink()
    assert token() is None
    assert agent._token_of(OPTIONS) is None
