"""`hpo worker --tensorboard`: what TensorBoard's own reader finds, and what must not go wrong."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

import hpo.worker.tensorboard
from hpo.worker.children import Children
from hpo.worker.claim import Claim
from hpo.worker.limits import Limits
from hpo.worker.tensorboard import Board, TensorBoardMissing, require_tensorboard, run_folder
from tests.fake_service import FakeService
from tests.worker_kit import working


def claim(attempt: int = 1, **fields: Any) -> Claim:
    given = {
        "study": "demo",
        "study_uuid": "0" * 32,
        "objective": "demo:objective",
        "direction": "minimize",
        "number": 7,
        "token": "token",
        "params": {"lr": 0.5, "kind": "a", "layers": [64, 32]},
        "settings": {},
        "seed": 1,
        "value_rule": "last",
        "keep_models": 0,
        "limits": Limits(),
    }
    return Claim(**{**given, "attempt": attempt, **fields})


def report(step: int, value: Any, **metrics: Any) -> dict[str, Any]:
    return {"step": step, "value": value, "elapsed_seconds": 0.0, "metrics": metrics}


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def curve(found: EventAccumulator, tag: str = "value") -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_a_trial_of_a_worker_is_a_run(
    service: FakeService, children: Children, tmp_path: Path
) -> None:
    service.offer("samples:described", params={"x": 0.5})
    with working(service, children, tmp_path / "checkpoints", tensorboard=tmp_path / "runs"):
        service.wait_for("complete")
    (folder,) = (tmp_path / "runs").glob("*/trial-*")
    found = read(folder)
    assert curve(found) == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert math.isnan(curve(found, "loss")[0][1])
    assert curve(found, "final_value") == [(2, 0.5)]


def test_attempts_go_on_in_one_curve(tmp_path: Path) -> None:
    first = Board(claim(1), tmp_path)
    first.begin(None)
    for step in range(6):
        first.report(report(step, 1.0 * step))
    first.end(None)  # lost after its checkpoint of step 3
    second = Board(claim(2), tmp_path)
    second.begin(3)
    for step in (4, 5, 6):
        second.report(report(step, 10.0 * step))
    second.end({"value": None})
    found = read(run_folder(tmp_path, claim()))
    assert curve(found) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 40), (5, 50), (6, 60)]
    assert curve(found, "final_value") == [(6, 60)]


@pytest.mark.parametrize(
    ("rule", "resumed_from_step", "final"),
    [("last", 3, 2.0), ("best", None, 1.0), ("best", 3, None)],
)
def test_a_value_that_only_the_service_knows_is_left_out(
    rule: str, resumed_from_step: int | None, final: float | None, tmp_path: Path
) -> None:
    board = Board(claim(value_rule=rule), tmp_path)
    board.begin(resumed_from_step)
    for step, value in enumerate((3.0, 1.0, 2.0), start=4):
        board.report(report(step, value))
    board.end({"value": None})
    found = read(run_folder(tmp_path, claim()))
    told = [value for _, value in curve(found, "final_value")] if final is not None else [None]
    assert told == [final]
    assert ("final_value" in found.Tags()["scalars"]) == (final is not None)


def test_an_attempt_that_begins_anew_leaves_nothing_of_the_last(tmp_path: Path) -> None:
    for attempt in (1, 2):
        board = Board(claim(attempt), tmp_path)
        board.begin(None)
        board.report(report(0, float(attempt)))
        board.end(None)
    assert curve(read(run_folder(tmp_path, claim()))) == [(0, 2.0)]


def test_parameters_stand_beside_the_value(tmp_path: Path) -> None:
    board = Board(claim(), tmp_path)
    board.begin(None)
    board.end({"value": 0.25})
    found = read(run_folder(tmp_path, claim()))
    content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    told = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert told["lr"].number_value == 0.5
    assert (told["kind"].string_value, told["layers"].string_value) == ("a", "[64, 32]")
    assert curve(found, "final_value") == [(0, 0.25)]


def test_a_folder_that_cannot_be_written_costs_no_trial(
    service: FakeService,
    children: Children,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "runs").write_text("no folder", encoding="utf-8")
    service.offer("samples:described", params={"x": 0.5})
    with (
        caplog.at_level(logging.WARNING),
        working(service, children, tmp_path / "checkpoints", tensorboard=tmp_path / "runs"),
    ):
        assert service.wait_for("complete")["value"] == 0.5
    (warning,) = [r.getMessage() for r in caplog.records if "TensorBoard" in r.getMessage()]
    assert "the trial goes on without" in warning


def test_a_folder_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hpo.worker.tensorboard, "MAX_WAITING", 3)
    monkeypatch.setattr(hpo.worker.tensorboard, "CLOSE_SECONDS", 0.1)
    board = Board(claim(), tmp_path)
    monkeypatch.setattr(Board, "_write", lambda self: None)  # nobody takes what is put there
    board.begin(None)
    for step in range(100):
        board.report(report(step, 1.0))
    board.end({"value": 1.0})
    assert board._pending.qsize() == 3


def test_without_the_package_a_worker_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tensorboard(None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TensorBoardMissing, match=r"pip install 'hpo-service\[tensorboard\]'"):
        require_tensorboard(Path("runs"))


def test_writing_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from hpo.worker.tensorboard import Records\n"
        "with Records(Path(sys.argv[1]), suffix='a') as records:\n"
        "    records.begin(0, {'x': 1.0})\n"
        "    records.scalars(0, {'value': 1.0})\n"
        "print(sorted({'torch', 'tensorflow'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"
