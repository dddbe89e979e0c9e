"""Which modules and objects a worker offers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpo.objective import is_allowed
from hpo.worker.child import put_code_first
from hpo.worker.describe import candidate_modules, device_fault, find_objectives

MODULE = """
import hpo

@hpo.objective(direction="minimize", space={"x": hpo.FloatRange(low=0, high=1)})
def first(trial):
    '''The first one.

    More of it.
    '''

class Kind:
    descriptor = hpo.Descriptor(max_steps=3)
    def __call__(self, trial): ...

second = Kind()
_hidden = Kind()
not_described = 3
"""
IMPORTING = """
from nets.own import first, second
__all__ = ["second"]
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of user code that is importable during the test."""
    (tmp_path / "nets/deep").mkdir(parents=True)
    for package in ("nets", "nets/deep"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "nets/own.py").write_text(MODULE)
    (tmp_path / "nets/deep/relayed.py").write_text(IMPORTING)
    (tmp_path / "nets/exits.py").write_text("import sys\nsys.exit(3)")
    (tmp_path / "nets/__main__.py").write_text("raise RuntimeError")
    (tmp_path / "other.py").write_text("raise RuntimeError")
    monkeypatch.setattr(sys, "path", list(sys.path))
    put_code_first(str(tmp_path))
    yield str(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "nets"]:
        del sys.modules[name]


def test_described_objects_are_offered_where_they_are_defined_or_listed(code: str) -> None:
    found, skipped = find_objectives(("nets.*",), code)
    offers = {offer["objective"]: offer for offer in found}
    assert offers.keys() == {"nets.own:first", "nets.own:second", "nets.deep.relayed:second"}
    assert offers["nets.own:first"]["summary"] == "The first one."
    assert offers["nets.own:first"]["space"]["x"]["type"] == "float"
    assert offers["nets.own:second"]["max_steps"] == 3
    assert offers["nets.own:second"]["space"] is None
    assert skipped == {"nets.exits": "SystemExit: 3"}


def test_only_allowed_modules_are_candidates(code: str) -> None:
    assert candidate_modules(("nets.d*",), code) == {"nets.deep", "nets.deep.relayed"}
    assert candidate_modules(("json.decoder",), code) == {"json.decoder"}
    built_in = candidate_modules(("objectives", "objectives.*"), None)
    assert {"objectives", "objectives.synthetic"} <= built_in


def test_a_name_that_is_not_there_is_told(code: str) -> None:
    found, skipped = find_objectives(("nets.missing",), code)
    assert found == []
    assert "No module named 'nets.missing'" in skipped["nets.missing"]


def test_patterns_match_whole_names() -> None:
    assert is_allowed("objectives.digits", ("objectives.*",))
    assert not is_allowed("objectives", ("objectives.*",))
    assert not is_allowed("my_objectives.x", ("objectives.*",))


def test_the_code_folder_comes_first_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a"])
    for code in ("/code", None, "/code"):
        put_code_first(code)
    assert sys.path == ["/code", "/a"]


def test_a_device_that_does_not_work_is_told() -> None:
    assert device_fault("cpu") is None
    import torch

    if not torch.cuda.is_available():
        assert device_fault("cuda") is not None


def test_a_module_that_hangs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs_here.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("hpo.worker.describe.IMPORT_SECONDS", 1)
    found, skipped = find_objectives(["hangs_here"], str(tmp_path))
    assert found == []
    assert skipped == {"hangs_here": "TimeoutError: importing it took longer than 1 s"}
