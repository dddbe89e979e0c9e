"""What is said of one attempt, delivered in order and until it has arrived.

Every request of an attempt may be repeated: the service answers a repetition as it did the first
time. So an answer that was lost on the way costs nothing but the repetition.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hpo.client import AccessDenied, ApiError
from hpo.errors import HpoError, Unavailable
from hpo.trial import Reason

FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS = 0.1, 5.0
MAX_SERVER_FAULTS = 5
MAX_WAITING = 10_000
LOST_CODES = frozenset({"lease_lost", "trial_finished", "not_found"})

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Post = Callable[[str, Document], "Document | None"]


class Abandoned(HpoError):
    """The attempt has ended in another way; nobody waits for this request."""


class Listener(Protocol):
    """Whoever speaks for the attempt hears what came of its words."""

    def on_verdict(self, step: int, answer: Mapping[str, Any]) -> None:
        """A report has arrived and this is the service's verdict."""

    def on_refusal(self, step: int | None, error: ApiError) -> None:
        """The service does not accept a report or start; it will not be sent again."""

    def on_lost(self, error: ApiError) -> None:
        """The lease is no longer valid: nothing of this attempt counts any more."""


def delays(random_share: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait between repetitions: growing, and different for each worker."""
    for power in itertools.count():
        longest = min(LAST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(power, 16))
        yield longest * (0.5 + random_share() / 2)


def persist(
    call: Callable[[], Document | None],
    abandoned: threading.Event,
    *,
    on_away: Callable[[], None] = lambda: None,
) -> Document | None:
    """Repeats a call until it is answered. Raises Abandoned, or ApiError when it is refused.

    A token that is no longer valid counts as a service that is away.
    """
    n_faults = 0
    for delay in delays():
        if abandoned.is_set():
            raise Abandoned()
        try:
            return call()
        except Unavailable:
            on_away()
        except AccessDenied:  # an administrator can mend it; until then a trial trains on
            on_away()
        except ApiError as error:
            n_faults += 1
            if error.status < 500 or n_faults == MAX_SERVER_FAULTS:
                raise
        abandoned.wait(delay)
    raise AssertionError("the delays never end")


@dataclass(frozen=True, kw_only=True, slots=True)
class Letter:
    """One request on its way; the outcome is the last one of an attempt.

    `before` is called when all that was put earlier has arrived; it raises nothing.
    """

    verb: str
    document: Document
    is_outcome: bool = False
    before: Callable[[], None] = lambda: None


class Outbox:
    """Delivers from a thread of its own, so that training does not wait for the network."""

    def __init__(self, post: Post, listener: Listener) -> None:
        self._post, self._listener = post, listener
        self._letters: deque[Letter] = deque()
        self._changed = threading.Condition()
        self._abandoned = threading.Event()
        self._refusal: ApiError | None = None
        self._settled: Document | None = None
        self.is_stalled = False
        self._thread = threading.Thread(target=self._deliver_all, name="hpo-outbox", daemon=True)
        self._thread.start()

    def put(self, verb: str, document: Document) -> None:
        """Hands over a start or a report."""
        self._put(Letter(verb=verb, document=document))

    def settle(
        self, verb: str, document: Document, *, before: Callable[[], None] = lambda: None
    ) -> None:
        """Hands over the outcome, and what is to be done first; nothing is put after it."""
        self._put(Letter(verb=verb, document=document, is_outcome=True, before=before))

    def call(self, verb: str, document: Document) -> Document | None:
        """Asks something besides, at once. Raises Abandoned, or ApiError when it is refused."""
        return persist(lambda: self._post(verb, document), self._abandoned)

    def wait(self) -> Document | None:
        """The service's answer to the outcome; None when the attempt was lost or abandoned."""
        self._thread.join()
        return self._settled

    def abandon(self) -> None:
        """Stops delivering."""
        with self._changed:
            self._abandoned.set()
            self._changed.notify_all()

    def _put(self, letter: Letter) -> None:
        # Bounded: a child that reports without end stands still while the service is away.
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._letters) < MAX_WAITING or self._abandoned.is_set()
            )
            self._letters.append(letter)
            self._changed.notify_all()

    def _take(self) -> Letter | None:
        with self._changed:
            self._changed.wait_for(lambda: self._letters or self._abandoned.is_set())
            if self._abandoned.is_set():
                return None
            self._changed.notify_all()
            return self._letters.popleft()

    def _deliver_all(self) -> None:
        while (letter := self._take()) is not None:
            try:
                self._deliver(letter)
            except Abandoned:
                return
            except ApiError as error:
                if error.code not in LOST_CODES:
                    logger.error("the service does not accept an outcome: %s", error)
                    return
                self.abandon()
                self._listener.on_lost(error)
            if letter.is_outcome:
                return

    def _deliver(self, letter: Letter) -> None:
        if letter.is_outcome:
            self._prepare(letter)
            self._settled = self._deliver_outcome(letter)
            return
        try:
            answer = self._persist(letter)
        except ApiError as error:
            if error.code in LOST_CODES:
                raise
            if error.code != "step_reported":
                self._refusal = error
            self._listener.on_refusal(letter.document.get("step"), error)
        else:
            if letter.verb == "report":
                self._listener.on_verdict(letter.document["step"], answer or {})

    def _prepare(self, letter: Letter) -> None:
        """What comes before an outcome, a model, must not cost it."""
        try:
            letter.before()
        except (Abandoned, ApiError):
            raise
        except Exception:
            logger.exception("before an outcome")

    def _deliver_outcome(self, letter: Letter) -> Document | None:
        """An outcome that the service cannot accept becomes a failure that says why."""
        refusal = self._refusal if letter.verb == "complete" else None
        if refusal is None:
            try:
                return self._persist(letter)
            except ApiError as error:
                if error.code in LOST_CODES or letter.verb in ("fail", "release"):
                    raise
                refusal = error
        is_of_values = refusal.code == Reason.INVALID_RESULT
        failure = {
            "token": letter.document["token"],
            "reason": Reason.INVALID_RESULT if is_of_values else Reason.OBJECTIVE_ERROR,
            "message": f"the service refused what the objective said: {refusal}",
            "traceback": "",
            "user_attrs": {},
        }
        return self._persist(Letter(verb="fail", document=failure, is_outcome=True))

    def _persist(self, letter: Letter) -> Document | None:
        answer = persist(
            lambda: self._post(letter.verb, letter.document), self._abandoned, on_away=self._stall
        )
        self.is_stalled = False
        return answer

    def _stall(self) -> None:
        self.is_stalled = True
