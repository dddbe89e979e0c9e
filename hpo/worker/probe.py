"""One child at the start that tells which objectives can be served, and whether forks see CUDA."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

from hpo.worker.children import Child, Children
from hpo.worker.devices import Slot
from hpo.worker.logs import OutputLog
from hpo.worker.options import WorkerOptions
from hpo.worker.outcome import exit_text
from hpo.worker.wire import Message

DESCRIBE_SECONDS = 300.0

logger = logging.getLogger(__name__)


def describe_node(
    options: WorkerOptions, slots: Sequence[Slot], children: Children
) -> list[dict[str, Any]]:
    """Documents of the objectives that this worker offers. Raises ChildNotStarted."""
    answer = _ask(options, slots[0], children)
    if answer.get("device_fault") and options.isolation == "forkserver":
        logger.warning(
            "CUDA does not work in a fork (%s); children are started with isolation=spawn, "
            "which takes seconds for each trial",
            answer["device_fault"],
        )
        children.use_spawn()
        answer = _ask(options, slots[0], children)
    for module, message in answer.get("skipped", {}).items():
        logger.warning("objectives in %s are not offered: %s", module, message)
    objectives: list[dict[str, Any]] = answer.get("objectives", [])
    names = ", ".join(offer["objective"] for offer in objectives)
    logger.info("objectives: %s", names or "none with a descriptor; studies must give their space")
    return objectives


def _ask(options: WorkerOptions, slot: Slot, children: Children) -> Message:
    child = children.start(slot.device)
    output = OutputLog(child.output_fd, lambda _: None)
    timer = threading.Timer(
        DESCRIBE_SECONDS, child.end, kwargs={"is_asked_first": False, "grace_seconds": 0}
    )
    timer.start()
    try:
        answer = _exchange(child, options, slot)
    finally:
        timer.cancel()
        child.end(is_asked_first=False, grace_seconds=1)
        exit_code = child.wait()
        child.wire.close()
        output.child_has_exited()
        output.finish()
    if answer is None:
        text = "did not answer" if exit_code is None else exit_text(exit_code)
        logger.error("no objectives are offered: the child %s\n%s", text, output.tail)
    return answer or {}


def _exchange(child: Child, options: WorkerOptions, slot: Slot) -> Message | None:
    with contextlib.suppress(OSError):
        child.wire.send("describe", allow=options.allow, code=options.code_folder, device=slot.kind)
    return child.wire.receive()
