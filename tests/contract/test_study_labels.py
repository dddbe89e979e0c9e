"""What sorts studies for people: tags, notes, lists by them, and the archive."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from hpo.errors import Conflict, InvalidField, StudyExists
from hpo.events import EventKind
from hpo.study import StudyDefinition, StudyState
from hpo.trial import Reason, TrialState
from storage.enqueueing import Point, Request
from storage.records import Claimed
from storage.store import Store
from storage.studies import Filter
from tests.builders import definition, lease_of, request
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]


def names(store: Store, **chosen: object) -> list[str]:
    """The studies of a list, in the order of their creation."""
    page = store.studies.page(Filter(**chosen))  # type: ignore[arg-type]  # the fields of a filter
    return [record.definition.name for record in reversed(page.items)]


def test_labels_come_back_and_change_in_any_state(
    store: Store, create: Create, claim: Claim
) -> None:
    made = create(tags=("paper", "a b"), notes="first\nsecond")
    assert store.studies.get("demo").definition == made
    versions = {store.studies.get("demo").version}
    claim()
    for verb in ("pause", "stop"):
        getattr(store.lifecycle, verb)("demo")
        changed = store.lifecycle.amend("demo", {"tags": [verb], "notes": ""})
        assert (changed.definition.tags, changed.definition.notes) == ((verb,), "")
        versions.add(changed.version)
    store.lifecycle.cancel("demo", now=True)
    after = store.events.head()
    ended = store.lifecycle.amend("demo", {"tags": [], "notes": "over"})
    assert (ended.state, ended.definition.tags) == (StudyState.STOPPED, ())
    assert len(versions | {ended.version}) == 4
    (event,) = store.events.after(after)
    assert (event.kind, event.data) == (EventKind.STUDY_LABELS, {"tags": [], "notes": "over"})


def test_labels_reopen_no_study(store: Store, create: Create, claim: Claim) -> None:
    create(n_trials=1)
    store.claims.complete(lease_of(claim()), 1.0, {})
    assert store.lifecycle.amend("demo", {"tags": ["a"]}).state is StudyState.COMPLETED


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tags": ["a", "a"]}, "different ones, got 'a' twice"),
        ({"tags": [""]}, "1 to 64 printable characters each"),
        ({"tags": ["a\nb"]}, "1 to 64 printable characters each"),
        ({"tags": [str(n) for n in range(33)]}, "must be 32 or fewer, got 33"),
        ({"notes": "x" * 10_001}, "10000 characters or fewer"),
    ],
)
def test_labels_that_cannot_be_are_refused(
    store: Store, create: Create, changes: dict[str, object], sentence: str
) -> None:
    create(tags=("a",))
    with pytest.raises(InvalidField, match=sentence):
        store.lifecycle.amend("demo", changes)
    assert store.studies.get("demo").definition.tags == ("a",)


def test_a_study_with_other_labels_is_not_the_same_one(store: Store, create: Create) -> None:
    create(tags=("a",))
    made = definition(tags=("b",), notes="x")
    with pytest.raises(StudyExists, match="exists with another notes, tags") as refused:
        store.studies.create(made, given=frozenset({"tags", "notes"}))
    assert refused.value.facts["difference"]["tags"] == {"existing": ["a"], "requested": ["b"]}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"tags": ["a"]}, ["digits-1", "digits_2"]),
        ({"tags": ["a", "b"]}, ["digits-1"]),
        ({"tags": ["A"]}, []),
        ({"tags": ['"']}, ["Digits"]),
        ({"name_prefix": "digits"}, ["digits-1", "digits_2"]),
        ({"name_prefix": "digits_"}, ["digits_2"]),
        ({"name_prefix": "%"}, []),
        ({"name_prefix": "digits", "tags": ["b"]}, ["digits-1"]),
        ({"states": [StudyState.PAUSED]}, ["digits_2"]),
        ({"states": [StudyState.PAUSED], "tags": ["b"]}, []),
        ({"archived": True}, ["old"]),
        ({"archived": None}, ["digits-1", "digits_2", "Digits", "old"]),
        ({"archived": None, "name_prefix": "o"}, ["old"]),
    ],
)
def test_lists_are_chosen(
    store: Store, create: Create, chosen: dict[str, object], expected: Collection[str]
) -> None:
    create(name="digits-1", tags=("a", "b"))
    create(name="digits_2", tags=("a",))
    create(name="Digits", tags=('"', "ab"))
    create(name="old")
    store.lifecycle.pause("digits_2")
    store.lifecycle.stop("old")
    store.lifecycle.archive("old")
    assert names(store) == ["digits-1", "digits_2", "Digits"]
    assert names(store, **chosen) == expected


def test_an_archived_study_rests_until_it_is_unarchived(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=2)
    store.claims.complete(lease_of(claim()), 1.0, {})
    with pytest.raises(Conflict, match="is running; pause it"):
        store.lifecycle.archive("demo")
    version = store.lifecycle.pause("demo").version
    after = store.events.head()
    archived = store.lifecycle.archive("demo")
    assert archived == store.lifecycle.archive("demo")
    assert archived.archived_at is not None
    assert archived.version != version
    with pytest.raises(Conflict, match="is archived; unarchive it first"):
        store.lifecycle.resume("demo")
    store.lifecycle.stop("demo")
    for _ in range(2):
        assert store.lifecycle.unarchive("demo").archived_at is None
    told = [event.kind for event in store.events.after(after)]
    assert told.count(EventKind.STUDY_ARCHIVED) == told.count(EventKind.STUDY_UNARCHIVED) == 1


def test_more_trials_do_not_reopen_an_archived_study(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=1)
    store.claims.complete(lease_of(claim()), 1.0, {})
    before = store.lifecycle.archive("demo")
    point = Point(params={"x": 0.5, "kind": "a"})
    for reopen in (
        lambda: store.lifecycle.amend("demo", {"n_trials": 2}),
        lambda: store.enqueueing.enqueue("demo", [point], Request(extend=True)),
    ):
        with pytest.raises(Conflict, match="is archived; unarchive it first"):
            reopen()
        assert store.studies.get("demo") == before
    store.lifecycle.unarchive("demo")
    assert store.lifecycle.amend("demo", {"n_trials": 2}).state is StudyState.RUNNING


class TestCancelNow:
    def test_everything_that_runs_ends_at_once(
        self, store: Store, create: Create, claim: Claim, worker_id: object
    ) -> None:
        create(n_trials=9)
        store.claims.complete(lease_of(claim()), 1.0, {})
        held = [claim(), claim()]
        store.claims.release(lease_of(held.pop()))
        after = store.events.head()
        study = store.lifecycle.cancel("demo", now=True)
        assert (study.state, study.reason) == (StudyState.STOPPED, "Cancelled on request.")
        assert study.counts[TrialState.RUNNING] == 0
        assert (study.counts[TrialState.FAIL], study.awaiting_attempt) == (2, 0)
        assert store.claims.renew(worker_id, [held[0].token]) == [held[0].token]  # type: ignore[arg-type]  # a UUID
        trial = store.trials.get("demo", held[0].number)
        assert (trial.reason, trial.message) == (Reason.CANCELLED, "Cancelled on request.")
        (attempt,) = trial.attempts
        assert (attempt.outcome, attempt.reason) == ("stopped", Reason.CANCELLED)
        assert attempt.ended_at is not None
        kinds = [event.kind for event in store.events.after(after)]
        assert kinds.count(EventKind.TRIAL_ENDED) == 2
        assert store.lifecycle.cancel("demo", now=True) == study

    def test_a_study_that_drains_is_cut_off(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claim()
        assert store.lifecycle.cancel("demo").state is StudyState.STOPPING
        assert store.lifecycle.cancel("demo", now=True).state is StudyState.STOPPED

    def test_a_trial_that_is_being_sampled_is_not_handed_over(
        self,
        store: Store,
        create: Create,
        worker_id: object,
        monkeypatch: pytest.MonkeyPatch,
        database_url: str,
    ) -> None:
        create()
        search = store.deleting._search
        sampled = search.sampled

        def cancel_first(*given: object) -> object:
            store.lifecycle.cancel("demo", now=True)
            return sampled(*given)  # type: ignore[arg-type]  # as it was called

        monkeypatch.setattr(search, "sampled", cancel_first)
        assert store.claims.claim(request(worker_id)) is None  # type: ignore[arg-type]  # a UUID
        study = store.studies.get("demo")
        assert (study.state, study.counts[TrialState.FAIL]) == (StudyState.STOPPED, 1)
        clock = Clock(database_url)
        assert clock.leases() == {}
        clock.engine.dispose()
