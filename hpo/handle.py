"""A study as an object: what `Client.launch` and `Client.open` give, for scripts and notebooks.

It holds the study's document as it was last seen and nothing else; whatever is asked of it, the
service is asked. Each request may be repeated: a service that is away for a moment is waited for.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hpo.ask import AskedTrial, insist
from hpo.bars import n_ended, study_bar
from hpo.errors import HpoError, NoCompletedTrial, NotFound
from hpo.events import Event
from hpo.listening import check_ended_well, wait
from hpo.space import Parameter, parameter_to_json
from hpo.study import StudyState

if TYPE_CHECKING:
    import pandas

    from hpo.client import Client

PATIENCE_SECONDS = 30.0  # as long as a service may take to start again
LOOK_SECONDS = 1.0

T = TypeVar("T")
Document: TypeAlias = dict[str, Any]
GivenSpace: TypeAlias = Mapping[str, Parameter | Mapping[str, Any]]


def launch(client: Client, document: Mapping[str, Any], space: GivenSpace | None) -> Study:
    """A study of this document, new or the one that exists; see `Client.launch`."""
    given = {field: value for field, value in document.items() if value is not None}
    if space is not None:
        given["space"] = {name: _parameter(found) for name, found in space.items()}
    key = uuid.uuid4().hex
    create = _opened(client).create_study
    return Study(client, _patiently(lambda: create(given, key=key)[0]))


def open_study(client: Client, name: str) -> Study:
    """The study of this name; see `Client.open`."""
    return Study(client, _patiently(lambda: _opened(client).study(name)))


class Study:
    """One study on the service.

    `document` is what was last seen of it; everything else asks the service.
    """

    def __init__(self, client: Client, document: Document) -> None:
        self._given_client = client
        self.document = document

    def __repr__(self) -> str:
        seen = self.document
        counts = ", ".join(f"{n} {state}" for state, n in seen["counts"].items() if n)
        best = f", best {seen['best']['value']:.6g}" if seen["best"] else ""
        trials = f"{n_ended(seen)}/{seen['budget']['n_trials']} trials"
        return f"<Study {self.name}: {seen['state']}, {trials} ({counts or 'none'}){best}>"

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def state(self) -> StudyState:
        return StudyState(self.refresh().document["state"])

    def refresh(self) -> Study:
        """Looks at the study anew."""
        return self._see(self._client.study)

    @property
    def best(self) -> Document | None:
        """The best trial; None while none has completed. With several directions see `pareto`."""
        from hpo.client import ApiError

        try:
            return self._ask(self._client.best)
        except ApiError as error:
            if error.code != NoCompletedTrial.code:
                raise
            return None

    @property
    def best_params(self) -> Document | None:
        """The parameters of the best trial."""
        best = self.best
        return None if best is None else dict(best["params"])

    @property
    def best_value(self) -> float | None:
        """The value of the best trial."""
        best = self.best
        return None if best is None else float(best["value"])

    def wait(
        self, *, progress: bool = True, timeout_seconds: float | None = None, check: bool = False
    ) -> Study:
        """Waits until the study has ended, also while the service is away. Raises TimeoutError.

        With `check` a study that has failed raises StudyFailed.
        """
        with study_bar(self.document) if progress else contextlib.nullcontext(_nothing) as show:
            self.document = wait(
                self._client,
                self.name,
                (),
                timeout_seconds=timeout_seconds,
                look_seconds=LOOK_SECONDS,
                seen=show,
            )
        if check:
            check_ended_well(self.document)
        return self

    def trials(self, state: str | None = None, **query: Any) -> list[Document]:
        """The trials by ascending number, or those in one state; the query is `Client.trials`'s."""
        return self._ask(lambda name: list(self._client.trials(name, state=state, **query)))

    def dataframe(self, state: str | None = None) -> pandas.DataFrame:
        """The trials as a table with columns such as `value` and `params.lr`; needs pandas."""
        try:
            import pandas
        except ImportError:
            raise ImportError("Study.dataframe needs pandas: pip install pandas") from None
        table = pandas.json_normalize(self.trials(state), max_level=1)
        lists = ["curve", "attempts"]  # asked for by `trials`
        return table.set_index("number").drop(columns=lists) if len(table) else table

    def events(
        self, *, after: str | None = None, kinds: tuple[str, ...] = (), until: str | None = None
    ) -> Iterator[Event]:
        """What happens, as it happens; see `Client.events`."""
        return self._client.events(self.name, after=after, kinds=kinds, until=until)

    def ask(self, **options: Any) -> AskedTrial:
        """A trial of a study without an objective, best in a `with`; see `Client.ask`."""
        return self._client.ask(self.name, **options)

    def pause(self) -> Study:
        """Hands out nothing more; running trials are given back at their next report."""
        return self._see(self._client.pause_study)

    def resume(self) -> Study:
        """Lets a paused study go on."""
        return self._see(self._client.resume_study)

    def stop(self) -> Study:
        """Starts no more trials; the study ends when the running ones have."""
        return self._see(self._client.stop_study)

    def cancel(self, *, now: bool = False) -> Study:
        """As `stop`, and running trials end at their next report, or `now`."""
        return self._see(lambda name: self._client.cancel_study(name, now=now))

    def extend(
        self,
        *,
        n_trials: int | None = None,
        max_parallel_trials: int | None = None,
        max_failed_trials: int | None = None,
        timeout_seconds: float | None = None,
        trial_timeout_seconds: float | None = None,
        no_progress_seconds: float | None = None,
        priority: int | None = None,
    ) -> Study:
        """Changes what the study may spend; one that has ended goes on if it has room again.

        None leaves a limit as it is; `Client.amend_study` lifts one.
        """
        given = {
            "n_trials": n_trials,
            "max_parallel_trials": max_parallel_trials,
            "max_failed_trials": max_failed_trials,
            "timeout_seconds": timeout_seconds,
            "trial_timeout_seconds": trial_timeout_seconds,
            "no_progress_seconds": no_progress_seconds,
            "priority": priority,
        }
        changes = {field: value for field, value in given.items() if value is not None}
        if not changes:
            raise ValueError(f"give one of {', '.join(given)}")
        return self._see(lambda name: self._client.amend_study(name, changes))

    def enqueue(self, *params: Mapping[str, Any], extend: bool = False) -> list[int]:
        """Has parameters tried next, one mapping for each trial; what is left out is sampled.

        Answers the trials' numbers. `extend` makes room in the budget.
        """
        key, points = uuid.uuid4().hex, [{"params": dict(found)} for found in params]
        return self._ask(lambda name: self._client.enqueue(name, points, extend=extend, key=key))

    def importances(self) -> Document:
        """How much each parameter matters. Raises ApiError with code `too_few_trials`."""
        return self._ask(self._client.importances)

    def history(self, *, by: str = "number") -> Document:
        """Each trial that was better than all before it, by `number` or by `time`."""
        return self._ask(lambda name: self._client.history(name, by=by))

    def pareto(self) -> Document:
        """The trials that no other one beats in every objective."""
        return self._ask(self._client.pareto)

    def pruning(self) -> Document:
        """What pruning did and spared, and which pruned trial came nearest to the best."""
        return self._ask(self._client.pruning)

    def download_model(self, file: Path | str, number: int | None = None) -> Path:
        """Writes the model of the best trial, or of another one, to `file`, whole or not at all."""
        if number is None:
            best = self.best
            if best is None:
                raise NotFound(f"study {self.name} has no best trial yet, so no model of it")
            number = best["number"]
        return self._client.download_model(self.name, number, Path(file))

    @property
    def _client(self) -> Client:
        return _opened(self._given_client)

    def _see(self, call: Callable[[str], Document]) -> Study:
        self.document = self._ask(call)
        return self

    def _ask(self, call: Callable[[str], T]) -> T:
        return _patiently(lambda: call(self.name))


def _opened(client: Client) -> Client:
    """The client. Raises HpoError when it is closed, since waiting does not mend that."""
    if client.is_closed:
        raise HpoError(f"the client of {client.url} has been closed; make another one")
    return client


def _patiently(call: Callable[[], T]) -> T:
    answer: T = insist(call, seconds=PATIENCE_SECONDS)
    return answer


def _parameter(given: Parameter | Mapping[str, Any]) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else parameter_to_json(given)


def _nothing(study: Mapping[str, Any]) -> None:
    """Shows nothing."""
