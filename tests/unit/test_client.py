"""The client against a transport that answers from a script."""

from __future__ import annotations

import hashlib
import http.server
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from hpo.client import ApiError, Client
from hpo.errors import HpoError, Unavailable
from hpo.worker.calls import WorkerClient

URL = "http://hpo.test:8080"
Answerer = Callable[[httpx2.Request], httpx2.Response]


def client_for(answer: Answerer) -> WorkerClient:
    return WorkerClient(URL, transport=httpx2.MockTransport(answer))


def answering(document: Any, status: int = 200) -> WorkerClient:
    return client_for(lambda _: httpx2.Response(status, json=document))


class Pages:
    """Serves items in pages of two and notes the queries."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.queries = items, []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.queries.append(dict(request.url.params))
        after = int(request.url.params.get("after", 0))
        following = after + 2 if after + 2 < len(self.items) else None
        return httpx2.Response(
            200, json={"items": self.items[after : after + 2], "next": following}
        )


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with http://"):
        Client("hpo.test:8080")


@pytest.mark.parametrize(("status", "is_new"), [(201, True), (200, False)])
def test_creating_a_study_tells_whether_it_is_new(status: int, is_new: bool) -> None:
    with answering({"name": "digits"}, status) as client:
        assert client.create_study({"name": "digits"}) == ({"name": "digits"}, is_new)


def test_requests_are_strict_json() -> None:
    bodies: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content, parse_constant=pytest.fail))
        assert request.headers["Content-Type"] == "application/json"
        return httpx2.Response(200, json={})

    with client_for(answer) as client:
        client.post_trial("digits", 3, "report", {"value": math.nan, "metrics": {"a": math.inf}})
    assert bodies == [{"value": "NaN", "metrics": {"a": "Infinity"}}]


def test_answers_that_are_not_strict_json_are_refused() -> None:
    client = client_for(lambda _: httpx2.Response(200, content=b'{"value": NaN}'))
    with client, pytest.raises(ApiError) as caught:
        client.study("digits")
    assert caught.value.code == "not_json"


def test_a_page_of_something_else_is_named() -> None:
    client = client_for(lambda _: httpx2.Response(200, html="<h1>Welcome</h1>"))
    with client, pytest.raises(ApiError, match="is this the address of the hpo service"):
        client.workers()


def test_all_pages_are_read_lazily() -> None:
    pages = Pages([{"name": name} for name in "abcde"])
    with client_for(pages) as client:
        studies = client.studies(state="running")
        assert next(studies) == {"name": "a"}
        assert len(pages.queries) == 1
        assert [study["name"] for study in studies] == list("bcde")
    assert [query.get("after") for query in pages.queries] == [None, "2", "4"]
    assert pages.queries[0] == {"limit": "50", "state": "running"}


def test_trials_get_their_numbers_back() -> None:
    trial = {
        "number": 0,
        "value": "NaN",
        "last_value": "-Infinity",
        "params": {"value": "NaN"},
        "curve": [{"step": 0, "value": "Infinity", "metrics": {"loss": "NaN", "n": 1}}],
    }
    pages = Pages([trial])
    with client_for(pages) as client:
        (found,) = client.trials("digits", curves=True)
    assert math.isnan(found["value"])
    assert found["last_value"] == -math.inf
    assert found["params"] == {"value": "NaN"}  # a choice of the user's
    assert found["curve"][0]["value"] == math.inf
    assert math.isnan(found["curve"][0]["metrics"]["loss"])
    assert pages.queries == [{"limit": "500", "curves": "true"}]


def test_names_are_escaped() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.raw_path == b"/v1/studies/a%2Fb%3F/best"
        return httpx2.Response(200, json={"number": 1})

    with client_for(answer) as client:
        assert client.best("a/b?") == {"number": 1}


def test_a_problem_becomes_an_error_with_its_facts() -> None:
    problem = {
        "title": "Invalid",
        "status": 422,
        "detail": "the study is not valid",
        "code": "invalid",
        "errors": [{"field": "space.lr.low", "message": "must be above 0"}],
    }
    with answering(problem, 422) as client, pytest.raises(ApiError) as caught:
        client.create_study({})
    assert caught.value.status == 422
    assert caught.value.code == "invalid"
    assert caught.value.problem == problem
    assert str(caught.value) == "space.lr.low: must be above 0"


def test_an_error_without_problem_document_keeps_its_status() -> None:
    client = client_for(lambda _: httpx2.Response(418, text="teapot"))
    with client, pytest.raises(ApiError) as caught:
        client.study("digits")
    assert caught.value.status == 418


@pytest.mark.parametrize("status", [502, 503, 504])
def test_an_api_that_is_not_ready_is_unavailable(status: int) -> None:
    problem = {"code": "unavailable", "detail": "the database does not answer", "message": "x"}
    with answering(problem, status) as client, pytest.raises(Unavailable) as caught:
        client.ready()
    assert str(caught.value) == f"{URL} is not ready: the database does not answer"
    assert caught.value.facts["url"] == URL


@pytest.mark.parametrize(
    "error",
    [httpx2.ConnectError("refused"), httpx2.ReadTimeout(""), httpx2.RemoteProtocolError("")],
)
def test_an_api_that_does_not_answer_is_unavailable(error: Exception) -> None:
    def answer(_: httpx2.Request) -> httpx2.Response:
        raise error

    with client_for(answer) as client, pytest.raises(Unavailable) as caught:
        client.objectives()
    assert URL in str(caught.value)
    assert "--url" in str(caught.value)


def test_a_refused_connection_is_unavailable() -> None:
    with WorkerClient("http://127.0.0.1:9") as client, pytest.raises(Unavailable, match="refused"):
        client.ready()


def test_a_poll_waits_longer_than_its_wait() -> None:
    timeouts: list[float] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        timeouts.append(request.extensions["timeout"]["read"])
        return httpx2.Response(204)

    with WorkerClient(URL, timeout_seconds=3, transport=httpx2.MockTransport(answer)) as client:
        assert client.claim({"wait_seconds": 20}) is None
        assert client.post_trial("digits", 0, "start", {}) is None
    assert timeouts == [23, 3]


def test_the_worker_protocol_has_its_paths() -> None:
    paths: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        paths.append(f"{request.method} {request.url.path}")
        return httpx2.Response(200, json={"items": [], "next": None})

    with client_for(answer) as client:
        client.register({})
        client.heartbeat("w1", ["t"])
        client.claim({})
        client.post_trial("digits", 4, "complete", {})
        client.trial("digits", 4)
        assert list(client.log("digits", 4)) == []
        assert client.objectives() == client.workers() == []
    assert paths == [
        "POST /v1/workers",
        "POST /v1/workers/w1/heartbeat",
        "POST /v1/claims",
        "POST /v1/studies/digits/trials/4/complete",
        "GET /v1/studies/digits/trials/4",
        "GET /v1/studies/digits/trials/4/log",
        "GET /v1/objectives",
        "GET /v1/workers",
    ]


class _Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        """Keeps the test's output clean."""


def test_a_service_on_this_machine_is_not_looked_for_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), _Ready) as server:
        threading.Thread(target=server.handle_request).start()
        with WorkerClient(f"http://127.0.0.1:{server.server_port}") as client:
            assert client.study("demo") == {}


def test_a_client_that_was_closed_says_so() -> None:
    client = answering({})
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.study("demo")


class TestModels:
    """A model comes whole and as it was stored, or the file stays as it is."""

    CONTENT = b"weights" * 1000

    def answer(self, content: bytes = CONTENT, etag: str | None = None) -> WorkerClient:
        digest = hashlib.sha256(self.CONTENT).hexdigest()
        headers = {"ETag": f'"{etag or digest}"'}
        return client_for(lambda _: httpx2.Response(200, content=content, headers=headers))

    def test_it_is_written_and_its_progress_told(self, tmp_path: Path) -> None:
        told: list[tuple[int, int]] = []
        with self.answer() as client:
            file = client.download_model(
                "digits", 3, tmp_path / "a.pt", on_bytes=lambda *n: told.append(n)
            )
        assert file.read_bytes() == self.CONTENT
        assert told[-1] == (len(self.CONTENT), len(self.CONTENT))

    @pytest.mark.parametrize(("content", "etag"), [(CONTENT[1:], None), (CONTENT, "0" * 64)])
    def test_what_is_not_as_it_was_stored_is_not_kept(
        self, tmp_path: Path, content: bytes, etag: str | None
    ) -> None:
        file = tmp_path / "a.pt"
        file.write_text("mine")
        with self.answer(content, etag) as client, pytest.raises(HpoError, match="SHA-256"):
            client.download_model("digits", 3, file)
        assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
        assert file.read_text() == "mine"

    def test_a_trial_without_one_is_told_as_by_the_api(self, tmp_path: Path) -> None:
        problem = {"code": "not_found", "detail": "Trial digits/3 has no model."}
        with answering(problem, 404) as client, pytest.raises(ApiError, match="has no model"):
            client.download_model("digits", 3, tmp_path / "a.pt")
        assert list(tmp_path.iterdir()) == []

    def test_one_is_sent_piece_by_piece_under_its_token(self) -> None:
        requests: list[httpx2.Request] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            assert request.read() == b"weights"
            requests.append(request)
            return httpx2.Response(204)

        with client_for(answer) as client:
            pieces = iter([b"wei", b"ghts"])
            client.put_model("digits", 3, pieces, size_bytes=7, token="secret")
        (request,) = requests
        assert (request.method, request.url.path) == ("PUT", "/v1/studies/digits/trials/3/model")
        assert request.headers["Lease-Token"] == "secret"
        assert request.headers["Content-Length"] == "7"


class TestCopies:
    """Studies come and go as files."""

    def test_an_export_is_whole_or_not_at_all(self, tmp_path: Path) -> None:
        file, told = tmp_path / "digits.json", list[int]()
        with answering({"format": 1}) as client:
            client.export_study("digits", file, on_bytes=told.append)
        assert json.loads(file.read_bytes()) == {"format": 1}
        assert told[-1] == file.stat().st_size

        def broken(_: httpx2.Request) -> httpx2.Response:
            def pieces() -> Iterator[bytes]:
                yield b"half"
                raise httpx2.RemoteProtocolError("peer closed connection")

            return httpx2.Response(200, content=pieces())

        with client_for(broken) as client, pytest.raises(Unavailable):
            client.export_study("digits", file)
        assert json.loads(file.read_bytes()) == {"format": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["digits.json"]

    def test_an_import_sends_the_file_as_it_is(self, tmp_path: Path) -> None:
        file, requests = tmp_path / "digits.json", list[httpx2.Request]()
        file.write_bytes(b'{"format": 1}' + b" " * 3_000_000)

        def answer(request: httpx2.Request) -> httpx2.Response:
            assert request.read() == file.read_bytes()
            requests.append(request)
            return httpx2.Response(201, json={"n_trials": 0})

        with client_for(answer) as client:
            assert client.import_study(file, name="other", key="k") == {"n_trials": 0}
        assert requests[0].url.params["name"] == "other"
        assert requests[0].headers["Content-Length"] == str(file.stat().st_size)
        assert requests[0].headers["Idempotency-Key"] == "k"

    def test_clones_and_warm_starts_have_their_paths(self) -> None:
        sent: list[tuple[str, Any]] = []

        def answer(request: httpx2.Request) -> httpx2.Response:
            sent.append((request.url.path, json.loads(request.read())))
            return httpx2.Response(201, json={})

        with client_for(answer) as client:
            client.clone_study("a", "b", {"n_trials": 3}, import_trials=False)
            client.warm_start("b", "a", k=2)
            client.adopt_study({"name": "theirs"})
        clone = {"name": "b", "changes": {"n_trials": 3}, "import_trials": False}
        assert sent == [
            ("/v1/studies/a/clone", clone),
            ("/v1/studies/b/warm-start", {"from": "a", "k": 2, "extend": False}),
            ("/v1/studies/adopt", {"name": "theirs"}),
        ]
