"""From how a child ended to what the service is told."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpo.trial import Reason, TrialState
from hpo.worker.endings import reason_of_text

MEMBERS = {"complete": ("value",), "fail": ("reason", "message", "traceback")}
VERBS = {"value": "complete", "pruned": "prune", "released": "release", "failed": "fail"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A verb of the worker protocol with the members that belong to it."""

    verb: str
    fields: Mapping[str, Any] = field(default_factory=dict)


RELEASE = Outcome(verb="release")


def result_outcome(result: Mapping[str, Any]) -> Outcome:
    """The outcome of a child that said how its objective ended."""
    verb = VERBS[result["end"]]
    fields = {name: result[name] for name in MEMBERS.get(verb, ())}
    if result.get("values"):  # of a study with several directions
        fields = {"values": result["values"]}
    return Outcome(verb=verb, fields=fields)


def failure(reason: Reason, message: str, traceback: str = "") -> Outcome:
    """A failed attempt."""
    return Outcome(
        verb="fail", fields={"reason": reason, "message": message, "traceback": traceback}
    )


def with_tail(outcome: Outcome, tail: str) -> Outcome:
    """A failure that tells the last lines of the child as well."""
    if outcome.verb != "fail" or not tail:
        return outcome
    message = f"{outcome.fields['message']}; its last lines:\n{tail}"
    return Outcome(verb=outcome.verb, fields={**outcome.fields, "message": message})


def exit_outcome(exit_code: int | None, tail: str, *, is_host_full: bool = False) -> Outcome:
    """The outcome of a child that ended without a word; `tail` holds its last lines.

    `is_host_full` says that the kernel has killed for lack of memory meanwhile.
    """
    if exit_code is None:
        return failure(Reason.LOST, "the process that starts children died, and the child with it")
    message = f"the child {exit_text(exit_code)} before the objective had returned"
    reason = Reason.OBJECTIVE_ERROR
    if exit_code == -signal.SIGKILL and is_host_full:
        reason = Reason.OUT_OF_MEMORY
        message += ", when the kernel killed for lack of memory: most likely the host is full"
    elif exit_code == -signal.SIGKILL:  # by someone outside: no fault of the trial
        reason = Reason.LOST
    elif exit_code == -signal.SIGABRT:  # libraries in C++ abort with a last line that says why
        reason = reason_of_text(tail) or reason
    return with_tail(failure(reason, message), tail)


def exit_text(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # real-time signals have no names
        name = f"signal {-exit_code}"
    return f"was killed by {name}"


# Characters of a message in the worker's own log; the trial has the whole.
MAX_TOLD = 300


def settled_text(outcome: Outcome, settled: Mapping[str, Any], last_step: int | None) -> str:
    """What became of an attempt, for the worker's own log."""
    at = "" if last_step is None else f" at step {last_step}"
    if settled.get("awaiting_attempt"):
        cause = outcome.fields.get("reason", "released")
        return f"{cause}{at}; another attempt will follow"
    if settled.get("state") == TrialState.COMPLETE:
        value = outcome.fields.get("values") or outcome.fields.get("value")
        return "complete" if value is None else f"complete, value {value}"
    first_line = str(outcome.fields.get("message", "")).partition("\n")[0][:MAX_TOLD]
    state = str(settled.get("state", "settled")).lower()
    reason = outcome.fields.get("reason")
    return f"{state}{at}" + (f": {reason}: {first_line}" if reason else "")
