"""One attempt of one trial, seen from the worker: its child, its reports, its log, its outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpo.client import ApiError
from hpo.objective import is_allowed
from hpo.trial import Reason, TrialState, Verdict
from hpo.worker import checkpoints
from hpo.worker.children import Child, Children
from hpo.worker.claim import Claim
from hpo.worker.devices import Slot
from hpo.worker.host import kernel_oom_kills, ran_out_of_memory
from hpo.worker.limits import Watchdog
from hpo.worker.logs import OutputLog
from hpo.worker.models import ModelFile, ModelTaker, Shipment, find_model
from hpo.worker.options import WorkerOptions
from hpo.worker.outbox import Abandoned, Document, Outbox
from hpo.worker.outcome import (
    RELEASE,
    Outcome,
    exit_outcome,
    failure,
    result_outcome,
    settled_text,
    with_tail,
)
from hpo.worker.tensorboard import Board
from hpo.worker.wire import Message

END_SECONDS = 2.0  # from SIGTERM to SIGKILL
UNKILLABLE_SECONDS = END_SECONDS + 10.0
EXIT_SECONDS = 10.0  # for a child that has said how it ended: atexit functions of trackers

logger = logging.getLogger(__name__)


class TrialPoster(ModelTaker, Protocol):
    """The part of the client that an attempt uses."""

    def post_trial(
        self, study: str, number: int, verb: str, document: Mapping[str, Any]
    ) -> Document | None:
        """Says something of a trial. Raises Unavailable, or ApiError when it is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What all attempts of one worker share."""

    options: WorkerOptions
    client: TrialPoster
    children: Children
    n_threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Why the worker ends a child, and what it says of the trial unless that has succeeded."""

    why: str
    outcome: Outcome = RELEASE


class Attempt:
    """Runs one claimed trial in a slot. Other threads may lose, pause or expire it meanwhile."""

    def __init__(self, claim: Claim, slot: Slot, node: Node) -> None:
        self.claim = claim
        self._slot, self._node, self._options = slot, node, node.options
        self._outbox = Outbox(self._post, self)
        self._shipment = Shipment(claim, node.client, self._note)
        self._board = Board(claim, self._options.tensorboard)
        self._output: OutputLog | None = None
        self._resumed_from_step: int | None = None
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._watchdog = Watchdog(claim.limits, self._overrun)
        self._cut: Cut | None = None
        self._is_paused = False
        self._is_given_back = False
        self._has_started = False
        self._user_attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self._is_over = False
        self._last_step: int | None = None
        self._outcome: Outcome | None = None
        self._takers = {
            "start": self._take_start,
            "suggest": self._take_suggest,
            "report": self._take_report,
            "user_attr": self._take_user_attr,
            "constraint": self._take_constraint,
            "uncounted": self._take_uncounted,
            "result": self._take_result,
        }

    def perform(self) -> None:
        """Runs the child to its end and settles the trial. Raises ChildNotStarted."""
        claim = self.claim
        logger.info("%s: attempt %d on %s", claim.label, claim.attempt, self._slot.device)
        outcome = self._refusal()
        if outcome is None:
            self._train()
        else:
            self._settle(outcome)
            self._conclude()

    def lose(self, why: str) -> None:
        """The trial is no longer ours: ends the child and says nothing more."""
        self._shipment.cancel()
        self._outbox.abandon()
        self._end_child(Cut(why=why))

    def pause(self) -> None:
        """Asks the objective to write a checkpoint and give the trial back."""
        with self._lock:
            self._is_paused = True
            child = self._child
        if child is not None:
            self._tell(child, "decision", verdict=Verdict.PAUSE, reason=Reason.PREEMPTED)

    def expire(self) -> None:
        """Ends a child that has not come to an end by itself; the trial is given back."""
        self._shipment.cancel()
        self._end_child(Cut(why="the worker stops"))

    def give_up(self) -> None:
        """Stops delivering: the API has not come back in time."""
        self._outbox.abandon()

    def release(self) -> None:
        """Gives the trial back when nothing has come of the attempt."""
        self._settle(RELEASE)
        self._outbox.wait()

    def on_verdict(self, step: int, answer: Mapping[str, Any]) -> None:
        known = {name: answer.get(name) for name in ("verdict", "reason", "evidence")}
        self._tell_child("decision", step=step, **known)

    def on_refusal(self, step: int | None, error: ApiError) -> None:
        if error.code == "step_reported":  # Optuna keeps the first value and warns as well
            warning = f"step {step} has been reported with another value, which stands"
            self._tell_child("decision", step=step, verdict=Verdict.CONTINUE, warning=warning)
        else:
            self._tell_child("refused", message=str(error))

    def on_lost(self, error: ApiError) -> None:
        self._is_over = error.code == "trial_finished"
        self.lose(str(error))

    def _overrun(self, failure: Outcome) -> None:
        self._end_child(Cut(why=str(failure.fields["message"]), outcome=failure))
        child = self._child
        if child is not None and not child.ended.wait(UNKILLABLE_SECONDS):
            # It hangs within the kernel, in a driver or a file system. Its trial is over all the
            # same; the slot and its device are not free before it is.
            logger.error(
                "%s: process %s cannot be killed; its slot is not free before it has ended",
                self.claim.label,
                child.pid,
            )
            self._settle(failure)

    def _refusal(self) -> Outcome | None:
        """Why this worker cannot run the trial at all."""
        module, allow = self.claim.module, self._options.allow
        if not is_allowed(module, allow):
            allowed = ", ".join(allow)
            message = (
                f"this worker does not allow the module {module!r}, only {allowed}; "
                f"start it with --allow '{module}'"
            )
            return failure(Reason.OBJECTIVE_ERROR, message)
        try:
            checkpoints.make_attempt_folder(self._options.checkpoints, self.claim)
        except OSError as error:
            return failure(
                Reason.DEVICE_ERROR, f"no folder for checkpoints: {error}; see --checkpoints"
            )
        return None

    def _train(self) -> None:
        order = self._order()
        n_kills = kernel_oom_kills()
        child = self._node.children.start(self._slot.device)
        output = self._output = OutputLog(child.output_fd, self._ship)
        self._tell(child, "attempt", **order)
        with self._lock:  # from here on others may speak to the child, after its order
            self._child = child
        if self._is_paused:
            self.pause()
        if self._cut is not None:
            child.end(is_asked_first=False, grace_seconds=0)
        self._watchdog.start()
        self._listen(child)
        exit_code = child.wait()
        self._watchdog.stop()
        child.wire.close()
        output.child_has_exited()
        if self._outcome is None:
            is_host_full = ran_out_of_memory(n_kills, kernel_oom_kills())
            self._settle(self._last_outcome(exit_code, output.tail, is_host_full))
        self._conclude()
        output.finish()

    def _last_outcome(self, exit_code: int | None, tail: str, is_host_full: bool) -> Outcome:
        """The outcome of an attempt that was not settled before its child had ended."""
        if self._cut is not None:
            return with_tail(self._cut.outcome, tail)
        if self._is_given_back:
            return RELEASE
        return exit_outcome(exit_code, tail, is_host_full=is_host_full)

    def _listen(self, child: Child) -> None:
        try:
            for message in child.wire:
                self._takers[message.pop("type")](message)
        except (ValueError, KeyError) as error:
            logger.error("%s: the child broke the protocol: %s", self.claim.label, error)
            child.end(is_asked_first=False, grace_seconds=0)

    def _take_start(self, message: Message) -> None:
        self._has_started = True
        self._resumed_from_step = message["resumed_from_step"]
        self._board.begin(self._resumed_from_step)
        self._outbox.put("start", {"token": self.claim.token, **message})

    def _take_suggest(self, message: Message) -> None:
        try:
            with self._watchdog.waiting_for_service():
                answer = self._outbox.call("suggest", {"token": self.claim.token, **message})
        except ApiError as error:
            self._tell_child("choice", refused=str(error))
        except Abandoned:
            return
        else:
            self._tell_child("choice", **(answer or {}))

    def _take_report(self, message: Message) -> None:
        self._start_from_the_beginning()
        self._last_step = message["step"]
        if self._outbox.is_stalled:  # no verdict will come soon: let the child train on
            self._tell_child("later", step=message["step"])
        self._watchdog.note_report()
        self._board.report(message)
        with self._watchdog.waiting_for_service():
            self._outbox.put("report", {"token": self.claim.token, **message, **self._attrs()})

    def _take_user_attr(self, message: Message) -> None:
        self._user_attrs[message["key"]] = message["value"]

    def _take_constraint(self, message: Message) -> None:
        self._constraints[message["key"]] = message["value"]

    def _take_uncounted(self, message: Message) -> None:
        if message["flag"]:
            self._watchdog.begin_wait()
        else:
            self._watchdog.end_wait()

    def _take_result(self, message: Message) -> None:
        self._watchdog.stop()
        outcome = result_outcome(message)
        # A child that is being ended may fail of that, or give its trial back.
        is_cut = self._cut is not None and outcome.verb in ("fail", "release")
        # Nobody else may have the trial while the child that gave it back is still there.
        self._is_given_back = outcome.verb == "release"
        if not (is_cut or self._is_given_back):
            self._settle(outcome)
        if self._child is not None:
            self._child.end(is_asked_first=False, grace_seconds=EXIT_SECONDS)

    def _start_from_the_beginning(self) -> None:
        """What an objective means that never says from which step it goes on."""
        if not self._has_started:
            self._take_start({"resumed_from_step": None})

    def _settle(self, outcome: Outcome) -> None:
        self._outcome = outcome
        if outcome.verb in ("complete", "prune"):
            self._start_from_the_beginning()
        attrs = {} if outcome.verb == "release" else self._attrs()
        document = {"token": self.claim.token, **outcome.fields, **attrs}
        if outcome.verb == "complete":
            self._outbox.settle(outcome.verb, document, before=self._send_model)
        else:
            self._outbox.settle(outcome.verb, document)

    def _send_model(self) -> None:
        assert self._outcome is not None
        if "values" not in self._outcome.fields:  # with several of them no trial is the best one
            self._shipment.send(self._find_model, self._outcome.fields["value"])

    def _find_model(self) -> ModelFile | None:
        root, claim = self._options.checkpoints, self.claim
        return find_model(
            checkpoints.make_attempt_folder(root, claim),
            checkpoints.earlier_folders(root, claim),
            resumed_from_step=self._resumed_from_step,
        )

    def _note(self, text: str) -> None:
        """Says something in the worker's log and in the trial's."""
        logger.info("%s: %s", self.claim.label, text)
        if self._output is not None:
            self._output.add_line(f"hpo: {text}")

    def _attrs(self) -> dict[str, Any]:
        attrs, self._user_attrs = self._user_attrs, {}
        constraints, self._constraints = self._constraints, {}
        return {"user_attrs": attrs, **({"constraints": constraints} if constraints else {})}

    def _conclude(self) -> None:
        """Awaits the answer to the outcome, and clears up behind a trial that has ended."""
        settled = self._outbox.wait()
        assert self._outcome is not None
        self._board.end(self._outcome.fields if self._outcome.verb == "complete" else None)
        if settled is None:
            cause = self._cut.why if self._cut else "its outcome could not be delivered"
            logger.warning("%s: dropped: %s", self.claim.label, cause)
            if self._is_over:  # no attempt will go on from here
                self._remove_folder()
            return
        text = settled_text(self._outcome, settled, self._last_step)
        logger.info("%s: %s", self.claim.label, text)
        if not settled.get("awaiting_attempt") and TrialState(settled["state"]).is_finished:
            self._remove_folder()

    def _remove_folder(self) -> None:
        root = self._options.checkpoints
        checkpoints.remove_trial_folder(root, self.claim.study_uuid, self.claim.number)

    def _order(self) -> Message:
        claim, options = self.claim, self._options
        folder = checkpoints.make_attempt_folder(options.checkpoints, claim)
        return {
            "objective": claim.objective,
            "study": claim.study,
            "number": claim.number,
            "attempt": claim.attempt,
            "params": dict(claim.params),
            "settings": {**claim.settings, **options.local_settings},
            "seed": claim.seed,
            "device": self._slot.kind,
            "direction": claim.direction,
            "value_rule": claim.value_rule,
            "keeps_model": claim.keep_models > 0,
            "checkpoint_dir": str(folder),
            "resume_dirs": [
                str(earlier) for earlier in checkpoints.earlier_folders(options.checkpoints, claim)
            ],
            "code": options.code_folder,
            "threads": self._node.n_threads,
        }

    def _post(self, verb: str, document: Document) -> Document | None:
        claim = self.claim
        return self._node.client.post_trial(claim.study, claim.number, verb, document)

    def _ship(self, chunks: Sequence[Document]) -> None:
        self._post("log", {"token": self.claim.token, "chunks": list(chunks)})

    def _tell_child(self, kind: str, **fields: Any) -> None:
        with self._lock:
            child = self._child
        if child is not None:
            self._tell(child, kind, **fields)

    def _tell(self, child: Child, kind: str, **fields: Any) -> None:
        try:
            child.wire.send(kind, **fields)
        except (OSError, ValueError):
            logger.debug("%s: the child has gone", self.claim.label)

    def _end_child(self, cut: Cut) -> None:
        with self._lock:
            self._cut = self._cut or cut
            child = self._child
        if child is not None and not child.ended.is_set():
            logger.info("%s: ending the child: %s", self.claim.label, cut.why)
            child.end(is_asked_first=True, grace_seconds=END_SECONDS)
