"""Ask and tell from Python: trials of a study without an objective, run by this program.

A trial in a `with` is held for as long as the program lives: a thread renews its lease.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hpo.errors import ClientClosed, HpoError, Unavailable
from hpo.objective import Trial, TrialReleased
from hpo.space import Choice, Parameter, parameter_to_json
from hpo.study import Direction
from hpo.trial import Decision, Measurement, Reason, Verdict
from hpo.worker.checkpoints import PREFIX, trial_folder
from hpo.worker.endings import error_ending, value_ending
from hpo.worker.outcome import RELEASE, result_outcome

if TYPE_CHECKING:
    from hpo.client import Client

GONE = frozenset({"lease_lost", "trial_finished"})
MAX_OFFLINE_SECONDS = 300.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0


class NoTrial(HpoError):
    """The study has no trial to give at the moment; `state` is the study's."""

    code = "no_trial"

    def __init__(self, study: str, state: str, reason: str) -> None:
        super().__init__(f"study {study}: {reason}", state=state)
        self.state = state


def is_gone(error: BaseException | None) -> bool:
    """Whether nothing can be told of a trial any more: it is another's, has ended, or is away."""
    return isinstance(error, Unavailable) or getattr(error, "code", None) in GONE


def ask(
    client: Client,
    study: str,
    *,
    worker: str | None = None,
    lease_seconds: float = 600.0,
    wait_seconds: float = 0.0,
    checkpoints: Path | None = None,
) -> AskedTrial:
    """A trial of a study without an objective. Raises NoTrial when there is none.

    It is lost, and handed out again, when for `lease_seconds` nothing is heard of it.
    """
    document = {
        "worker": worker or socket.gethostname(),
        "lease_seconds": lease_seconds,
        "wait_seconds": wait_seconds,
    }
    key = uuid.uuid4().hex  # so that an answer that gets lost takes no second trial
    try:
        asked = insist(lambda: client.post_ask(study, document, key=key))
    except KeyboardInterrupt:
        _give_back(client, study, {**document, "wait_seconds": 0}, key)
        raise
    if not asked["trials"]:
        raise NoTrial(study, asked["state"], asked["reason"])
    return AskedTrial(client, asked["trials"][0], checkpoints=checkpoints)


def _give_back(client: Client, study: str, document: Mapping[str, Any], key: str) -> None:
    """Releases what an ask that was interrupted has got: its key brings the answer again."""
    with contextlib.suppress(HpoError):
        for trial in client.post_ask(study, document, key=key)["trials"]:
            client.post_trial(study, trial["number"], "release", {"token": trial["token"]})


def insist(
    call: Callable[[], Any],
    *,
    seconds: float = MAX_OFFLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Any:
    """Calls again while the service is away; for requests that may be repeated."""
    give_up_at, before_next = clock() + seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except ClientClosed:
            raise
        except Unavailable:
            if clock() >= give_up_at:
                raise
        pause(before_next)
        before_next = min(2 * before_next, LONGEST_PAUSE_SECONDS)


class ClientLink:
    """How an asked trial reaches the service: by requests of its own."""

    def __init__(self, client: Client, study: str, number: int, token: str) -> None:
        self._client, self._study, self._number, self._token = client, study, number, token
        self._attrs: dict[str, Any] = {}
        self._constraints: dict[str, float] = {}
        self.is_stopped = False

    def send(self, verb: str, **document: Any) -> dict[str, Any]:
        """Says something of the trial, insistently. Raises ApiError when it is refused."""
        said = {"token": self._token, **document}
        answer = insist(lambda: self._client.post_trial(self._study, self._number, verb, said))
        return dict(answer or {})

    def start(self, resumed_from_step: int | None) -> None:
        self.send("start", resumed_from_step=resumed_from_step)

    def suggest(self, name: str, parameter: Parameter) -> Choice:
        value: Choice = self.send("suggest", name=name, parameter=parameter_to_json(parameter))[
            "value"
        ]
        return value

    def report(self, measurement: Measurement) -> Decision:
        """Raises TrialReleased when the program wants to end."""
        if self.is_stopped:
            raise TrialReleased("the program ends")
        answer = self.send("report", **asdict(measurement), **self.taken_remarks())
        return Decision(
            verdict=Verdict(answer["verdict"]),
            reason=None if answer["reason"] is None else Reason(answer["reason"]),
            evidence=answer["evidence"],
        )

    def late_decision(self) -> Decision | None:
        return None

    def set_user_attr(self, key: str, value: Any) -> None:
        """Raises TypeError when the value is not JSON."""
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"user attribute {key!r} must be a JSON value: {error}") from None
        self._attrs[key] = value

    def set_constraint(self, key: str, value: float) -> None:
        self._constraints[key] = value

    def set_uncounted(self, flag: bool) -> None:
        """Nobody watches over the silence of a program that asks."""

    def taken_remarks(self) -> dict[str, Any]:
        taken = {"user_attrs": self._attrs, "constraints": self._constraints}
        self._attrs, self._constraints = {}, {}
        return taken


class AskedTrial(Trial):
    """A trial that this program tries; it is told once how it ended.

    In a `with`, an exception fails it, `TrialPruned` prunes it, Ctrl-C gives it back; leaving it
    untold completes it with its last report.
    """

    def __init__(
        self, client: Client, document: Mapping[str, Any], *, checkpoints: Path | None = None
    ) -> None:
        self.link = ClientLink(client, document["study"], document["number"], document["token"])
        self._lease_seconds = float(document["lease_seconds"])
        self._left = contextlib.ExitStack()
        if checkpoints is None:
            checkpoints = Path(self._left.enter_context(tempfile.TemporaryDirectory("-hpo")))
        folder = trial_folder(checkpoints, document["study_uuid"], document["number"])
        mine = folder / f"{PREFIX}{document['attempt']}"
        mine.mkdir(parents=True, exist_ok=True)
        earlier = (folder / f"{PREFIX}{n}" for n in range(document["attempt"] - 1, 0, -1))
        super().__init__(
            self.link,
            study=document["study"],
            number=document["number"],
            attempt=document["attempt"],
            params=document["params"],
            settings=document["settings"],
            seed=document["seed"],
            direction=Direction(document["direction"]),
            checkpoint_dir=mine,
            resume_dirs=tuple(folder for folder in earlier if folder.is_dir()),
        )
        self.settled: dict[str, Any] | None = None

    def complete(self, value: float | Sequence[float] | None = None) -> dict[str, Any]:
        """Tells the value, or one for each direction; None takes the study's choice of reports."""
        return self._settle(asdict(value_ending(value)))

    def prune(self) -> dict[str, Any]:
        """Tells that the trial has ended as it was told to."""
        return self._settle({"end": "pruned"})

    def fail(self, message: str, *, reason: str = Reason.OBJECTIVE_ERROR) -> dict[str, Any]:
        """Tells that the trial has failed."""
        return self._settle(
            {"end": "failed", "reason": reason, "message": message, "traceback": ""}
        )

    def release(self) -> dict[str, Any]:
        """Gives the trial back; whoever asks next goes on with it."""
        return self._settle({"end": "released"})

    def _settle(self, ending: Mapping[str, Any]) -> dict[str, Any]:
        outcome = result_outcome(ending)
        attrs = {} if outcome.verb == RELEASE.verb else self.link.taken_remarks()
        self.settled = self.link.send(outcome.verb, **outcome.fields, **attrs)
        self._left.close()
        return self.settled

    def __enter__(self) -> AskedTrial:
        ended = threading.Event()
        self._left.callback(ended.set)
        threading.Thread(target=self._renew, args=(ended,), name="hpo-lease", daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        """Tells how the block ended; only what says so itself, as TrialPruned, goes no further."""
        with self._left:
            if self.settled is not None or is_gone(error):
                return False
            if error is None:
                self._conclude()
                return False
            if isinstance(error, Exception):
                ending = error_ending(error)
                self._settle(asdict(ending))
                return ending.end != "failed"
            self.release()
            return False

    def _conclude(self) -> None:
        """The end of a trial of which nothing was told."""
        from hpo.client import ApiError

        try:
            self.prune() if self._is_told_to_end else self.complete()
        except ApiError as error:
            if error.code == Reason.INVALID_RESULT:  # nobody is left to tell another value
                self._settle(asdict(error_ending(error)))
            raise

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(self._lease_seconds / 3):
            with contextlib.suppress(HpoError):  # the next report says what is wrong
                self.link.send("renew")
