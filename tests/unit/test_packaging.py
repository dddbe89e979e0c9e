"""The package and what installs it: versions, constraints, make targets, CI."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hpo.version import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONSTRAINTS = {
    canonicalize_name(line.partition("==")[0]): Version(line.partition("==")[2])
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
}


def requirements() -> Iterator[Requirement]:
    """What the project asks for, with and without extras."""
    for text in PROJECT["dependencies"]:
        yield Requirement(text)
    for texts in PROJECT["optional-dependencies"].values():
        yield from map(Requirement, texts)


def test_the_distribution_has_the_version_of_the_package() -> None:
    assert PROJECT["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__}" in changelog


def test_the_constraints_fit_every_requirement_and_leave_torch_out() -> None:
    asked = {canonicalize_name(found.name): found for found in requirements()}
    assert asked.keys() - CONSTRAINTS.keys() == {"torch"}
    for name, version in CONSTRAINTS.items():
        if name in asked:
            assert asked[name].specifier.contains(version), name


@pytest.mark.parametrize("name", ["triton", "nvidia-cublas", "hpo-service"])
def test_the_constraints_hold_nothing_that_torch_brings(name: str) -> None:
    assert not any(pinned.startswith(name) for pinned in CONSTRAINTS)


TARGETS = ["help", "demo", "test", "test-integrations", "check", "bench", "bench-search", "clean"]


@pytest.mark.parametrize("target", TARGETS)
def test_make_targets_are_there_and_install_first(target: str, tmp_path: Path) -> None:
    """In a folder without .venv, every target but help and clean begins by making it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        ["make", "-n", target], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    installs = "-m venv .venv" in done.stdout and "-c constraints.txt -e" in done.stdout
    assert installs is (target not in ("help", "clean"))
    if installs:
        assert done.stdout.index("'torch==2.13.0'") < done.stdout.index("-c constraints.txt")


def test_make_refuses_a_python_that_is_too_old(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    old = tmp_path / "python3.9"
    old.write_text(
        "#!/bin/sh\nexec python3 -c 'import sys, types; from collections import namedtuple as n;"
        ' v = n("V", "major minor"); sys.version_info = v(3, 9); sys.version = "3.9.1 x";'
        ' exec(sys.argv[1])\' "$2"\n'
    )
    old.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={old}", "check"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "hpo needs Python 3.11 to 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_demo_keeps_the_server_when_asked() -> None:
    told = [
        subprocess.run(
            ["make", "--no-print-directory", "-n", "demo", *words],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for words in ([], ["KEEP=1"])
    ]
    assert told == [".venv/bin/hpo demo ", ".venv/bin/hpo demo --keep"]


def test_ci_runs_checks_and_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert re.findall(r"^make (\w+)$", text, flags=re.MULTILINE) == ["check", "test"]
    subprocess.run(["bash", "-n", script], check=True)


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert text.lstrip().startswith("Apache License")
    assert "END OF TERMS AND CONDITIONS" in text
