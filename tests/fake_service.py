"""The worker protocol, spoken by a scripted server that checks what workers send.

It keeps no database and decides nothing: a test says what is claimed, which verdicts come and
when the service is away.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Document = dict[str, Any]
Answer = tuple[int, Document | None]

# Exactly these members, as the API accepts no others.
MEMBERS = {
    "register": {
        *("id", "name", "version", "protocol", "slots", "devices", "allow", "objectives"),
    },
    "heartbeat": {"tokens", "devices"},
    "claims": {"worker_id", "claim_key", "device", "wait_seconds"},
    "start": {"token", "resumed_from_step"},
    "suggest": {"token", "name", "parameter"},
    "report": {"token", "step", "value", "elapsed_seconds", "metrics", "user_attrs"},
    "model": {"token", "value", "step", "sha256", "size_bytes", "suffix"},
    "complete": {"token", "value", "user_attrs"},
    "prune": {"token", "user_attrs"},
    "fail": {"token", "reason", "message", "traceback", "user_attrs"},
    "release": {"token"},
    "log": {"token", "chunks"},
}
STATES = {"complete": "COMPLETE", "prune": "PRUNED", "fail": "FAIL", "release": "RUNNING"}
WAIT_SECONDS = 60.0


def members_of(document: Document) -> set[str]:
    """Several values stand in place of one; constraints only where there are some."""
    return {"value" if name == "values" else name for name in document} - {"constraints"}


def problem(status: int, code: str, **facts: Any) -> Answer:
    """A problem document."""
    title = code.replace("_", " ")
    return status, {"title": title, "status": status, "detail": title, "code": code, **facts}


class FakeService:
    """What was said stands in `said`, in order; a request that lost its answer stands there too."""

    def __init__(self) -> None:
        self.url = ""
        self.said: list[tuple[str, Document]] = []
        self.faults: list[str] = []
        self.changed = threading.Condition()
        self.is_away = False
        self.turned_away: list[str] = []
        self.answers_to_lose = 0
        self.lost_tokens: set[str] = set()
        self.deleted: list[str] = []  # studies, by their UUIDs
        self.known_workers: set[str] = set()
        self.verdict: Callable[[int], Document] = lambda step: {"verdict": "continue"}
        self.refuse: Callable[[str, Document], Answer | None] = lambda verb, document: None
        self.suggestions: Document = {}
        self.models: list[tuple[str, bytes]] = []
        self.heartbeat_seconds = 0.05
        self.studies: list[Document] = []
        self.trials: dict[int, Document] = {}
        self.questions: list[str] = []
        self._claims: list[Document] = []
        self._claimed: dict[str, Document] = {}

    def offer(self, objective: str, **members: Any) -> Document:
        """Lets a worker claim a trial."""
        number = members.get("number", len(self._claims) + len(self._claimed))
        claim = {
            "study": "digits",
            "study_uuid": "1f6d",
            "objective": objective,
            "direction": "minimize",
            "number": number,
            "attempt": 1,
            "token": f"token-{number}",
            "params": {},
            "space_declared": True,
            "settings": {},
            "seed": 7,
            "max_steps": None,
            "value_rule": "last",
            "keep_models": 0,
            "lease_seconds": 60,
            "seconds_left": None,
            "no_progress_seconds": None,
            **members,
        }
        with self.changed:
            self._claims.append(claim)
            self.changed.notify_all()
        return claim

    def wait_for(self, verb: str, n_times: int = 1) -> Document:
        """Waits until a verb has been said so often; its last document."""
        with self.changed:
            happened = self.changed.wait_for(lambda: len(self.all(verb)) >= n_times, WAIT_SECONDS)
        assert happened, f"no {verb}, but {[verb for verb, _ in self.said]}"
        return self.all(verb)[n_times - 1]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Waits until what has been said makes something true."""
        with self.changed:
            assert self.changed.wait_for(is_so, WAIT_SECONDS), f"only {self.said[-20:]}"

    def outcome_of(self, token: str) -> tuple[str, Document]:
        """Waits for the outcome of an attempt: its verb and its document."""

        def found() -> list[tuple[str, Document]]:
            return [
                (verb, document)
                for verb, document in self.said
                if verb in STATES and document["token"] == token
            ]

        self.wait_until(lambda: bool(found()))
        return found()[0]

    def key_of(self, token: str) -> str:
        """The key of the claim that a trial was handed over to."""
        return next(key for key, claim in self._claimed.items() if claim["token"] == token)

    def all(self, verb: str) -> list[Document]:
        """All documents of a verb."""
        return [document for said, document in self.said if said == verb]

    @property
    def trial_verbs(self) -> list[str]:
        """What was said of trials, without their logs."""
        others = ("register", "heartbeat", "claims", "log")
        return [verb for verb, _ in self.said if verb not in others]

    @property
    def log_text(self) -> str:
        """The log of all attempts, put together by sequence."""
        chunks = {
            chunk["sequence"]: chunk["text"]
            for document in self.all("log")
            for chunk in document["chunks"]
        }
        return "".join(chunks[sequence] for sequence in sorted(chunks))

    def answer(self, path: str, document: Document) -> Answer | None:
        """The answer to a request; None loses it after it has been heard."""
        verb = path.rpartition("/")[2]
        verb = "register" if verb == "workers" else verb
        with self.changed:
            if self.is_away:
                self.turned_away.append(verb)
                self.changed.notify_all()
                return problem(503, "unavailable")
            if different := members_of(document) ^ MEMBERS[verb]:
                self.faults.append(f"{verb}: {sorted(different)}")
            self.said.append((verb, document))
            self.changed.notify_all()
            if self.answers_to_lose and verb in ("report", "complete"):
                self.answers_to_lose -= 1
                return None
        refusal = self.refuse(verb, document)
        if refusal is not None:
            return refusal
        if document.get("token") in self.lost_tokens and verb != "log":
            return problem(409, "lease_lost")
        takers: dict[str, Callable[[str, Document], Answer]] = {
            "register": self._register,
            "heartbeat": self._heartbeat,
            "claims": self._claim,
            "suggest": lambda _, asked: (200, {"value": self.suggestions[asked["name"]]}),
            "report": lambda _, report: (200, self._verdict(report)),
            "model": lambda *_: (200, {"wanted": True, "reason": None}),
        }
        if verb in takers:
            return takers[verb](path, document)
        if verb in STATES:
            is_released = verb == "release"
            return 200, {"state": STATES[verb], "awaiting_attempt": is_released, "reason": None}
        return 204, None

    def take_model(self, token: str, content: bytes) -> Answer:
        """The model that was wanted."""
        with self.changed:
            if self.is_away:
                self.turned_away.append("put_model")
                self.changed.notify_all()
                return problem(503, "unavailable")
            self.models.append((token, content))
            self.said.append(("put_model", {"token": token}))
            self.changed.notify_all()
        return self.refuse("put_model", {"token": token}) or (204, None)

    def look_up(self, path: str) -> Answer:
        """The answer to a question: the studies, the running trials of one, or one trial."""
        with self.changed:
            self.questions.append(path)
            self.changed.notify_all()
        if path.startswith("/v1/studies?"):
            return 200, {"items": self.studies, "next": None}
        if "/trials?" in path:
            running = [found for found in self.trials.values() if found["state"] == "RUNNING"]
            return 200, {"items": running, "next": None}
        trial = self.trials.get(int(path.rpartition("/")[2]))
        return (200, trial) if trial else problem(404, "not_found")

    def _register(self, _: str, document: Document) -> Answer:
        self.known_workers.add(document["id"])
        return 200, {"heartbeat_seconds": self.heartbeat_seconds, "lease_seconds": 60}

    def _heartbeat(self, path: str, document: Document) -> Answer:
        if path.split("/")[-2] not in self.known_workers:
            return problem(404, "not_found")
        lost = [token for token in document["tokens"] if token in self.lost_tokens]
        return 200, {"lost": lost, "deleted": self.deleted}

    def _claim(self, _: str, document: Document) -> Answer:
        if document["worker_id"] not in self.known_workers:
            return problem(404, "not_found")
        key = document["claim_key"]
        with self.changed:
            # Short, so that a test that stops a worker does not wait for its poll.
            self.changed.wait_for(lambda: self._claims or key in self._claimed, 0.2)
            if key not in self._claimed:
                if not self._claims:
                    return 204, None
                self._claimed[key] = self._claims.pop(0)
            return 200, self._claimed[key]

    def _verdict(self, report: Document) -> Document:
        return {"reason": None, "evidence": {}, **self.verdict(report["step"])}


@contextmanager
def serving(service: FakeService) -> Iterator[FakeService]:
    """Serves over HTTP on a free port; what was said out of order or shape fails the test."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer: two would wait for a delayed ACK

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            document = json.loads(self.rfile.read(length), parse_constant=service.faults.append)
            answer = service.answer(self.path, document)
            if answer is None:
                self.close_connection = True
                return
            self.reply(answer)

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(service.take_model(self.headers["Lease-Token"], content))

        def do_GET(self) -> None:
            self.reply(service.look_up(self.path))

        def reply(self, answer: Answer) -> None:
            status, body = answer
            content = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            error = sys.exception()
            if not isinstance(error, OSError):  # a worker that was ended hangs up
                service.faults.append(repr(error))

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        service.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield service
        server.shutdown()
        thread.join()
    assert not service.faults, service.faults
