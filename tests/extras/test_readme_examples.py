"""The README's examples for other training libraries run as they stand there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from hpo.worker.check import check_objective

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = [("lightning", "lightning_sine"), ("transformers", "small_bert")]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(("package", "name"), EXAMPLES)
def test_examples_run(package: str, name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip("needs the extra: make test-integrations")
    text = README.read_text(encoding="utf-8")
    (block,) = (
        found
        for found in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        if f"def {name}(" in found
    )
    (tmp_path / f"readme_{package}.py").write_text(block, encoding="utf-8")
    report = check_objective(f"readme_{package}:{name}", code=tmp_path, steps=2)
    assert report.is_fine, report
    assert [made.step for made in report.reports] == [0, 1]
    assert report.warnings == ()
