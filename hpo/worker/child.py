"""The process that runs user code for one attempt: forked by the server, or started anew.

It hears over the wire what to do, does it, says how it ended and exits. It never imports torch
itself: where the objective has no use for it, none needs to be installed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from hpo.objective import Trial, load_objective
from hpo.study import Direction, ValueRule
from hpo.trial import Reason
from hpo.worker import describe
from hpo.worker.endings import Ending, ending_of
from hpo.worker.link import WireLink
from hpo.worker.wire import Message, Wire


def serve(wire_fd: int) -> NoReturn:
    """Does what the first message says, then leaves."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the real stdout
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(wire_fd, False)
    wire = Wire(socket.socket(fileno=wire_fd))
    message = wire.receive()
    if message is not None:
        ORDERS[message["type"]](wire, message)
    leave(0)


def leave(exit_code: int) -> NoReturn:
    """Ends the process as Python would, but for tearing down every module."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does in its forks
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(exit_code)


def attempt(wire: Wire, order: Message) -> None:
    """Runs the objective and sends the result."""
    put_code_first(order["code"])
    share_cores(order["threads"])
    link = WireLink(wire, on_close=end_group)
    link.listen()
    pid = os.getpid()
    # A batch system asks every process to end: come to the next step boundary, then give back.
    signal.signal(signal.SIGTERM, lambda *_: link.ask_pause())
    # Processes that the objective forks end by SIGTERM, or multiprocessing would wait for them.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    ending = ending_of(lambda: call_objective(link, order))
    if os.getpid() != pid:
        leave(0)  # a process that the objective forked has come here as well: it has no say
    if link.is_signalled and ending.reason is Reason.OBJECTIVE_ERROR:
        # The signal was for every process, so it may have ended a loader or a tool of the trial:
        # another attempt will show whether the fault is the objective's own.
        sys.stderr.write(f"hpo: given back after SIGTERM: {ending.message}\n")
        ending = Ending(end="released")
    wire.send("result", **asdict(ending))


def call_objective(link: WireLink, order: Message) -> Any:
    """Loads and calls the objective of an order."""
    objective = load_objective(order["objective"])
    seed_everything(order["seed"])
    trial = Trial(
        link,
        study=order["study"],
        number=order["number"],
        attempt=order["attempt"],
        params=order["params"],
        settings=order["settings"],
        seed=order["seed"],
        device=order["device"],
        direction=Direction(order["direction"]),
        value_rule=ValueRule(order["value_rule"]),
        keeps_model=order["keeps_model"],
        checkpoint_dir=Path(order["checkpoint_dir"]),
        resume_dirs=tuple(map(Path, order["resume_dirs"])),
    )
    try:
        return objective(trial)
    finally:
        forget_signal_handlers()


def forget_signal_handlers() -> None:
    """What the objective and its libraries wanted to do on a signal is over.

    torch's handler for dead loaders raises wherever the main thread is: while an error is told.
    """
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_of_children = number == signal.SIGCHLD
            signal.signal(number, signal.SIG_DFL if is_of_children else signal.SIG_IGN)


def describe_objectives(wire: Wire, order: Message) -> None:
    """Finds the objectives that this worker allows, and whether the device works in a child."""
    put_code_first(order["code"])
    objectives, skipped = describe.find_objectives(order["allow"], order["code"])
    fault = describe.device_fault(order["device"])
    wire.send("described", objectives=objectives, skipped=skipped, device_fault=fault)


ORDERS: dict[str, Callable[[Wire, Message], None]] = {
    "attempt": attempt,
    "describe": describe_objectives,
}


def put_code_first(code: str | None) -> None:
    """Makes the user's folder importable, ahead of all that is installed."""
    if code is not None and code not in sys.path:
        sys.path.insert(0, code)


def share_cores(n_threads: int) -> None:
    """torch in a fork has read its environment already; elsewhere OMP_NUM_THREADS counts."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(n_threads)


def seed_everything(seed: int) -> None:
    """Forks would share the server's random streams; each trial begins its own instead."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def end_group() -> None:
    """The supervisor has gone: nobody will hear of this attempt, nor of its loader processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry of a child that is started anew."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wire-fd", type=int, required=True)
    serve(parser.parse_args(arguments).wire_fd)


if __name__ == "__main__":
    main()
