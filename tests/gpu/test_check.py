"""What needs a GPU is in `tests/gpu/check.py`: run where there is one, shown to work elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("check.py")
PARTS = {
    *("device", "resume", "overflow", "dtypes", "peak"),
    *("precision", "harness", "data", "processes", "graph"),
}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check(*arguments: str) -> list[dict[str, object]]:
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def check_the_kit(lines: list[dict[str, object]]) -> None:
    """What must hold on every device."""
    facts = {line["part"]: line for line in lines}
    assert facts["resume"]["difference"] == 0.0
    assert [line for line in lines if line["part"] == "overflow"] == [
        {
            "part": "overflow",
            "fused": fused,
            "stepped": False,
            "scale": 2.0**15,
            "state_unchanged": True,
        }
        for fused in (False, True)
    ]
    assert [line for line in lines if line["part"] == "dtypes"] == [
        {
            "part": "dtypes",
            "kind": kind,
            "layers": [f"torch.{dtype}"],
            "losses": ["torch.float32"],
        }
        for kind, dtype in DTYPES.items()
    ]


def test_the_script_works_on_a_cpu() -> None:
    lines = check("--device", "cpu", "--quick")
    assert {line["part"] for line in lines} == PARTS
    check_the_kit(lines)
    rates = [line for line in lines if line["part"] == "processes"]
    assert [line["processes"] for line in rates] == [2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kit_on_a_gpu() -> None:
    lines = check("--parts", "kit")
    check_the_kit(lines)
    facts = {line["part"]: line for line in lines}
    assert facts["peak"]["peak_mb"][1] < facts["peak"]["peak_mb"][0]
    assert facts["out of memory"]["reason"] == "out_of_memory"
    assert facts["memory after it"]["held_before"] == facts["memory after it"]["held_after"]
