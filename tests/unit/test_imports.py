"""What is loaded when: a client must not pay for a server, nor `hpo --help` for anything."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest

import hpo

HEAVY = {"optuna", "sqlalchemy", "torch", "fastapi", "numpy", "scipy", "sklearn", "alembic"}
LISTED = """
import json, sys
{statement}
print(json.dumps(sorted(set(sys.modules))))
"""


def modules_after(statement: str) -> set[str]:
    """Names in sys.modules of a fresh interpreter after a statement."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", LISTED.format(statement=statement)],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def cpu_seconds(words: Sequence[str]) -> float:
    """The CPU time of a command, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_import_hpo_loads_nothing_heavy() -> None:
    loaded = modules_after("import hpo")
    assert "hpo.objective" in loaded
    assert not loaded & (HEAVY | {"httpx2", "pydantic", "yaml", "typer", "rich"})


def test_the_worker_and_the_client_load_no_part_of_the_server() -> None:
    loaded = modules_after("import hpo.client, hpo.worker.agent, hpo.worker.options")
    assert not loaded & (HEAVY | {"storage", "api"})


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["up", "--help"], ["study", "-h"]])
def test_help_loads_the_command_line_only(words: list[str]) -> None:
    loaded = modules_after(
        f"sys.argv = ['hpo', *{words!r}]\nimport hpo.cli\n"
        "try: hpo.cli.main()\nexcept SystemExit: pass"
    )
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"httpx2", "yaml", "uvicorn", "psutil", "storage", "api"})


def test_the_first_help_asks_pydantic_for_nothing() -> None:
    loaded = modules_after(
        "sys.argv = ['hpo', '--help']\nimport hpo.cli\ntry: hpo.cli.main()\nexcept SystemExit: pass"
    )
    assert "pydantic" not in loaded


def test_help_answers_at_once() -> None:
    """At most 0.4 s of CPU more than bare Python; the best of three, for the machine is shared."""
    bare = min(cpu_seconds([sys.executable, "-c", "pass"]) for _ in range(3))
    shown = min(cpu_seconds([sys.executable, "-P", "-m", "hpo.cli", "--help"]) for _ in range(3))
    assert shown - bare < 0.4


def test_the_public_names_are_these() -> None:
    assert hpo.__all__ == [
        "Categorical",
        "Client",
        "Descriptor",
        "Direction",
        "FloatRange",
        "HpoError",
        "IntRange",
        "Study",
        "Trial",
        "TrialFailed",
        "TrialPruned",
        "TrialReleased",
        "__version__",
        "objective",
    ]
    assert all(hasattr(hpo, name) for name in hpo.__all__)
