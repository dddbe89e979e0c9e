"""The Python client of the service, synchronous; scripts, the command line and workers share it.

It repeats nothing by itself: whoever calls knows which request may be sent again. Answers are the
API's documents as dicts, with non-finite values of trials turned back into floats.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlsplit

import httpx2

from hpo.errors import HpoError, Unavailable
from hpo.numbers import decode_number, strict

if TYPE_CHECKING:
    from hpo.ask import AskedTrial
    from hpo.events import Event

PAGE_LIMIT = 500
STUDY_PAGE_LIMIT = 50
LOG_PAGE_LIMIT = 1000
AWAY = frozenset({502, 503, 504})
NO_CONTENT = 204

Document = Mapping[str, Any]


class ApiError(HpoError):
    """The service refused a request."""

    code: str  # type: ignore[misc]  # the class variable of the others: here each problem has its own

    def __init__(self, status: int, problem: Document) -> None:
        super().__init__(_message_of(status, problem))
        self.status, self.problem = status, problem
        self.code = str(problem.get("code", "error"))


class Client:
    """Speaks to the API at `url`. Safe to share between threads; use it as a context manager."""

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must begin with http:// or https://, got {url!r}")
        self.url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._http = httpx2.Client(
            timeout=timeout_seconds,
            # A worker polls with one connection per slot, and reports beside it.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=50),
            transport=transport,
            # HTTP_PROXY is for the world outside; a proxy cannot reach this machine's loopback.
            trust_env=not _is_loopback(self.url),
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def create_study(
        self, document: Document, *, key: str | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Creates a study; False when the same one existed already.

        With an idempotency `key` the same call may be made again when its answer was lost.
        """
        response = self._send("POST", "/v1/studies", document, key=key)
        return _read(response), response.status_code == httpx2.codes.CREATED

    def study(self, name: str) -> dict[str, Any]:
        """One study with its counts and best trial."""
        return self._get(_study_path(name))

    def wait(self, name: str, *states: str, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Waits until a study is in one of these states, or has ended when none is named.

        A service that is away for a while ends nothing. Raises TimeoutError.
        """
        from hpo.listening import wait

        return wait(self, name, states, timeout_seconds=timeout_seconds)

    def study_when(self, name: str, states: Sequence[str], wait_seconds: float) -> dict[str, Any]:
        """One study, as soon as it is in such a state, or after `wait_seconds` as it is."""
        query = {"wait_seconds": wait_seconds, "state": list(states)}
        response = self._send("GET", _study_path(name), query=query, wait_seconds=wait_seconds)
        return _read(response)

    def events(
        self,
        study: str | None = None,
        *,
        after: str | None = None,
        kinds: Sequence[str] = (),
        until: str | None = None,
    ) -> Iterator[Event]:
        """What happens to a study, or to all, as it happens; lost connections are made anew.

        `after` is the id of the last event seen, "0" for all that the service has kept; without
        it the events begin now. `until="now"` ends with those of the past, `until="ended"` with
        the study.
        """
        from hpo.listening import listen

        return listen(self, study, after=after, kinds=kinds, until=until)

    @contextlib.contextmanager
    def event_source(self, study: str | None, query: Document) -> Iterator[httpx2.EventSource]:
        """One connection to a stream of events; see `events`."""
        path = "/v1/events" if study is None else f"{_study_path(study)}/events"
        asked = {key: value for key, value in query.items() if value is not None}
        with (
            self._outages(),
            self._http.stream("GET", self.url + path, params=asked) as response,
        ):
            if not response.is_success:
                response.read()
                self._refuse(response)
            yield httpx2.EventSource(response)

    def studies(self, **query: Any) -> Iterator[dict[str, Any]]:
        """All studies, newest first, page by page."""
        return self._pages("/v1/studies", {"limit": STUDY_PAGE_LIMIT, **query})

    def amend_study(self, name: str, changes: Document) -> dict[str, Any]:
        """Changes fields of the budget, and the priority; None lifts a limit."""
        return _read(self._send("PATCH", _study_path(name), changes))

    def pause_study(self, name: str) -> dict[str, Any]:
        """Hands out nothing more; running trials are given back at their next report."""
        return self._post(f"{_study_path(name)}/pause")

    def resume_study(self, name: str) -> dict[str, Any]:
        """Lets a paused study go on."""
        return self._post(f"{_study_path(name)}/resume")

    def stop_study(self, name: str) -> dict[str, Any]:
        """Starts no more trials; the study ends when the running ones have."""
        return self._post(f"{_study_path(name)}/stop")

    def cancel_study(self, name: str) -> dict[str, Any]:
        """As `stop_study`, and running trials are told to end at their next report."""
        return self._post(f"{_study_path(name)}/cancel")

    def best(self, name: str) -> dict[str, Any]:
        """The best trial. Raises ApiError with code `no_completed_trial` when there is none."""
        return self._get(f"{_study_path(name)}/best")

    def trials(
        self, name: str, *, state: str | None = None, curves: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All trials of a study by ascending number, page by page."""
        query = {"limit": PAGE_LIMIT, "curves": str(curves).lower(), "state": state}
        for trial in self._pages(f"{_study_path(name)}/trials", query):
            yield _decoded_trial(trial)

    def trial(self, name: str, number: int) -> dict[str, Any]:
        """One trial with its curve and attempts."""
        return _decoded_trial(self._get(_trial_path(name, number)))

    def log(self, name: str, number: int) -> Iterator[dict[str, Any]]:
        """What a trial's attempts have written, chunk by chunk."""
        return self._pages(f"{_trial_path(name, number)}/log", {"limit": LOG_PAGE_LIMIT})

    def objectives(self) -> list[dict[str, Any]]:
        """The objectives that registered workers offer."""
        return list(self._get("/v1/objectives")["items"])

    def workers(self) -> list[dict[str, Any]]:
        """All registered workers."""
        return list(self._get("/v1/workers")["items"])

    def ready(self) -> None:
        """Raises Unavailable when the service or its database is away or not in order."""
        self._get("/readyz")

    def register(self, document: Document) -> dict[str, Any]:
        """Registers a worker process; the answer holds the heartbeat and lease times."""
        return _read(self._send("POST", "/v1/workers", document))

    def heartbeat(self, worker_id: str, tokens: Sequence[str]) -> dict[str, Any]:
        """Renews the leases of `tokens`; the answer lists those that are lost."""
        document = {"tokens": list(tokens)}
        return _read(self._send("POST", f"/v1/workers/{worker_id}/heartbeat", document))

    def claim(self, document: Document) -> dict[str, Any] | None:
        """A trial under a lease; None when there was none within its `wait_seconds`."""
        wait_seconds = float(document.get("wait_seconds", 0))
        response = self._send("POST", "/v1/claims", document, wait_seconds=wait_seconds)
        return None if response.status_code == NO_CONTENT else _read(response)

    def post_ask(self, study: str, document: Document, *, key: str | None = None) -> dict[str, Any]:
        """Trials of a study without an objective, as a document; `ask` makes one of them handy."""
        wait_seconds = float(document.get("wait_seconds", 0))
        path = f"{_study_path(study)}/ask"
        return _read(self._send("POST", path, document, wait_seconds=wait_seconds, key=key))

    def ask(self, study: str, **options: Any) -> AskedTrial:
        """A trial to try and tell of, best in a `with`; the options are those of `hpo.ask.ask`.

        Raises NoTrial when the study has none to give.
        """
        from hpo.ask import ask

        return ask(self, study, **options)

    def optimize(self, objective: Any, **options: Any) -> dict[str, Any]:
        """Runs a local function for the trials of a study; see `hpo.optimize`."""
        from hpo.optimize import optimize

        return optimize(self, objective, **options)

    def post_trial(
        self, study: str, number: int, verb: str, document: Document
    ) -> dict[str, Any] | None:
        """What a worker says of a trial it holds: start, suggest, report, complete, …, log."""
        response = self._send("POST", f"{_trial_path(study, number)}/{verb}", document)
        return None if response.status_code == NO_CONTENT else _read(response)

    def _get(self, path: str, query: Document | None = None) -> dict[str, Any]:
        return _read(self._send("GET", path, query=query))

    def _post(self, path: str) -> dict[str, Any]:
        return _read(self._send("POST", path))

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
    ) -> httpx2.Response:
        headers = {} if document is None else {"Content-Type": "application/json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        with self._outages():
            response = self._http.request(
                method,
                self.url + path,
                content=None if document is None else _encoded(document),
                headers=headers,
                params=query,
                timeout=self._timeout_seconds + wait_seconds,
            )
        if not response.is_success:
            self._refuse(response)
        return response

    @contextlib.contextmanager
    def _outages(self) -> Iterator[None]:
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

    def _refuse(self, response: httpx2.Response) -> NoReturn:
        problem = _problem_of(response)
        if response.status_code in AWAY:
            facts = {key: value for key, value in problem.items() if key not in ("url", "message")}
            detail = _message_of(response.status_code, problem)
            raise Unavailable(f"{self.url} is not ready: {detail}", url=self.url, **facts)
        raise ApiError(response.status_code, problem)


def _encoded(document: Document) -> bytes:
    return json.dumps(strict(dict(document)), allow_nan=False).encode()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _read(response: httpx2.Response) -> dict[str, Any]:
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
        return _read(response)
    except ApiError as error:
        return error.problem


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _message_of(status: int, problem: Document) -> str:
    fields = [f"{found['field']}: {found['message']}" for found in problem.get("errors", ())]
    detail = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
    return "\n".join(fields or [str(detail)])


def _study_path(name: str) -> str:
    return f"/v1/studies/{quote(name, safe='')}"


def _trial_path(study: str, number: int) -> str:
    return f"{_study_path(study)}/trials/{number}"


def _decoded_trial(trial: dict[str, Any]) -> dict[str, Any]:
    _decode(trial, "value", "last_value")
    for point in trial.get("curve", ()):
        _decode(point, "value")
        _decode(point.get("metrics", {}), *point.get("metrics", {}))
    return trial


def _decode(document: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if document.get(key) is not None:
            document[key] = decode_number(document[key])
