"""Any program in any language as an objective: the way in for scripts that exist already.

The worker names programs in a file (`--commands`), a study picks one by its setting `command`. The
program gets the parameters as arguments and its folders and seed from the environment, and prints
a line of JSON for each report: {"step": 0, "value": 0.9, "loss": 0.3}. The last report is the
value, or a line without a step: {"value": 0.91}. What else it prints is the trial's log.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpo.commands import COMMANDS_VARIABLE, Command, find_command, read_commands
from hpo.documents import InvalidDocument
from hpo.objective import Descriptor, Trial, TrialFailed, TrialPruned, TrialReleased
from hpo.trial import Reason
from hpo.worker.host import kernel_oom_kills, ran_out_of_memory
from hpo.worker.outcome import exit_text
from hpo.worker.program import Output, Program

OURS = "HPO_"
TAIL_CHARACTERS = 1_500
# No number in JSON: null is what JavaScript writes for them, the texts are those of our REST.
NON_FINITE = {
    None: math.nan,
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
}


class ProgramFailed(Exception):
    """The program could not start, or said by its exit code that it failed."""


def run(trial: Trial) -> float | None:
    """Runs the command that the study names and reports what it prints."""
    settings = dict(trial.settings)
    command = find_command(os.environ.get(COMMANDS_VARIABLE), settings.pop("command", None))
    facts = facts_of(trial)
    arguments = command.arguments(trial.params, {**facts, **settings})
    listener, n_kills = Listener(trial, command), kernel_oom_kills()
    with start(command, arguments, environment(command, facts, os.environ)) as program:
        for outputs in program.outputs():
            for output in outputs:
                listener.take(output)
            if not program.is_asked and (trial.should_prune() or trial.should_stop):
                program.ask_to_end(command.grace_seconds)
    # One that obeys SIGTERM may end well all the same; its last report is no final value then.
    obey(trial, is_done=program.exit_code == 0 and listener.final is not None)
    if program.exit_code != 0:
        is_host_full = ran_out_of_memory(n_kills, kernel_oom_kills())
        raise failure(command, program.exit_code, listener.tail, is_host_full=is_host_full)
    return listener.value()


def obey(trial: Trial, *, is_done: bool) -> None:
    """Ends the trial as its verdict says; a program that was done has the last word on a pause."""
    if trial.should_prune():
        raise TrialPruned
    if trial.should_stop and not is_done:
        raise TrialReleased


def describe(environ: Mapping[str, str]) -> Descriptor:
    """Says which commands this worker offers; space and direction are the study's to say.

    The settings stay open: a template may have a placeholder for any.
    """
    offer = "none; start the worker with --commands FILE"
    if file := environ.get(COMMANDS_VARIABLE):
        try:
            offer = ", ".join(read_commands(Path(file)))
        except InvalidDocument as error:
            offer = f"none; {error}"
    return Descriptor(summary=f"Any program that the worker offers by the setting command: {offer}")


run.descriptor = describe(os.environ)  # type: ignore[attr-defined]  # a function attribute


def facts_of(trial: Trial) -> dict[str, Any]:
    """What a program may know of its trial: placeholders, and variables in its environment."""
    # An attempt that was lost early has left nothing; the one before it may have.
    filled = [folder for folder in trial.resume_dirs if any(folder.iterdir())]
    return {
        "checkpoint_dir": str(trial.checkpoint_dir),
        "resume_dir": str(filled[0]) if filled else "",
        "seed": trial.seed,
        "trial_number": trial.number,
        "attempt": trial.attempt,
        "study": trial.study,
        "device": trial.device,
    }


def environment(
    command: Command, facts: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a program: the worker's without its settings, the trial's, the file's."""
    # Python would not find the modules beside a script under PYTHONSAFEPATH, which is for us.
    inherited = {
        name: value
        for name, value in environ.items()
        if not name.startswith(OURS) and name != "PYTHONSAFEPATH"
    }
    told = {f"{OURS}{name.upper()}": str(value) for name, value in facts.items() if value != ""}
    # Into a pipe Python writes by the block: reports would come too late for any verdict.
    return {**inherited, "PYTHONUNBUFFERED": "1", **told, **command.env}


def start(command: Command, arguments: Sequence[str], env: Mapping[str, str]) -> Program:
    """Starts a command. Raises ProgramFailed that says why it cannot."""
    try:
        return Program(arguments, cwd=command.cwd, env=env)
    except (OSError, ValueError) as error:  # ValueError: text that is no Unicode
        raise ProgramFailed(f"{command}: cannot start {arguments[0]!r}: {error}") from error


def failure(command: Command, exit_code: int, tail: str, *, is_host_full: bool) -> Exception:
    """How a trial fails whose program did; one killed from outside is tried again."""
    last_lines = f"; its last lines:\n{tail}" if tail else ""
    message = f"{command} {exit_text(exit_code)}{last_lines}"
    if exit_text(exit_code) == "was killed by SIGKILL":
        return TrialFailed(Reason.OUT_OF_MEMORY if is_host_full else Reason.LOST, message)
    return ProgramFailed(message)


class Listener:
    """Hears a program: its reports go to the trial, all other lines to the trial's log.

    Attributes:
        final: the value of a line without a step.
        tail: the last of what went to the log.
    """

    def __init__(self, trial: Trial, command: Command) -> None:
        self._trial, self._command = trial, command
        self._n_reports = 0
        self.final: float | None = None
        self.tail = ""

    def value(self) -> float | None:
        """The final value; None when a report is to be it. Raises TrialFailed without either."""
        if self.final is None and not self._n_reports:
            line = json.dumps({self._command.step: 0, self._command.metric: 0.9})
            message = f"{self._command}: it has printed no value, such as {line}"
            raise TrialFailed(Reason.INVALID_RESULT, message)
        return self.final

    def take(self, output: Output) -> None:
        """Raises ValueError for a report that cannot be one."""
        if output.is_error or b"{" not in output.content:  # a flood passes as a whole
            self._log(output.content, is_error=output.is_error)
            return
        for line in output.content.splitlines(keepends=True):
            document = self._read(line)
            if document is not None:
                self._take_report(document)
            else:
                self._log(line, is_error=False)

    def _read(self, line: bytes) -> dict[str, Any] | None:
        """The document of a report; None for any other line."""
        if not line.lstrip().startswith(b"{"):
            return None
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return document if self._command.metric in document else None

    def _take_report(self, document: Mapping[str, Any]) -> None:
        command, trial = self._command, self._trial
        value = as_float(command, document, document[command.metric])
        if command.step not in document:
            self.final = value
            return
        step = document[command.step]
        if type(step) is not int or step < 0:
            raise ValueError(f"{command}: its step must be a whole number from 0 on: {document}")
        if trial.should_prune():
            return
        if not self._n_reports and trial.resume_dirs and step > 0:
            trial.start(step - 1)  # it goes on after the checkpoint of an earlier attempt
        self._n_reports += 1
        trial.report(value, step, **self._metrics(document))

    def _metrics(self, document: Mapping[str, Any]) -> dict[str, float]:
        others = document.keys() - {self._command.metric, self._command.step, "value", "step"}
        return {name: float(document[name]) for name in others if is_number(document[name])}

    def _log(self, content: bytes, *, is_error: bool) -> None:
        text = content.decode("utf-8", "replace")
        stream = sys.stderr if is_error else sys.stdout
        stream.write(text)
        stream.flush()
        self.tail = (self.tail + text)[-TAIL_CHARACTERS:]


def as_float(command: Command, document: Mapping[str, Any], value: Any) -> float:
    """The value of a report. Raises ValueError that shows the line."""
    if is_number(value):
        return float(value)
    if value is None or (isinstance(value, str) and value in NON_FINITE):
        return NON_FINITE[value]
    raise ValueError(f"{command}: its {command.metric} must be a number: {document}")


def is_number(value: object) -> bool:
    """Whether a JSON value is a number that a float can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1e308)
