"""The examples of docs/ for other training libraries run as they stand there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from hpo.worker.check import check_objective
from tests.pages import block_of_file

EXAMPLES = [
    ("lightning", "my_lightning", "lightning_sine"),
    ("transformers", "my_bert", "small_bert"),
]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(("package", "module", "name"), EXAMPLES)
def test_examples_run(package: str, module: str, name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip("needs the extra: make test-integrations")
    (tmp_path / f"{module}.py").write_text(block_of_file(f"{module}.py"), encoding="utf-8")
    report = check_objective(f"{module}:{name}", code=tmp_path, steps=2)
    assert report.is_fine, report
    assert [made.step for made in report.reports] == [0, 1]
    assert report.warnings == ()
