"""The child's end of the wire as the `Link` of its `Trial`.

A report waits a moment for its verdict and goes on without it; a reader thread picks up what
arrives later, and notices when the supervisor is gone.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from hpo.space import Choice, Parameter, parameter_to_json
from hpo.trial import Decision, Measurement, Reason, Verdict
from hpo.worker.wire import Message, Wire

VERDICT_WAIT_SECONDS = 2.0
PAUSE = Decision(verdict=Verdict.PAUSE, reason=Reason.PREEMPTED)


class WireLink:
    """Speaks for a trial over a wire. `on_close` is called when the supervisor has gone."""

    def __init__(
        self,
        wire: Wire,
        *,
        on_close: Callable[[], None],
        verdict_wait_seconds: float = VERDICT_WAIT_SECONDS,
    ) -> None:
        self._wire, self._on_close = wire, on_close
        self._verdict_wait_seconds = verdict_wait_seconds
        self._choices: queue.Queue[Message] = queue.Queue()
        self._news = threading.Condition()
        self._awaited: int | None = None
        self._answer: Decision | None = None
        self._late: Decision | None = None
        self._refusal: str | None = None
        self._pause_asked = False
        self.is_signalled = False
        self._takers: dict[str, Callable[[Message], None]] = {
            "choice": self._choices.put,
            "decision": self._take_decision,
            "later": self._take_later,
            "refused": self._take_refusal,
        }

    def listen(self) -> None:
        """Starts the reader thread."""
        threading.Thread(target=self._read, name="hpo-wire", daemon=True).start()

    def ask_pause(self) -> None:
        """Lets the objective pause at its next step; takes no lock: signal handlers call it."""
        self.is_signalled = True

    def start(self, resumed_from_step: int | None) -> None:
        self._wire.send("start", resumed_from_step=resumed_from_step)

    def suggest(self, name: str, parameter: Parameter) -> Choice:
        """Asks the service. Raises ValueError when it refuses the parameter."""
        self._wire.send("suggest", name=name, parameter=parameter_to_json(parameter))
        answer = self._choices.get()
        if "refused" in answer:
            raise ValueError(answer["refused"])
        value: Choice = answer["value"]
        return value

    def report(self, measurement: Measurement) -> Decision | None:
        """Raises ValueError when the service has refused this report or one before it."""
        with self._news:
            self._raise_refusal()
            self._awaited, self._answer = measurement.step, None
            self._wire.send(
                "report",
                step=measurement.step,
                value=measurement.value,
                elapsed_seconds=measurement.elapsed_seconds,
                metrics=dict(measurement.metrics),
            )
            self._news.wait_for(lambda: self._awaited is None, self._verdict_wait_seconds)
            self._awaited = None
            self._raise_refusal()
            return self._answer

    def late_decision(self) -> Decision | None:
        decision = None
        if self._late is not None or self._refusal is not None:  # at every step a lock would cost
            with self._news:
                self._raise_refusal()
                decision, self._late = self._late, None
        return decision or (PAUSE if self._pause_asked or self.is_signalled else None)

    def set_user_attr(self, key: str, value: Any) -> None:
        """Raises TypeError when the value is not JSON."""
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"user attribute {key!r} must be a JSON value: {error}") from None
        self._wire.send("user_attr", key=key, value=value)

    def set_constraint(self, key: str, value: float) -> None:
        self._wire.send("constraint", key=key, value=value)

    def set_uncounted(self, flag: bool) -> None:
        self._wire.send("uncounted", flag=flag)

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise ValueError(refusal)

    def _read(self) -> None:
        try:
            for message in self._wire:
                self._takers[message["type"]](message)
        finally:  # a child that nobody reaches must not go on
            self._on_close()

    def _take_decision(self, message: Message) -> None:
        if message.get("warning"):
            sys.stderr.write(f"hpo: {message['warning']}\n")
        decision = Decision(
            verdict=Verdict(message["verdict"]),
            reason=message.get("reason") and Reason(message["reason"]),
            evidence=message.get("evidence") or {},
        )
        with self._news:
            if message.get("step") is not None and message["step"] == self._awaited:
                self._answer, self._awaited = decision, None
                self._news.notify_all()
            elif decision.verdict is Verdict.PAUSE:
                self._pause_asked = True
            elif decision.verdict is not Verdict.CONTINUE:
                self._late = decision

    def _take_later(self, message: Message) -> None:
        with self._news:
            if message["step"] == self._awaited:
                self._awaited = None
                self._news.notify_all()

    def _take_refusal(self, message: Message) -> None:
        with self._news:
            self._refusal, self._awaited = message["message"], None
            self._news.notify_all()
