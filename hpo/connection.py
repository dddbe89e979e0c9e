"""One connection to the API: requests, their refusals, and what an outage looks like from here.

It repeats nothing by itself: whoever calls knows which request may be sent again. Answers are the
API's documents as dicts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import httpx2

from hpo.access import token_of
from hpo.errors import HpoError, Unavailable
from hpo.exits import Exit
from hpo.numbers import strict

AWAY = frozenset({429, 502, 503, 504})
DENIED = frozenset({401, 403})

Document = Mapping[str, Any]


class ApiError(HpoError):
    """The service refused a request."""

    code: str  # type: ignore[misc]  # the class variable of the others: here each problem has its own

    def __init__(self, status: int, problem: Document) -> None:
        super().__init__(_message_of(status, problem))
        self.status, self.problem = status, problem
        self.code = str(problem.get("code", "error"))


class AccessDenied(ApiError):
    """The service asks for a token, or for one of another role."""

    exit_code = Exit.DENIED  # of the command line


class _Bearer(httpx2.Auth):
    """Asks for the token at each request, so that a file with it may be replaced."""

    def __init__(self, secret: Callable[[], str | None]) -> None:
        self._secret = secret

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        if token := self._secret():
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


class Connection:
    """Speaks to the API at `url`. Safe to share between threads; use it as a context manager.

    `token` is what a service with tokens asks for, or a function that answers it for each
    request; without one it comes from HPO_TOKEN, or from the file that HPO_TOKEN_FILE names.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str | None] | None = None,
        timeout_seconds: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url!r}")
        self.url = url.rstrip("/")
        self._token = token if token is not None else token_of(os.environ)
        self._timeout_seconds = timeout_seconds
        self._at_close = contextlib.ExitStack()
        self._http = httpx2.Client(
            timeout=timeout_seconds,
            auth=_Bearer(self._secret),
            # A worker polls with one connection per slot, and reports beside it.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=50),
            transport=transport,
            # HTTP_PROXY is for the world outside; a proxy cannot reach this machine's loopback.
            trust_env=not _is_loopback(self.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, and ends the service that `local` has started."""
        with self._at_close:
            self._http.close()

    @property
    def is_closed(self) -> bool:
        return self._http.is_closed

    def _get(self, path: str, query: Document | None = None) -> dict[str, Any]:
        return read(self._send("GET", path, query=query))

    def _post(self, path: str, document: Document | None = None, **how: Any) -> dict[str, Any]:
        return read(self._send("POST", path, document, **how))

    def _pages(self, path: str, query: Document) -> Iterator[dict[str, Any]]:
        asked = {key: value for key, value in query.items() if value is not None}
        while True:
            page = self._get(path, asked)
            yield from page["items"]
            if page["next"] is None:
                return
            asked["after"] = page["next"]

    def _send(
        self,
        method: str,
        path: str,
        document: Document | None = None,
        *,
        query: Document | None = None,
        wait_seconds: float = 0.0,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        sent = dict(headers or {})
        if document is not None:
            sent["Content-Type"] = "application/json"
        if key is not None:
            sent["Idempotency-Key"] = key
        return self._request(
            method,
            path,
            content=None if document is None else _encoded(document),
            headers=sent,
            params=query,
            timeout=self._timeout_seconds + wait_seconds,
        )

    def _upload(
        self, method: str, path: str, pieces: Iterator[bytes], *, read_seconds: float, **how: Any
    ) -> httpx2.Response:
        """Sends a file piece by piece; the answer may take `read_seconds` after the last one."""
        timeout = httpx2.Timeout(self._timeout_seconds, read=read_seconds)
        return self._request(method, path, content=pieces, timeout=timeout, **how)

    def _request(self, method: str, path: str, **how: Any) -> httpx2.Response:
        with self._reaching():
            response = self._http.request(method, self.url + path, **how)
        if not response.is_success:
            self._refuse(response)
        return response

    @contextlib.contextmanager
    def _stream(self, path: str, query: Document | None = None) -> Iterator[httpx2.Response]:
        """An answer that is read as it comes."""
        with (
            self._reaching(),
            self._http.stream("GET", self.url + path, params=query) as response,
        ):
            if not response.is_success:
                response.read()
                self._refuse(response)
            yield response

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turns what the network does into Unavailable."""
        try:
            yield
        except httpx2.TransportError as error:
            raise Unavailable(
                f"no answer from {self.url} ({str(error) or type(error).__name__}); "
                "start it with `hpo api` or `hpo up`, or give its address with --url",
                url=self.url,
            ) from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise Unavailable("this client has been closed", url=self.url) from error

    def _with_cure(self, problem: Document) -> Document:
        """A refusal in the words of somebody who has no header to set."""
        if problem.get("code") != "unauthorized":
            return problem
        fault = (
            "does not know this token, or it was revoked" if self._secret() else "asks for a token"
        )
        detail = (
            f"{self.url} {fault}: put one into HPO_TOKEN, or the name of its file into "
            "HPO_TOKEN_FILE; an administrator makes one by `hpo token create`"
        )
        return {**problem, "detail": detail}

    def _secret(self) -> str | None:
        return self._token() if callable(self._token) else self._token

    def _refuse(self, response: httpx2.Response) -> NoReturn:
        problem = _problem_of(response)
        if response.status_code in AWAY:
            facts = {key: value for key, value in problem.items() if key not in ("url", "message")}
            detail = _message_of(response.status_code, problem)
            raise Unavailable(f"{self.url} is not ready: {detail}", url=self.url, **facts)
        if response.status_code in DENIED:
            raise AccessDenied(response.status_code, self._with_cure(problem))
        raise ApiError(response.status_code, problem)


def _encoded(document: Document) -> bytes:
    return json.dumps(strict(dict(document)), allow_nan=False).encode()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def read(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer. Raises ApiError for anything else, such as a proxy's page."""
    try:
        document = json.loads(response.content, parse_constant=_refuse_constant)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        detail = f"{response.url} did not answer in JSON; is this the address of the hpo service?"
        raise ApiError(response.status_code, {"code": "not_json", "detail": detail})
    return document


def _problem_of(response: httpx2.Response) -> Document:
    try:
        return read(response)
    except ApiError as error:
        return error.problem


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _message_of(status: int, problem: Document) -> str:
    fields = [f"{found['field']}: {found['message']}" for found in problem.get("errors", ())]
    detail = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
    return "\n".join(fields or [str(detail)])
