"""The client and its token: how it is sent, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from hpo.client import AccessDenied, ApiError, Client
from hpo.errors import Unavailable

URL = "http://hpo.test:8080"


class Door:
    """Answers everything with one problem, and notes the tokens."""

    def __init__(self, status: int = 200, **problem: Any) -> None:
        self.status, self.problem = status, problem
        self.seen: list[str | None] = []

    def client(self, token: str | Callable[[], str | None] | None = None) -> Client:
        return Client(URL, token=token, transport=httpx2.MockTransport(self.answer))

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(request.headers.get("Authorization"))
        return httpx2.Response(self.status, json={"items": [], **self.problem})


def test_a_token_that_was_given_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPO_TOKEN", "hpo_other")
    door = Door()
    with door.client("hpo_mine") as client:
        client.workers()
    assert door.seen == ["Bearer hpo_mine"]


def test_without_one_the_environment_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    for value in (None, "hpo_env"):
        if value:
            monkeypatch.setenv("HPO_TOKEN", value)
        with door.client() as client:
            client.workers()
    assert door.seen == [None, "Bearer hpo_env"]


def test_a_function_is_asked_for_each_request() -> None:
    tokens = iter(["hpo_1", "hpo_2", None])
    door = Door()
    with door.client(lambda: next(tokens)) as client:
        for _ in range(3):
            client.workers()
    assert door.seen == ["Bearer hpo_1", "Bearer hpo_2", None]


@pytest.mark.parametrize(
    ("token", "sentence"),
    [(None, f"{URL} asks for a token"), ("hpo_x", f"{URL} does not know this token")],
)
def test_who_is_not_known_is_told_the_cure(token: str | None, sentence: str) -> None:
    client = Door(401, code="unauthorized", detail="…").client(token)
    with client, pytest.raises(AccessDenied, match="HPO_TOKEN") as refused:
        client.workers()
    assert str(refused.value).startswith(sentence)
    assert "hpo_x" not in str(refused.value)
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")


def test_who_may_not_is_told_what_the_service_says() -> None:
    detail = "The token 'a' has the role reader; this needs operator."
    client = Door(403, code="forbidden", detail=detail).client()
    with client, pytest.raises(ApiError) as refused:
        client.workers()
    assert isinstance(refused.value, AccessDenied)
    assert str(refused.value) == detail


def test_a_crowd_passes_by_itself() -> None:
    client = Door(429, code="too_many", detail="Too many wait").client()
    with client, pytest.raises(Unavailable, match="Too many wait"):
        client.workers()
