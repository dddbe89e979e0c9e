"""The Python client of the service, synchronous; scripts and the command line share it.

It repeats nothing by itself: whoever calls knows which request may be sent again. Answers are the
API's documents as dicts, with non-finite values of trials turned back into floats.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from hpo.access import Role
from hpo.connection import AccessDenied, ApiError, Connection, Document, read
from hpo.errors import HpoError
from hpo.files import written_aside
from hpo.numbers import decode_number

if TYPE_CHECKING:
    from hpo.ask import AskedTrial
    from hpo.events import Event
    from hpo.handle import GivenSpace, Study

__all__ = ["AccessDenied", "ApiError", "Client"]

PAGE_LIMIT = 500
STUDY_PAGE_LIMIT = 50
LOG_PAGE_LIMIT = 1000
NO_CONTENT = 204
COPY_SECONDS = 600.0  # until a whole study stands in the database anew
PIECE_BYTES = 1024 * 1024


class Client(Connection):
    """Speaks to the API at `url`. Safe to share between threads; use it as a context manager.

    `token` is what a service with tokens asks for, or a function that answers it for each
    request; without one it comes from HPO_TOKEN, or from the file that HPO_TOKEN_FILE names.
    """

    @classmethod
    def local(cls, data: Path | str = "hpo-data", **options: Any) -> Client:
        """Starts `hpo up` on a free port and answers a client of it; closing ends the service.

        It ends with this process, too, and its studies stay in `data`. The options are those of
        `hpo up`: `slots=2`, `code="my_project"`, `allow=["my_models"]`, `settings={"epochs": 5}`.
        """
        from hpo.local import start_service

        url, end = start_service(Path(data), options)
        client = cls(url)
        client._at_close.callback(end)
        return client

    def launch(
        self,
        *,
        name: str,
        n_trials: int,
        objective: str | None = None,
        space: GivenSpace | None = None,
        direction: str | None = None,
        settings: Document | None = None,
        sampler: str | Document | None = None,
        pruner: str | Document | None = None,
        **fields: Any,
    ) -> Study:
        """Launches a study, or opens the one that was launched so before; waits for an outage.

        `objective` is `module:name` as a worker imports it; without one programs ask for trials.
        `fields` are others of the study document, such as `seed`, `tags` or `max_failed_trials`.
        Raises ApiError with code `study_exists` when the name belongs to another definition.
        """
        from hpo.handle import launch

        named = {"name": name, "n_trials": n_trials, "objective": objective, "direction": direction}
        algorithms = {"settings": settings, "sampler": sampler, "pruner": pruner}
        return launch(self, {**named, **algorithms, **fields}, space)

    def open(self, name: str) -> Study:
        """A study as an object. Raises ApiError with code `not_found`."""
        from hpo.handle import open_study

        return open_study(self, name)

    def create_study(
        self, document: Document, *, key: str | None = None
    ) -> tuple[dict[str, Any], bool]:
        """Creates a study; False when the same one existed already.

        With an idempotency `key` the same call may be made again when its answer was lost.
        """
        response = self._send("POST", "/v1/studies", document, key=key)
        return read(response), response.status_code == httpx2.codes.CREATED

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
        return read(response)

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
        with self._stream(path, asked) as response:
            yield httpx2.EventSource(response)

    def studies(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Studies, newest first, page by page; of all but the archived ones.

        The query: `state` and `tag` (one or a list), `name_prefix`, `archived` ("true", "any").
        """
        return self._pages("/v1/studies", {"limit": STUDY_PAGE_LIMIT, **query})

    def study_and_etag(self, name: str) -> tuple[dict[str, Any], str]:
        """One study, and the version that `amend_study` takes."""
        response = self._send("GET", _study_path(name))
        return read(response), response.headers.get("ETag", "")

    def amend_study(
        self, name: str, changes: Document, *, etag: str | None = None
    ) -> dict[str, Any]:
        """Changes the budget, the priority, `tags` and `notes`; None lifts a limit.

        With an `etag` only if nobody has changed the study since, else ApiError with code
        `precondition_failed`.
        """
        headers = None if etag is None else {"If-Match": etag}
        return read(self._send("PATCH", _study_path(name), changes, headers=headers))

    def pause_study(self, name: str) -> dict[str, Any]:
        """Hands out nothing more; running trials are given back at their next report."""
        return self._post(f"{_study_path(name)}/pause")

    def resume_study(self, name: str) -> dict[str, Any]:
        """Lets a paused study go on."""
        return self._post(f"{_study_path(name)}/resume")

    def stop_study(self, name: str) -> dict[str, Any]:
        """Starts no more trials; the study ends when the running ones have."""
        return self._post(f"{_study_path(name)}/stop")

    def cancel_study(self, name: str, *, now: bool = False) -> dict[str, Any]:
        """As `stop_study`, and running trials end at their next report, or `now`."""
        return self._post(f"{_study_path(name)}/cancel", {"now": now})

    def archive_study(self, name: str) -> dict[str, Any]:
        """Leaves a study that has ended or is paused out of lists."""
        return self._post(f"{_study_path(name)}/archive")

    def unarchive_study(self, name: str) -> dict[str, Any]:
        """Lists an archived study again, and lets it go on."""
        return self._post(f"{_study_path(name)}/unarchive")

    def delete_study(
        self, name: str, *, force: bool = False, timeout_seconds: float | None = 60.0
    ) -> dict[str, Any]:
        """Deletes a study with all that is stored of it, and waits until its name is free.

        With `force` also one that has not ended. Raises TimeoutError when it takes longer; the
        service goes on with it. An admin's.
        """
        from hpo.listening import await_gone

        query = {"force": str(force).lower()}
        study = read(self._send("DELETE", _study_path(name), query=query))
        await_gone(self, study, timeout_seconds=timeout_seconds)
        return study

    def clone_study(
        self,
        name: str,
        new_name: str,
        changes: Document | None = None,
        *,
        import_trials: bool = True,
        key: str | None = None,
    ) -> dict[str, Any]:
        """A new study that is this one with changes; it imports the trials that still fit."""
        document = {
            "name": new_name,
            "changes": dict(changes or {}),
            "import_trials": import_trials,
        }
        path, patience = f"{_study_path(name)}/clone", COPY_SECONDS
        return self._post(path, document, wait_seconds=patience, key=key)

    def warm_start(
        self, name: str, source: str, *, k: int = 5, extend: bool = False, key: str | None = None
    ) -> dict[str, Any]:
        """Has the best `k` trials of the study `source` tried in this one."""
        document = {"from": source, "k": k, "extend": extend}
        return self._post(f"{_study_path(name)}/warm-start", document, key=key)

    def adopt_study(self, document: Document) -> dict[str, Any]:
        """Makes a study of plain Optuna in the service's database one of the service."""
        path = "/v1/studies/adopt"
        return self._post(path, document, wait_seconds=COPY_SECONDS)

    @contextlib.contextmanager
    def exported(self, name: str, form: str = "json") -> Iterator[Iterator[bytes]]:
        """A whole study as JSON, or its trials as CSV, piece by piece."""
        with self._stream(f"{_study_path(name)}/export", {"format": form}) as response:
            yield response.iter_bytes(PIECE_BYTES)

    def export_study(
        self,
        name: str,
        file: Path,
        *,
        form: str = "json",
        on_bytes: Callable[[int], None] = lambda done: None,
    ) -> Path:
        """Writes an export to `file`, whole or not at all; `on_bytes` is told how much has come."""
        with (
            self.exported(name, form) as pieces,
            written_aside(file) as aside,
            aside.open("wb") as opened,
        ):
            for piece in pieces:
                opened.write(piece)
                on_bytes(opened.tell())
        return file

    def import_study(
        self, file: Path, *, name: str | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Brings in a study from an exported file, under another name if one is given."""
        headers = {"Content-Type": "application/json", "Content-Length": str(file.stat().st_size)}
        if key is not None:
            headers["Idempotency-Key"] = key
        with file.open("rb") as opened:
            response = self._upload(
                "POST",
                "/v1/studies/import",
                iter(lambda: opened.read(PIECE_BYTES), b""),
                read_seconds=COPY_SECONDS,
                headers=headers,
                params={} if name is None else {"name": name},
            )
        return read(response)

    def best(self, name: str) -> dict[str, Any]:
        """The best trial. Raises ApiError with code `no_completed_trial` when there is none."""
        return self._get(f"{_study_path(name)}/best")

    def trials(
        self, name: str, *, state: str | None = None, curves: bool = False, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """All trials of a study by ascending number, page by page.

        More of the query: `excluded`, `awaiting_attempt`, `min_value`, `max_value`, `sort`
        (number, value, started, duration) and `descending`.
        """
        asked = {"limit": PAGE_LIMIT, "curves": str(curves).lower(), "state": state, **query}
        for trial in self._pages(f"{_study_path(name)}/trials", asked):
            yield _decoded_trial(trial)

    def trial(self, name: str, number: int) -> dict[str, Any]:
        """One trial with its curve and attempts."""
        return _decoded_trial(self._get(trial_path(name, number)))

    def log(
        self,
        name: str,
        number: int,
        *,
        tail: int | None = None,
        attempt: int | None = None,
        after: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What a trial's attempts have written, chunk by chunk; `tail` for the last lines only.

        `after` is the id of the last chunk seen.
        """
        query = {"limit": LOG_PAGE_LIMIT, "tail": tail, "attempt": attempt, "after": after}
        return self._pages(f"{trial_path(name, number)}/log", query)

    def enqueue(
        self,
        name: str,
        points: Sequence[Document],
        *,
        extend: bool = False,
        key: str | None = None,
    ) -> list[int]:
        """Has points tried next; answers their numbers. `extend` makes room in the budget.

        Each point has `params`, of which some may be missing, and may have `user_attrs`. With an
        idempotency `key` the same call may be made again when its answer was lost.
        """
        document = {"points": [dict(point) for point in points], "extend": extend}
        return list(self._post(f"{_study_path(name)}/trials", document, key=key)["numbers"])

    def requeue(
        self, name: str, number: int, *, extend: bool = False, key: str | None = None
    ) -> int:
        """Has the parameters of a trial that has ended tried once more; answers the new number."""
        path = f"{trial_path(name, number)}/requeue"
        return int(self._post(path, {"extend": extend}, key=key)["numbers"][0])

    def cancel_trial(self, name: str, number: int) -> dict[str, Any]:
        """Ends one trial; one that a worker runs is told so at its next report."""
        return _decoded_trial(self._post(f"{trial_path(name, number)}/cancel"))

    def exclude_trial(self, name: str, number: int, reason: str = "") -> dict[str, Any]:
        """Takes a finished trial out of best, history and analysis."""
        path = f"{trial_path(name, number)}/exclude"
        return _decoded_trial(self._post(path, {"reason": reason}))

    def include_trial(self, name: str, number: int) -> dict[str, Any]:
        """Takes an excluded trial in again."""
        return _decoded_trial(self._post(f"{trial_path(name, number)}/include"))

    def importances(self, name: str) -> dict[str, Any]:
        """How much each parameter matters. Raises ApiError with code `too_few_trials`."""
        return self._get(f"{_study_path(name)}/importances")

    def history(self, name: str, *, by: str = "number", limit: int = 500) -> dict[str, Any]:
        """Each trial that was better than all before it, by `number` or by `time`."""
        return self._get(f"{_study_path(name)}/history", {"by": by, "limit": limit})

    def pareto(self, name: str) -> dict[str, Any]:
        """The trials that no other one beats in every objective."""
        return self._get(f"{_study_path(name)}/pareto")

    def pruning(self, name: str) -> dict[str, Any]:
        """What pruning did and spared, and which pruned trial came nearest to the best."""
        found = self._get(f"{_study_path(name)}/pruning")
        if found["nearest"] is not None:
            _decode(found["nearest"], "gap")
        return found

    def objectives(self) -> list[dict[str, Any]]:
        """The objectives that registered workers offer."""
        return list(self._get("/v1/objectives")["items"])

    def workers(self) -> list[dict[str, Any]]:
        """All registered workers."""
        return list(self._get("/v1/workers")["items"])

    def tokens(self) -> list[dict[str, Any]]:
        """All tokens by name, without their secrets; this and the next two are an admin's."""
        return list(self._get("/v1/tokens")["items"])

    def create_token(self, name: str, role: Role) -> dict[str, Any]:
        """Makes a token; its secret stands in the answer and nowhere else."""
        return self._post("/v1/tokens", {"name": name, "role": role.value})

    def revoke_token(self, name: str) -> None:
        """Revokes a token; safe to repeat."""
        self._send("DELETE", f"/v1/tokens/{quote(name, safe='')}")

    def ready(self) -> None:
        """Raises Unavailable when the service or its database is away or not in order."""
        self._get("/readyz")

    def post_ask(self, study: str, document: Document, *, key: str | None = None) -> dict[str, Any]:
        """Trials of a study without an objective, as a document; `ask` makes one of them handy."""
        wait_seconds = float(document.get("wait_seconds", 0))
        path = f"{_study_path(study)}/ask"
        return self._post(path, document, wait_seconds=wait_seconds, key=key)

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
        response = self._send("POST", f"{trial_path(study, number)}/{verb}", document)
        return None if response.status_code == NO_CONTENT else read(response)

    def download_model(
        self,
        study: str,
        number: int,
        file: Path,
        *,
        on_bytes: Callable[[int, int], None] = lambda done, total: None,
    ) -> Path:
        """Writes a trial's model to `file`, whole and checked or not at all.

        `on_bytes` is told how many have come, of how many. Raises ApiError with code `not_found`
        when the trial has no model, HpoError when what came is not what was stored.
        """
        path = f"{trial_path(study, number)}/model"
        with self._stream(path) as response, written_aside(file) as aside:
            _save(response, aside, on_bytes)
        return file


def _save(response: httpx2.Response, path: Path, on_bytes: Callable[[int, int], None]) -> None:
    """Writes a model as it comes. Raises HpoError when its SHA-256 is not its ETag."""
    total = int(response.headers.get("Content-Length", 0))
    digest, n_bytes = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in response.iter_bytes(PIECE_BYTES):
            digest.update(piece)
            file.write(piece)
            n_bytes += len(piece)
            on_bytes(n_bytes, total)
    if digest.hexdigest() != response.headers.get("ETag", "").strip('"'):
        raise HpoError("the model came with another SHA-256 than it was stored with; try again")


def _study_path(name: str) -> str:
    return f"/v1/studies/{quote(name, safe='')}"


def trial_path(study: str, number: int) -> str:
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
