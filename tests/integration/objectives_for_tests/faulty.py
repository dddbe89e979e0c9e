"""Objectives that break in every way that has been seen; each fault is a real one."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from hpo import Trial, TrialPruned, TrialReleased


def breaks(trial: Trial) -> Any:
    """Breaks in the way that the setting `fault` names."""
    sys.stdout.write("about to break\n")
    return FAULTS[trial.settings["fault"]](trial)


def _bus_error(_: Trial) -> None:
    """Reads a page of a file that has been cut off."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        pages = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        pages[0]


def _fill_host(_: Trial) -> None:
    _limit_memory()
    bytearray(2**40)


def _fill_host_by_torch(_: Trial) -> None:
    _limit_memory()
    torch.empty(2**40, dtype=torch.uint8)


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))


def _abort_like_cuda(_: Trial) -> None:
    sys.stderr.write("terminate called after throwing an instance of 'c10::Error'\n")
    sys.stderr.write("  what():  CUDA error: device-side assert triggered\n")
    os.abort()


def _poison_device(_: Trial) -> None:
    """After a device-side assert every call fails in this process, and in this one only."""

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch.zeros = fail  # type: ignore[assignment]  # stands for a context that is lost
    torch.zeros(1)


class DyingSet(Dataset[int]):
    """At the third batch the process that loads it dies."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        if index == 6:
            os.kill(os.getpid(), self.number)
        return index


def _lose_loader(number: signal.Signals) -> Callable[[Trial], float]:
    def train(_: Trial) -> float:
        return float(sum(map(len, DataLoader(DyingSet(number), batch_size=2, num_workers=1))))

    return train


def _print_long_line(_: Trial) -> float:
    sys.stdout.write("x" * 100_000_000 + "\n")
    return 1.0


def _read_stdin(_: Trial) -> float:
    assert sys.stdin.read() == ""
    return float(input("a number, please: "))


def _close_output(_: Trial) -> float:
    os.close(1)
    os.close(2)
    return 1.0


def _close_everything(_: Trial) -> float:
    os.closerange(3, 1024)
    return 1.0


def _daemonize(_: Trial) -> float:
    """A daemon leaves the trial's process group and holds its output open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            sys.stdout.write(f"daemon {os.getpid()}\n")
            threading.Event().wait()
        os._exit(0)
    os.wait()
    time.sleep(0.1)  # its number is in the log
    return 1.0


def _fork_without_care(_: Trial) -> float:
    """The forked process runs into the code that was meant for its parent."""
    if os.fork() == 0:
        sys.exit(7)
    os.wait()
    return 1.0


def _move_away(trial: Trial) -> float:
    os.chdir("/")
    with contextlib.suppress(PermissionError):  # it leads a session of its own already
        os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    (trial.checkpoint_dir / "checkpoint").touch()
    return 1.0


def _fall(_: Trial) -> None:
    def fall() -> None:
        fall()

    fall()


def _with_a_note(_: Trial) -> None:
    error = ValueError("the fault itself")
    error.add_note("a note for the reader")
    raise error


def _raise(error: BaseException) -> Callable[[Trial], None]:
    def fail(_: Trial) -> None:
        raise error

    return fail


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class OwnRefusal(ConnectionRefusedError):
    """As database drivers derive theirs."""


FAULTS: dict[str, Callable[[Trial], Any]] = {
    "SIGSEGV": lambda _: ctypes.string_at(0),
    "SIGABRT": lambda _: os.abort(),
    "SIGBUS": _bus_error,
    "SIGKILL": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "host memory": _fill_host,
    "host memory in torch": _fill_host_by_torch,
    "device memory": _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")),
    "abort of CUDA": _abort_like_cuda,
    "device": _poison_device,
    "loader SIGBUS": _lose_loader(signal.SIGBUS),
    "loader SIGKILL": _lose_loader(signal.SIGKILL),
    "connection": _raise(OwnRefusal("database")),
    "sys.exit": lambda _: sys.exit(),
    "os._exit": lambda _: os._exit(0),
    "exec": lambda _: os.execv("/bin/true", ["true"]),
    "complex": lambda _: 1 + 2j,
    "numpy complex": lambda _: np.complex128(1 + 2j),
    "list": lambda _: [1.0],
    "huge": lambda _: 10**400,
    "stdin": _read_stdin,
    "all descriptors": _close_everything,
    "unprintable": _raise(Unprintable()),
    "unstorable": _raise(ValueError("a\0b\udc80c")),
    "recursion": _fall,
    "interrupt": _raise(KeyboardInterrupt()),
    "note": _with_a_note,
    "output": _close_output,
    "fork": _fork_without_care,
    "moves": _move_away,
    "daemon": _daemonize,
    "long line": _print_long_line,
    "clean device": lambda _: float(torch.zeros(1)),
    "numpy": lambda _: np.array(0.5),
    "torch": lambda _: torch.tensor(0.5),
}


def hangs(trial: Trial) -> None:
    """Reports as often as it is told, then hangs for ever with all that it has started.

    One process stays in its group, one leaves it; none of them hears SIGTERM.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [os.getpid()]
    for leaves in (False, True):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if leaves:
                os.setsid()
            threading.Event().wait()
        pids.append(pid)
    Path(trial.settings["pid_file"]).write_text(" ".join(map(str, pids)))
    for step in range(trial.settings["reports"]):
        time.sleep(trial.settings.get("pause", 0))
        trial.report(1.0, step)
    sys.stdout.write("hangs now\n")
    threading.Event().wait()


def obliging(trial: Trial) -> None:
    """Never ends, but gives its trial back when it is asked to."""
    trial.report(1.0, 0)
    while not trial.should_stop:
        time.sleep(0.01)
    raise TrialReleased


def steady(trial: Trial) -> float:
    """Reports every so often, and obeys."""
    for step in range(trial.settings["reports"]):
        time.sleep(trial.settings["pause"])
        trial.report(float(step), step)
        if trial.should_prune():
            raise TrialPruned
    return 1.0


def meets(trial: Trial) -> float:
    """Waits until as many trials as there are slots have come, then tells what it sees."""
    folder = Path(trial.settings["folder"])
    (folder / str(trial.number)).touch()
    trial.set_user_attr("visible", os.environ["CUDA_VISIBLE_DEVICES"])
    while len(list(folder.iterdir())) < trial.settings["together"]:
        time.sleep(0.01)
    return 1.0


def loads(trial: Trial) -> None:
    """Trains with a plain DataLoader until it is asked to stop."""
    step = 0
    while not trial.should_stop:
        for _ in DataLoader(torch.zeros(64, 1), batch_size=1, num_workers=1):  # type: ignore[arg-type]  # a tensor will do
            time.sleep(0.01)
        trial.report(1.0, step)
        step += 1
    raise TrialReleased
