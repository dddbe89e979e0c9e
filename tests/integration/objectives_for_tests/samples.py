"""Objectives that end in every way there is; tests give this folder to a worker as --code."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TORCH_WAS_LOADED = "torch" in sys.modules

from hpo import (  # noqa: E402  # what the process had loaded before is looked at first
    Descriptor,
    FloatRange,
    Trial,
    TrialFailed,
    TrialPruned,
    TrialReleased,
    objective,
)
from hpo.trial import Reason  # noqa: E402  # as above


@objective(space={"x": FloatRange(low=0.0, high=1.0)}, direction="maximize", max_steps=9)
def described(trial: Trial) -> float:
    """Reports and returns x."""
    for step in range(trial.settings.get("steps", 3)):
        trial.report(trial.params["x"] + step, step, loss=float("nan"))
        if trial.should_prune():
            raise TrialPruned
    return float(trial.params["x"])


class Configured:
    """An objective that is an object."""

    descriptor = Descriptor(direction=None)

    def __call__(self, trial: Trial) -> float:
        return 1.0


configured = Configured()


def facts(trial: Trial) -> None:
    """Tells what its process found, as user attributes."""
    torch = sys.modules.get("torch")
    trial.set_user_attr("parent", os.getppid())
    trial.set_user_attr("is_group_leader", os.getpgrp() == os.getpid())
    trial.set_user_attr("torch_was_loaded", TORCH_WAS_LOADED)
    trial.set_user_attr("threads", torch.get_num_threads() if torch else None)
    trial.set_user_attr("visible", os.environ["CUDA_VISIBLE_DEVICES"])
    trial.set_user_attr("settings", trial.settings)
    trial.set_user_attr("device", trial.device)
    trial.set_user_attr("resume_dirs", [folder.name for folder in trial.resume_dirs])
    trial.set_user_attr("own_dir", trial.checkpoint_dir.name)
    trial.set_user_attr("direction", trial.direction)


def resumes(trial: Trial) -> float:
    """Goes on after step 3 and reports two more."""
    trial.start(3)
    for step in (4, 5):
        trial.report(float(step), step)
    return 5.0


def suggests(trial: Trial) -> float:
    """Defines its space by running."""
    x = trial.suggest_float("x", 0.1, 10.0, log=True)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return x if kind == "b" else -x


def ends_as_told(trial: Trial) -> object:
    """Ends in the way that the setting `end` names."""
    return ENDS[trial.settings["end"]](trial)


def _raise(error: BaseException) -> None:
    raise error


def _leave_loader_behind(_: Trial) -> float:
    """A process in the child's group that would outlive it and hold its output open."""
    loader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    sys.stdout.write(f"loader {loader.pid}\n")
    return 1.0


def _fork_a_pool(_: Trial) -> float:
    """A pool ends its workers by SIGTERM and waits for them."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return float(pool.apply(abs, (-1.0,)))


ENDS = {
    "nothing": lambda trial: None,
    "nan": lambda trial: float("nan"),
    "two": lambda trial: (0.5, 2),
    "text": lambda trial: "0.5",
    "bool": lambda trial: True,
    "pruned": lambda trial: _raise(TrialPruned()),
    "released": lambda trial: _raise(TrialReleased()),
    "diverged": lambda trial: _raise(TrialFailed(Reason.DIVERGED, "loss is nan")),
    "error": lambda trial: _raise(RuntimeError("my own fault")),
    "memory": lambda trial: _raise(MemoryError("no more")),
    "device": lambda trial: _raise(RuntimeError("CUDA error: device-side assert triggered")),
    "sys.exit": lambda trial: sys.exit(4),
    "os._exit": lambda trial: (sys.stdout.write("last words\n"), os._exit(3)),
    "kill": lambda trial: os.kill(os.getpid(), signal.SIGKILL),
    "loader": _leave_loader_behind,
    "pool": _fork_a_pool,
    "unnamed": lambda trial: trial.set_user_attr("x", object()),
}


def stubborn(trial: Trial) -> None:
    """Ignores SIGTERM and verdicts, and never ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(trial.settings["pid_file"]).write_text(str(os.getpid()))
    trial.report(1.0, 0)
    threading.Event().wait()


def gentle(trial: Trial) -> None:
    """Trains until it is asked to stop, then gives its trial back."""
    trial.report(1.0, 0)
    while not trial.should_stop:
        time.sleep(0.01)
    (trial.checkpoint_dir / "checkpoint").write_text("all of it")
    raise TrialReleased


def late(trial: Trial) -> None:
    """Trains on without a verdict, and obeys it when it comes."""
    trial.report(1.0, 0)
    Path(trial.settings["goes_on"]).touch()
    while not trial.should_prune():
        time.sleep(0.01)
    raise TrialPruned


def noisy(trial: Trial) -> float:
    """Writes much more than anybody wants to keep."""
    for _ in range(trial.settings["lines"]):
        sys.stdout.write("x" * 9_999 + "\n")
    os.write(2, b"broken \xff\x00 bytes\n")
    return 1.0


def saves_models(trial: Trial) -> None:
    """Saves a model at the best of its steps, and gives its trial back after `pause_after`."""
    first = trial.settings.get("resume_at", 0) if trial.attempt > 1 else 0
    if first:
        trial.start(first - 1)
    values = trial.settings["values"]
    for step in range(first, len(values)):
        if values[step] == min(values[: step + 1]):
            text = f"step {step} of attempt {trial.attempt}"
            trial.save_model(lambda path, text=text: path.write_text(text), step=step)
        trial.report(values[step], step)
        if trial.attempt == 1 and step == trial.settings.get("pause_after"):
            raise TrialReleased
