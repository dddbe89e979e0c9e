"""Going on after an interruption: to the bit, and from the newest sound file of this trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from hpo.objective import TrialPruned, TrialReleased
from hpo.training import CheckpointMismatch, Checkpoints, Training
from hpo.training.checkpoint import FORMAT, RETRY_SECONDS, DamagedCheckpoint, read_checkpoint
from hpo.trial import Verdict

FINGERPRINT = {"objective": "mine:net", "precision": "fp32"}
ADAMW = {"optimizer": "AdamW", "optimizer_options": {"lr": 0.01}}
RMSPROP = {"optimizer": "RMSprop", "optimizer_options": {"lr": 0.01, "momentum": 0.9}}
COSINE = ("CosineAnnealingLR", {"T_max": 24})
SCHEDULES: dict[str, Any] = {
    "none": None,
    "one-cycle": ("OneCycleLR", {"max_lr": 0.1, "total_steps": 24}),
    "multi-step": ("MultiStepLR", {"milestones": [3, 3, 9]}),
    "warm-restarts": ("CosineAnnealingWarmRestarts", {"T_0": 5}),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("pause_after", [0, 1, 2])
@pytest.mark.parametrize("optimizer", [{}, ADAMW, RMSPROP], ids=["sgd", "adamw", "rmsprop"])
def test_property_02_a_resumed_training_equals_an_uninterrupted_one_to_the_bit(
    kit: Any, precision: str, pause_after: int, optimizer: Any
) -> None:
    settings = {"precision": precision, "dropout": 0.4, "scheduler": COSINE, **optimizer}
    whole, whole_link = kit.trial(**settings)
    kit.Tiny()(whole)
    resumed, first_link, second_link = kit.train_in_two(kit.Tiny(), pause_after, **settings)
    kit.assert_same(kit.last_state(resumed), kit.last_state(whole))
    assert first_link.values == whole_link.values[: pause_after + 1]
    assert second_link.values == whole_link.values[pause_after:]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_goes_on_where_it_was(kit: Any, schedule: str) -> None:
    settings = {"scheduler": SCHEDULES[schedule], **ADAMW}
    whole, _ = kit.trial(**settings)
    kit.Tiny()(whole)
    resumed, *_ = kit.train_in_two(kit.Tiny(), 1, **settings)
    kit.assert_same(kit.last_state(resumed), kit.last_state(whole))


@pytest.mark.parametrize("pause_after", [0, 1, 2])
def test_property_04_the_scaler_goes_on_where_it_was(kit: Any, pause_after: int) -> None:
    """One sample overflows, so each epoch halves the scale and restarts the growth tracker."""

    class Overflowing(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def step(self, forward: Any, batch: Any) -> torch.Tensor:
            overflows = bool((batch[0] == self.culprit).all(dim=1).any())
            return super().step(forward, batch) * (float("inf") if overflows else 0.01)

    Overflowing.culprit = kit.Tiny().data({}).train[0][11]
    settings = {"precision": "fp16", "allow_slow": True, "dropout": 0.2}
    whole, _ = kit.trial(**settings)
    Overflowing()(whole)
    resumed, _, second = kit.train_in_two(Overflowing(), pause_after, **settings)
    state = kit.last_state(resumed)
    kit.assert_same(state, kit.last_state(whole))
    assert state["scaler"]["scale"] == 2.0**16 / 2**4
    assert second.user_attrs["skipped_steps"] == 4


def test_a_chain_of_interruptions_is_still_one_training(kit: Any) -> None:
    whole, _ = kit.trial(dropout=0.3)
    kit.Tiny()(whole)
    folders: tuple[Path, ...] = ()
    for step in range(3):
        trial, _ = kit.trial(dropout=0.3, verdicts={step: Verdict.PAUSE}, resume_dirs=folders)
        with pytest.raises(TrialReleased):
            kit.Tiny()(trial)
        folders = (trial.checkpoint_dir, *folders)
    trial, _ = kit.trial(dropout=0.3, resume_dirs=folders)
    kit.Tiny()(trial)
    kit.assert_same(kit.last_state(trial), kit.last_state(whole))


def test_a_dataset_with_its_own_randomness_resumes_to_the_bit(kit: Any) -> None:
    class Jittering(torch.utils.data.Dataset[Any]):
        def __init__(self, tensors: Any) -> None:
            self.tensors = tensors

        def __len__(self) -> int:
            return len(self.tensors[0])

        def __getitem__(self, index: int) -> Any:
            return self.tensors[0][index] + torch.randn(6) / 10, self.tensors[1][index]

    class Objective(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        def data(self, params: Any) -> Any:
            split = super().data(params)
            return type(split)(train=Jittering(split.train), valid=Jittering(split.valid))

    whole, _ = kit.trial()
    Objective()(whole)
    resumed, *_ = kit.train_in_two(Objective(), 1)
    kit.assert_same(kit.last_state(resumed), kit.last_state(whole))


def test_an_attempt_says_first_from_where_it_goes_on(kit: Any, capsys: Any) -> None:
    _, _, second = kit.train_in_two(kit.Tiny(), 1)
    assert second.calls[:3] == [("start", 1), ("report", 1), ("report", 2)]
    assert "resuming after step 1" in capsys.readouterr().out


def test_the_verdict_that_was_lost_is_obeyed_after_all(kit: Any) -> None:
    first, _ = kit.trial(epochs=2)
    kit.Tiny()(first)
    again, link = kit.trial(
        epochs=4, resume_dirs=(first.checkpoint_dir,), verdicts={1: Verdict.PRUNE}
    )
    with pytest.raises(TrialPruned):
        kit.Tiny()(again)
    assert [report.step for report in link.reports] == [1]


def test_a_training_that_was_done_only_reports_again(kit: Any) -> None:
    first, first_link = kit.trial()
    kit.Tiny()(first)
    again, link = kit.trial(resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(again)
    assert link.values == first_link.values[-1:]
    assert link.user_attrs["epochs"] == 4


def test_a_checkpoint_is_on_the_disk_before_its_report(kit: Any) -> None:
    trial, link = kit.trial()
    found: list[list[str]] = []
    report = link.report
    link.report = lambda measurement: (
        found.append(sorted(path.name for path in trial.checkpoint_dir.iterdir())),
        report(measurement),
    )[1]
    kit.Tiny()(trial)
    assert [names[-1] for names in found] == [f"step-{step:08d}.pt" for step in range(4)]
    assert [len(names) for names in found] == [1, 2, 2, 2]  # the newest two are kept


def test_property_18_the_value_reported_is_the_value_of_the_checkpoint(kit: Any) -> None:
    trial, link = kit.trial(verdicts={2: Verdict.PRUNE}, dropout=0.3)
    with pytest.raises(TrialPruned):
        kit.Tiny()(trial)
    training = Training(kit.Tiny(), kit.trial(dropout=0.3)[0])
    training.learner.model.load_state_dict(kit.last_state(trial)["model"])
    assert training.evaluate()["accuracy"] == link.reports[-1].value


@pytest.mark.parametrize(
    ("seconds", "positions"),
    [
        (0, ["6", "12", "18", "24"]),  # every epoch and nothing within
        (5, ["5", "10", "15", "20"]),
        (6, ["6", "12", "18", "24"]),
        (14, ["14"]),
        (1000, []),
    ],
)
def test_checkpoints_keep_a_distance_in_time(
    kit: Any, seconds: float, positions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes a second and an epoch has 6 of them."""
    written: list[str] = []
    write = Checkpoints.write
    monkeypatch.setattr(
        Checkpoints,
        "write",
        lambda self, step, state, *, batch: (
            written.append(str(6 * (-1 if step is None else step) + 6 + batch)),
            write(self, step, state, batch=batch),
        ),
    )
    clock, (trial, _) = kit.HandClock(), kit.trial(checkpoint_seconds=seconds)
    Training(clock.ticking(kit.Tiny()), trial, clock=clock).train()
    assert list(dict.fromkeys(written)) == positions


@pytest.mark.parametrize(
    "bad", ["truncated", "empty", "flipped", "no-archive", "other-format", "bare-tensor"]
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(kit: Any, bad: str, capsys: Any) -> None:
    whole, whole_link = kit.trial(dropout=0.3)
    kit.Tiny()(whole)
    first, _ = kit.trial(dropout=0.3, epochs=3)
    kit.Tiny()(first)
    damage(first.checkpoint_dir / "step-00000002.pt", bad)
    again, link = kit.trial(dropout=0.3, resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(again)
    assert "step-00000002.pt is damaged" in capsys.readouterr().out
    assert link.values == whole_link.values[1:]
    kit.assert_same(kit.last_state(again), kit.last_state(whole))


def test_with_every_checkpoint_damaged_the_trial_starts_anew(kit: Any) -> None:
    first, first_link = kit.trial()
    kit.Tiny()(first)
    for path in first.checkpoint_dir.iterdir():
        damage(path, "truncated")
    again, link = kit.trial(resume_dirs=(first.checkpoint_dir,))
    kit.Tiny()(again)
    assert link.values == first_link.values
    assert not [call for call in link.calls if call[0] == "start"]


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no-archive":
        path.write_bytes(b"not a checkpoint" * 100)
    elif how == "flipped":
        weight = read_checkpoint(path)["state"]["model"]["0.weight"].numpy().tobytes()
        content[content.find(weight) + 5] ^= 1
        path.write_bytes(content)
    elif how == "other-format":
        torch.save({**read_checkpoint(path), "format": 0}, path)
    else:
        torch.save(torch.zeros(3), path)


class Stranger:
    """A class that a weights-only load refuses, as it might run code."""


def test_property_22_a_checkpoint_of_code_is_not_run(tmp_path: Path) -> None:
    torch.save(
        {"format": FORMAT, "fingerprint": {}, "step": 0, "state": Stranger()}, tmp_path / "x.pt"
    )
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(tmp_path / "x.pt")


def test_a_state_that_could_not_be_loaded_is_refused_when_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, fingerprint=FINGERPRINT)
    with pytest.raises(TypeError, match="Stranger"):
        checkpoints.write(0, {"scheduler": Stranger()})
    assert checkpoints.load() is None


@pytest.mark.parametrize("n_faults", [1, 2, 3])
def test_a_write_that_fails_is_repeated(
    tmp_path: Path, n_faults: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    slept: list[float] = []
    checkpoints = Checkpoints(tmp_path, fingerprint=FINGERPRINT, sleep=slept.append)
    checkpoints.write(0, {"at": 0})
    replace, faults = os.replace, [OSError(5, "Input/output error")] * n_faults

    def failing(*paths: Any) -> None:
        if faults:
            raise faults.pop()
        replace(*paths)

    monkeypatch.setattr(os, "replace", failing)
    if n_faults == 3:
        with pytest.raises(OSError, match="Input/output"):
            checkpoints.write(1, {"at": 1})
    else:
        checkpoints.write(1, {"at": 1})
    assert slept == list(RETRY_SECONDS[:n_faults])
    assert capsys.readouterr().out.count("Input/output error") == len(slept)
    assert checkpoints.load() == ((0, {"at": 0}) if n_faults == 3 else (1, {"at": 1}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"params": {"lr": 0.5}}, "params"),
        ({"precision": "bf16"}, "precision"),
    ],
)
def test_property_22_a_checkpoint_of_another_trial_is_refused(
    kit: Any, change: Any, named: str
) -> None:
    first, _ = kit.trial()
    kit.Tiny()(first)
    other, link = kit.trial(resume_dirs=(first.checkpoint_dir,), **change)
    with pytest.raises(CheckpointMismatch, match=named) as caught:
        kit.Tiny()(other)
    assert caught.value.facts["differing"] == [named]
    assert link.calls == []


def test_a_checkpoint_of_another_objective_or_torch_is_refused(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(kit.Tiny):  # type: ignore[name-defined, misc]  # a fixture's class
        pass

    first, _ = kit.trial()
    kit.Tiny()(first)
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    with pytest.raises(CheckpointMismatch, match="torch is 2, this trial has 3") as caught:
        Other()(kit.trial(resume_dirs=(first.checkpoint_dir,))[0])
    assert caught.value.facts["differing"] == ["objective", "torch"]


def test_the_newest_attempt_comes_first_and_its_newest_step(tmp_path: Path) -> None:
    for name, steps in {"attempt-1": (7, 8, 9), "attempt-2": (3, 4)}.items():
        writer = Checkpoints(tmp_path / name, fingerprint=FINGERPRINT)
        for step in steps:
            writer.write(step, {"from": name})
    earlier = (tmp_path / "gone", tmp_path / "attempt-2", tmp_path / "attempt-1")
    reader = Checkpoints(tmp_path / "attempt-3", earlier, fingerprint=FINGERPRINT)
    assert reader.load() == (4, {"from": "attempt-2"})
    assert sorted(path.name for path in (tmp_path / "attempt-1").iterdir()) == [
        "step-00000008.pt",
        "step-00000009.pt",
    ]


KILLED = """
    import json, os, signal, sys
    from pathlib import Path
    import torch
    from hpo.training import checkpoint

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def half_save(document, file):
        file.write(b"PK" * 1000)
        file.flush()
        kill()

    replace = os.replace
    POINTS = {
        "while saving": (torch, "save", half_save),
        "before the flush": (checkpoint, "flush_to_disk", kill),
        "before the move": (os, "replace", kill),
        "after the move": (os, "replace", lambda *paths: (replace(*paths), kill())),
        "before the folder's flush": (checkpoint, "_flush_folder", kill),
        "while dropping old ones": (Path, "unlink", kill),
    }
    found = {}
    for name, (target, attribute, trap) in POINTS.items():
        folder = Path(sys.argv[1]) / name.replace(" ", "-")
        fingerprint = {"objective": "mine:net", "precision": "fp32"}
        writer = checkpoint.Checkpoints(folder, fingerprint=fingerprint)
        for step in (0, 1):
            writer.write(step, {"weights": torch.full((1000,), float(step))})
        pid = os.fork()
        if pid == 0:
            setattr(target, attribute, trap)
            writer.write(2, {"weights": torch.full((1000,), 2.0)})
            os._exit(0)
        _, ended = os.waitpid(pid, 0)
        step, state = checkpoint.Checkpoints(folder, fingerprint=fingerprint).load()
        found[name] = [os.WTERMSIG(ended), step, state["weights"].unique().tolist()]
    print(json.dumps(found))
"""


def test_property_22_a_kill_at_any_point_of_writing_leaves_a_whole_checkpoint(
    tmp_path: Path,
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    old, new = [9, 1, [1.0]], [9, 2, [2.0]]
    assert json.loads(found.stdout) == {
        "while saving": old,
        "before the flush": old,
        "before the move": old,
        "after the move": new,
        "before the folder's flush": new,
        "while dropping old ones": new,
    }
