"""One trial cancelled, excluded or included, on every backend."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import create_trial

from hpo.errors import Conflict, LeaseLost, NoCompletedTrial, NotFound, TrialFinished
from hpo.study import Algorithm, Direction, StudyDefinition, StudyState
from hpo.trial import Failure, Measurement, Reason, TrialState, Verdict
from storage import search
from storage.enqueueing import Point, Request
from storage.records import Claimed
from storage.store import Store, open_store
from tests.builders import lease_of, request
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]
CANCELLED = (TrialState.FAIL, Reason.CANCELLED)


@pytest.fixture
def clock(database_url: str) -> Clock:
    return Clock(database_url)


@pytest.fixture
def second(store: Store, database_url: str) -> Iterator[Store]:
    """Another API process on the same database, where there may be one."""
    if not database_url.startswith("postgresql"):
        yield store
        return
    opened = open_store(database_url, store.times)
    opened.prepare()
    yield opened
    opened.close()


def state_of(store: Store, number: int = 0) -> tuple[TrialState, Reason | None]:
    trial = store.trials.get("demo", number)
    return trial.state, trial.reason


class Spy(RandomSampler):
    """Notes which complete trials a sampler is shown."""

    seen: ClassVar[set[int]]

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        Spy.seen = {trial.number for trial in complete}
        return {}


def report(store: Store, claimed: Claimed, step: int, value: float = 0.5) -> Verdict:
    measurement = Measurement(step=step, value=value)
    return store.claims.report(lease_of(claimed), measurement, {}).verdict


class TestCancel:
    def test_a_running_trial_is_told_at_its_next_report(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        held = claim()
        assert report(store, held, 0) is Verdict.CONTINUE
        store.trial_changes.cancel("demo", 0)
        store.trial_changes.cancel("demo", 0)
        assert store.trials.get("demo", 0).state is TrialState.RUNNING
        assert report(store, held, 1) is Verdict.STOP
        store.claims.prune(lease_of(held), {})
        assert state_of(store) == CANCELLED
        assert store.studies.get("demo").state is StudyState.RUNNING
        store.trial_changes.cancel("demo", 0)

    def test_it_says_so_also_while_the_study_is_paused(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        held = claim()
        store.trial_changes.cancel("demo", 0)
        store.lifecycle.pause("demo")
        assert report(store, held, 0) is Verdict.STOP

    @pytest.mark.parametrize("end", ["release", "lost"])
    def test_a_trial_that_is_given_back_ends(
        self, store: Store, create: Create, claim: Claim, clock: Clock, end: str
    ) -> None:
        create()
        held = claim()
        store.trial_changes.cancel("demo", 0)
        if end == "release":
            store.claims.release(lease_of(held))
        else:
            store.claims.reap()
            clock.expire(held.token)
            store.claims.reap()
        assert state_of(store) == CANCELLED

    def test_a_trial_that_hangs_is_taken_away_after_a_lease(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        held, now = claim(), [0.0]
        store.claims._reaper._clock = lambda: now[0]
        store.trial_changes.cancel("demo", 0)
        store.claims.reap()
        assert state_of(store) == (TrialState.RUNNING, None)
        now[0] = store.times.lease_seconds + 1
        assert store.claims.reap() == 1
        assert state_of(store) == CANCELLED
        with pytest.raises((LeaseLost, TrialFinished)):
            report(store, held, 0)

    def test_a_trial_that_waits_for_its_next_attempt_ends_at_once(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(retry_backoff_seconds=3600)
        store.claims.fail(lease_of(claim()), Failure(reason=Reason.LOST), {})
        store.trial_changes.cancel("demo", 0)
        assert state_of(store) == CANCELLED
        assert not store.trials.get("demo", 0).awaiting_attempt

    def test_an_enqueued_trial_ends_and_leaves_its_place_in_the_budget(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create(n_trials=2)
        store.enqueueing.enqueue("demo", [Point(params={"x": 0.5})], Request())
        store.trial_changes.cancel("demo", 0)
        assert state_of(store) == CANCELLED
        first, second = claim(), claim()
        assert [first.number, second.number] == [1, 2]
        store.claims.complete(lease_of(first), 1.0, {})
        # The cancelled one must not be taken for one of the two that the study started.
        assert store.studies.get("demo").state is StudyState.RUNNING
        store.claims.complete(lease_of(second), 1.0, {})
        assert store.studies.get("demo").state is StudyState.COMPLETED

    def test_a_trial_whose_parameters_are_being_drawn_ends_at_once(
        self, store: Store, create: Create, worker_id: uuid.UUID, monkeypatch: Any
    ) -> None:
        create(n_trials=1)
        sample, drawing, go_on = search.sample, threading.Event(), threading.Event()

        def slow(*args: Any) -> Any:
            drawing.set()
            assert go_on.wait(30)
            return sample(*args)

        monkeypatch.setattr(search, "sample", slow)
        claimed: list[Claimed | None] = []
        thread = threading.Thread(
            target=lambda: claimed.append(store.claims.claim(request(worker_id)))
        )
        thread.start()
        assert drawing.wait(30)
        store.trial_changes.cancel("demo", 0)
        go_on.set()
        thread.join()
        assert claimed == [None]
        assert state_of(store) == CANCELLED
        assert store.studies.get("demo").state is StudyState.COMPLETED

    def test_a_trial_that_has_ended_stays_as_it_is(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        held = claim()
        store.trial_changes.cancel("demo", 0)
        store.claims.complete(lease_of(held), 1.0, {})  # it was done before it heard
        assert store.trials.get("demo", 0).state is TrialState.COMPLETE
        with pytest.raises(TrialFinished):
            store.trial_changes.cancel("demo", 0)

    def test_a_trial_of_another_program_is_not_ours_to_end(
        self, store: Store, create: Create, stock: RDBStorage
    ) -> None:
        create()
        optuna.load_study(study_name="demo", storage=stock).ask()
        with pytest.raises(Conflict, match="Another Optuna program runs"):
            store.trial_changes.cancel("demo", 0)
        with pytest.raises(NotFound):
            store.trial_changes.cancel("demo", 1)


class TestExclude:
    @pytest.fixture
    def ten(self, store: Store, create: Create, claim: Claim) -> list[Claimed]:
        """Ten complete trials, whose values are their numbers."""
        create(n_trials=20, direction=Direction.MAXIMIZE)
        done = [claim() for _ in range(10)]
        for claimed in done:
            store.claims.complete(lease_of(claimed), float(claimed.number), {})
        return done

    def test_the_next_best_takes_its_place_until_it_is_included_again(
        self, store: Store, ten: list[Claimed]
    ) -> None:
        store.trial_changes.exclude("demo", 9, "wrong data")
        store.trial_changes.exclude("demo", 9, "wrong labels")
        study = store.studies.get("demo")
        assert study.best is not None
        assert study.best.number == 8
        assert study.counts[TrialState.COMPLETE] == 10
        exclusion = store.trials.get("demo", 9).exclusion
        assert exclusion is not None
        assert exclusion.reason == "wrong labels"
        store.trial_changes.include("demo", 9)
        store.trial_changes.include("demo", 9)
        assert store.studies.best("demo").number == 9
        assert store.trials.get("demo", 9).exclusion is None

    def test_when_all_are_excluded_there_is_no_best(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        store.claims.complete(lease_of(claim()), 1.0, {})
        store.trial_changes.exclude("demo", 0, "")
        with pytest.raises(NoCompletedTrial):
            store.studies.best("demo")

    def test_plain_optuna_still_shows_it(
        self, store: Store, ten: list[Claimed], stock: RDBStorage
    ) -> None:
        store.trial_changes.exclude("demo", 9, "")
        study = optuna.load_study(study_name="demo", storage=stock)
        assert study.best_trial.number == 9

    @pytest.mark.parametrize("pruner", ["median", "hyperband"])
    def test_samplers_do_not_see_it(
        self,
        store: Store,
        second: Store,
        create: Create,
        claim: Claim,
        worker_id: uuid.UUID,
        monkeypatch: pytest.MonkeyPatch,
        pruner: str,
    ) -> None:
        create(n_trials=20, max_steps=9, pruner=Algorithm(name=pruner))
        for _ in range(6):
            store.claims.complete(lease_of(claim()), 1.0, {})
        monkeypatch.setattr("hpo.search.sampling.make_sampler", lambda *_: Spy())

        def seen() -> set[int]:
            claimed = second.claims.claim(request(worker_id))
            assert claimed is not None
            return Spy.seen

        # With Hyperband a trial sees those of its own bracket; among so many each one comes up.
        before = set().union(*(seen() for _ in range(4)))
        for number in before:
            store.trial_changes.exclude("demo", number, "")
        assert before
        assert not set().union(*(seen() for _ in range(4)))
        for number in before:
            store.trial_changes.include("demo", number)
        assert set().union(*(seen() for _ in range(4)))

    def test_pruners_do_not_compare_with_it(
        self, store: Store, second: Store, create: Create, claim: Claim
    ) -> None:
        create(
            n_trials=20,
            pruner=Algorithm(name="median", options={"n_startup_trials": 1}),
        )
        good = claim()
        report(store, good, 0, 0.0)
        store.claims.complete(lease_of(good), 0.0, {})
        worse = claim()
        assert report(store, worse, 0, 1.0) is Verdict.PRUNE
        second.trial_changes.exclude("demo", good.number, "")
        other = claim()
        assert report(store, other, 0, 1.0) is Verdict.CONTINUE
        second.trial_changes.include("demo", good.number)
        third = claim()
        assert report(store, third, 0, 1.0) is Verdict.PRUNE

    def test_what_has_not_ended_cannot_be_excluded(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claim()
        with pytest.raises(Conflict, match="Cancel it first"):
            store.trial_changes.exclude("demo", 0, "")
        for change in (
            store.trial_changes.include,
            lambda s, n: store.trial_changes.exclude(s, n, ""),
        ):
            with pytest.raises(NotFound):
                change("demo", 5)

    def test_a_trial_of_another_program_can_be_excluded(
        self, store: Store, create: Create, stock: RDBStorage
    ) -> None:
        create()
        study = optuna.load_study(study_name="demo", storage=stock)
        study.add_trials([create_trial(value=1.0), create_trial(value=2.0)])
        store.trial_changes.exclude("demo", 0, "")
        assert store.studies.best("demo").number == 1
        assert store.studies.get("demo").n_started == 0

    def test_exclusions_go_with_their_study(
        self, store: Store, ten: list[Claimed], stock: RDBStorage, create: Create, claim: Claim
    ) -> None:
        store.trial_changes.exclude("demo", 9, "")
        optuna.delete_study(study_name="demo", storage=stock)
        store.deleting.purge()
        create(n_trials=20)
        for _ in range(10):
            store.claims.complete(lease_of(claim()), 1.0, {})
        assert store.trials.get("demo", 9).exclusion is None
