"""Lists of trials and their logs on every backend: every order pages without gaps."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.storages import RDBStorage
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from hpo.errors import InvalidField
from hpo.study import Direction, StudyDefinition
from hpo.trial import Failure, Reason, TrialState
from storage import tables as t
from storage.records import Claimed, LogChunk, TrialRecord
from storage.store import Store
from storage.trial_order import SortBy, TrialFilter, TrialOrder
from tests.builders import lease_of

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]

# Equal values, none, and both infinities; 0.1 + 0.2 has digits that a text may lose.
VALUES = [0.1 + 0.2, 2.0, -math.inf, None, 2.0, 1e-308, math.inf, None, 2.0, -1.5, math.inf, 0.3]
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAIVE = BEGIN.replace(tzinfo=None)


@pytest.fixture
def study(store: Store, create: Create, stock: RDBStorage) -> str:
    """A study with finished trials of every kind of value, one running and one waiting."""
    name = create(n_trials=50, direction=Direction.MAXIMIZE).name
    trials = [
        create_trial(state=OptunaState.FAIL if value is None else OptunaState.COMPLETE, value=value)
        for value in VALUES
    ]
    for index, trial in enumerate(trials):
        trial.datetime_start = NAIVE + dt.timedelta(seconds=(7 * index) % 5, microseconds=index)
        trial.datetime_complete = trial.datetime_start + dt.timedelta(seconds=(3 * index) % 4)
    optuna.load_study(study_name=name, storage=stock).add_trials(trials)
    optuna.load_study(study_name=name, storage=stock).ask()
    optuna.load_study(study_name=name, storage=stock).enqueue_trial({"x": 0.5})
    return name


def pages(store: Store, name: str, order: TrialOrder, **query: Any) -> Iterator[TrialRecord]:
    after = None
    for _ in range(50):
        page = store.trials.page(name, order=order, limit=2, after=after, **query)
        yield from page.items
        after = page.next
        if after is None:
            return
    raise AssertionError("the pages never end")


KEYS: dict[SortBy, Callable[[TrialRecord], Any]] = {
    SortBy.NUMBER: lambda trial: trial.number,
    SortBy.VALUE: lambda trial: trial.value,
    SortBy.STARTED: lambda trial: trial.started_at,
    SortBy.DURATION: lambda trial: (
        trial.ended_at and round((trial.ended_at - trial.started_at).total_seconds(), 3)
    ),
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("by", SortBy)
def test_every_order_pages_through_all_trials(
    store: Store, study: str, by: SortBy, descending: bool
) -> None:
    found = list(pages(store, study, TrialOrder(by=by, descending=descending)))
    assert sorted(trial.number for trial in found) == list(range(len(VALUES) + 2))
    keys = [KEYS[by](trial) for trial in found]
    known = [key for key in keys if key is not None]
    assert known == sorted(known, reverse=descending)
    assert keys == known + [None] * (len(keys) - len(known))
    if by is not SortBy.NUMBER:
        for one, other in itertools.pairwise(found):
            assert KEYS[by](one) != KEYS[by](other) or one.number < other.number


@pytest.mark.parametrize(
    ("order", "place"),
    [
        (TrialOrder(), "0.5~3"),
        (TrialOrder(), "-1"),
        (TrialOrder(), str(2**31)),
        (TrialOrder(by=SortBy.VALUE), "3"),
        (TrialOrder(by=SortBy.VALUE), "nan~3"),
        (TrialOrder(by=SortBy.VALUE), "a~3"),
        (TrialOrder(by=SortBy.STARTED), "yesterday~3"),
        (TrialOrder(by=SortBy.DURATION), "1.5~x"),
        (TrialOrder(by=SortBy.DURATION), f"{10**40}~3"),
    ],
)
def test_a_place_that_no_page_has_given_is_refused(
    store: Store, study: str, order: TrialOrder, place: str
) -> None:
    with pytest.raises(InvalidField, match="the next of a page in the same order"):
        store.trials.page(study, order=order, after=place)


def numbers(store: Store, name: str, **query: Any) -> list[int]:
    return [trial.number for trial in store.trials.page(name, **query).items]


def test_filters(store: Store, study: str) -> None:
    def found(**fields: Any) -> list[int]:
        return numbers(store, study, wanted=TrialFilter(**fields))

    store.trial_changes.exclude(study, 4, "")
    assert found(excluded=True) == [4]
    assert found(excluded=False) == [n for n in range(14) if n != 4]
    assert found(min_value=2.0) == [1, 4, 6, 8, 10]
    assert found(max_value=0.3) == [2, 5, 9, 11]
    assert found(min_value=0.3, max_value=2.0) == [0, 1, 4, 8, 11]
    states = [TrialState.RUNNING, TrialState.WAITING]
    assert numbers(store, study, states=states) == [12, 13]


def test_trials_that_wait_for_their_next_attempt_can_be_found(
    store: Store, create: Create, claim: Claim
) -> None:
    create(retry_backoff_seconds=3600)
    store.claims.fail(lease_of(claim()), Failure(reason=Reason.LOST), {})
    claim()
    assert numbers(store, "demo", wanted=TrialFilter(awaiting_attempt=True)) == [0]
    assert numbers(store, "demo", wanted=TrialFilter(awaiting_attempt=False)) == [1]


def test_a_page_takes_a_fixed_number_of_statements(store: Store, study: str) -> None:
    def count(**query: Any) -> int:
        statements: list[str] = []
        engine = store._database.engine

        def note(*args: Any) -> None:
            statements.append(args[2])

        sa.event.listen(engine, "before_cursor_execute", note)
        store.trials.page(study, **query)
        sa.event.remove(engine, "before_cursor_execute", note)
        return len(statements)

    for by in SortBy:
        order = TrialOrder(by=by)
        assert count(order=order, limit=1) == count(order=order, limit=14) <= 9
        assert count(order=order, limit=1, curves=True) == count(limit=14, curves=True) <= 11


class TestLog:
    @pytest.fixture
    def written(self, store: Store, create: Create, claim: Claim) -> Callable[..., None]:
        create()
        held = lease_of(claim())

        def write(*texts: str) -> None:
            chunks = [LogChunk(sequence=i, text=text) for i, text in enumerate(texts)]
            store.logs.append(held, chunks)

        return write

    @pytest.mark.parametrize(
        ("n_lines", "text"),
        [
            (1, "five\n"),
            (2, "four\nfive\n"),
            (3, "three\nfour\nfive\n"),
            (5, "one\ntwo\nthree\nfour\nfive\n"),
            (9, "one\ntwo\nthree\nfour\nfive\n"),
        ],
    )
    def test_the_last_lines(
        self, store: Store, written: Callable[..., None], n_lines: int, text: str
    ) -> None:
        written("one\ntw", "o\nthree\n", "fo", "ur\nfive\n")
        page = store.logs.tail("demo", 0, n_lines=n_lines)
        assert "".join(line.text for line in page.items) == text
        assert [line.id for line in page.items] == sorted(line.id for line in page.items)

    def test_a_last_line_without_a_break_counts(
        self, store: Store, written: Callable[..., None]
    ) -> None:
        written("one\n", "two\nthr", "ee")
        page = store.logs.tail("demo", 0, n_lines=2)
        assert "".join(line.text for line in page.items) == "two\nthree"

    def test_of_one_attempt(self, store: Store, written: Callable[..., None], claim: Claim) -> None:
        written("first\n")
        held = store._database.read(
            lambda c: c.execute(sa.select(t.hpo_lease.c.token)).scalar_one()
        )
        from storage.records import Lease

        store.claims.release(Lease(study_name="demo", number=0, token=held))
        store.logs.append(lease_of(claim()), [LogChunk(sequence=0, text="second\n")])
        tail = store.logs.tail("demo", 0, n_lines=9, attempt=1)
        page = store.logs.page("demo", 0, after=None, limit=9, attempt=2)
        assert [line.text for line in tail.items] == ["first\n"]
        assert [line.text for line in page.items] == ["second\n"]
