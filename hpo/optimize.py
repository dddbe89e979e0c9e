"""Runs a local function for the trials of a study on the service, in this process.

Run again, it goes on where it was: the study remembers what was tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpo.ask import GONE, AskedTrial, NoTrial, ask, insist
from hpo.bars import study_bar
from hpo.handle import check_algorithm
from hpo.objective import Descriptor, Objective, descriptor_of
from hpo.space import GivenSpace, given_to_json, space_to_json
from hpo.study import Direction, StudyState

if TYPE_CHECKING:
    from hpo.client import Client

# Short, as a thread renews it: when this process dies, its trials are soon handed out again.
LEASE_SECONDS = 60.0
WAIT_SECONDS = 10.0


def optimize(
    client: Client,
    objective: Objective,
    *,
    name: str,
    n_trials: int,
    space: GivenSpace | None = None,
    direction: Direction | str | None = None,
    n_parallel: int = 1,
    catch: tuple[type[Exception], ...] = (),
    progress: bool = False,
    checkpoints: Path | None = None,
    worker: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Tries a function until the study has ended; answers the study.

    `fields` are others of the study's document (settings, sampler, pruner, seed, …); what is left
    out comes from the function's descriptor. An exception of the function fails its trial and is
    raised, unless `catch` names it. `n_parallel` threads run it at once.
    """
    described = _described(descriptor_of(objective) or Descriptor())
    given = {"space": None if space is None else given_to_json(space), "direction": direction}
    for field in ("sampler", "pruner"):
        check_algorithm(field, fields.get(field, {}))
    document = {**described, **{k: v for k, v in (given | fields).items() if v is not None}}
    if n_parallel < 1:
        raise ValueError(f"n_parallel must be 1 or more, got {n_parallel}")
    insist(lambda: client.create_study({"name": name, "n_trials": n_trials, **document}))
    with _shown(client, name, progress) as show:
        runner = _Runner(client, objective, name, catch, checkpoints, worker, show)
        runner.run(n_parallel)
    return client.study(name)


class _Runner:
    """Asks for trials and tries them, in one thread or several."""

    def __init__(
        self,
        client: Client,
        objective: Objective,
        study: str,
        catch: tuple[type[Exception], ...],
        checkpoints: Path | None,
        worker: str | None,
        show: Callable[[], None],
    ) -> None:
        self._client, self._objective, self._study = client, objective, study
        self._catch, self._checkpoints, self._worker = catch, checkpoints, worker
        self._show = show
        self._stop = threading.Event()
        self._held: set[AskedTrial] = set()

    def run(self, n_parallel: int) -> None:
        if n_parallel == 1:  # here, where Ctrl-C arrives
            return self._work()
        with ThreadPoolExecutor(n_parallel, thread_name_prefix="hpo-trial") as pool:
            working = [pool.submit(self._work) for _ in range(n_parallel)]
            try:
                for one in working:
                    one.result()
            finally:
                self._end()

    def _end(self) -> None:
        """No trial is asked for any more; running ones are given back at their next report."""
        self._stop.set()
        for trial in list(self._held):
            trial.link.is_stopped = True

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                trial = ask(
                    self._client,
                    self._study,
                    worker=self._worker,
                    lease_seconds=LEASE_SECONDS,
                    wait_seconds=WAIT_SECONDS,
                    checkpoints=self._checkpoints,
                )
            except NoTrial as none:
                if StudyState(none.state).is_ended:
                    return
                continue
            try:
                self._try(trial)
            except self._catch:
                pass
            except BaseException:
                self._end()
                raise
            self._show()

    def _try(self, trial: AskedTrial) -> None:
        from hpo.client import ApiError

        if self._stop.is_set():  # the ask was under way
            trial.release()
            return
        self._held.add(trial)
        try:
            with trial:
                trial.complete(self._objective(trial))
        except ApiError as error:
            if error.code not in GONE:  # else it is dropped, and the next one asked for
                raise
        finally:
            self._held.discard(trial)


def _described(descriptor: Descriptor) -> dict[str, Any]:
    found: Mapping[str, Any] = {
        "direction": descriptor.direction,
        "metric": descriptor.metric,
        "max_steps": descriptor.max_steps,
        "space": None if descriptor.space is None else space_to_json(descriptor.space),
        "settings": dict(descriptor.settings) or None,
    }
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def _shown(client: Client, name: str, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """A bar of the trials that have ended, and the best value."""
    if not is_wanted:
        yield lambda: None
        return
    with study_bar(client.study(name)) as show:
        yield lambda: show(client.study(name))
