"""Listening from Python: events and waits that go on over lost connections and restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx2

from hpo.errors import HpoError, Unavailable
from hpo.events import Event, EventKind
from hpo.numbers import decode_number
from hpo.study import StudyState

if TYPE_CHECKING:
    from hpo.client import Client

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
WAIT_SECONDS = 30.0


class StudyFailed(HpoError):
    """The study ended as failed."""

    code = "study_failed"


def listen(
    client: Client,
    study: str | None,
    *,
    after: str | None,
    kinds: Sequence[str],
    until: str | None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Events beyond `after`, each once; see `Client.events`."""
    place, seconds = after, FIRST_PAUSE_SECONDS
    while True:
        query = {"after": place, "kinds": list(kinds) or None, "until": until}
        try:
            with client.event_source(study, query) as source:
                for sent in source:
                    place, seconds = sent.id or place, FIRST_PAUSE_SECONDS
                    if sent.event == EventKind.END:
                        return
                    if sent.data:
                        yield _event(sent)
        except Unavailable:
            pass
        pause(seconds)
        seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)


def wait(
    client: Client,
    name: str,
    states: Sequence[str],
    *,
    timeout_seconds: float | None,
    look_seconds: float = WAIT_SECONDS,
    seen: Callable[[dict[str, Any]], None] = lambda study: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """The study once it is in one of these states; see `Client.wait`.

    `seen` is told of it every `look_seconds`.
    """
    give_up_at = clock() + (float("inf") if timeout_seconds is None else timeout_seconds)
    state = "away"
    while True:
        left = max(0.0, give_up_at - clock())
        try:
            study = client.study_when(name, states, min(look_seconds, left))
        except Unavailable:
            pause(min(1.0, left))
        else:
            seen(study)
            state = study["state"]
            if state in states or (not states and study["ended_at"] is not None):
                return study
        if clock() >= give_up_at:
            raise TimeoutError(f"study {name} is {state} after {timeout_seconds:g} s")


def check_ended_well(study: dict[str, Any]) -> None:
    """Raises StudyFailed for a study that has failed."""
    if study["state"] == StudyState.FAILED:
        reason = study["reason"] or "no reason was recorded"
        raise StudyFailed(f"study {study['name']} failed: {reason}")


def _event(sent: httpx2.ServerSentEvent) -> Event:
    document = json.loads(sent.data)
    data = document.get("data", {})
    if data.get("value") is not None:
        data["value"] = decode_number(data["value"])
    return Event(
        id=sent.id,
        kind=sent.event,
        study=document.get("study"),
        number=document.get("number"),
        data=data,
        created_at=document.get("created_at"),
    )


def await_gone(client: Client, study: dict[str, Any], *, timeout_seconds: float | None) -> None:
    """Waits until a study that is being deleted is not there any more. Raises TimeoutError."""
    from hpo.client import ApiError

    give_up_at = time.monotonic() + (float("inf") if timeout_seconds is None else timeout_seconds)
    while (left := give_up_at - time.monotonic()) > 0:
        try:
            # It will never run again, so the answer comes when it is gone or the time is over.
            found = client.study_when(study["name"], [StudyState.RUNNING], min(left, WAIT_SECONDS))
        except ApiError as error:
            if error.code != "not_found":
                raise
            return
        if found["uuid"] != study["uuid"]:  # somebody has taken the name
            return
    raise TimeoutError(f"Study {study['name']!r} is still being deleted.")
