"""Models on every backend: those of the best trials stay, and nothing else does."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from optuna.artifacts import FileSystemArtifactStore, download_artifact, get_all_artifact_meta
from optuna.storages import RDBStorage

from hpo.errors import InvalidField, LeaseLost, ModelRefused, NotFound, TrialFinished
from hpo.study import Direction, StudyDefinition, ValueRule
from hpo.trial import Failure, Measurement, Reason
from storage import tables as t
from storage.artifacts import Arrival, Artifacts
from storage.models import NO_FOLDER, Models
from storage.records import Claimed, LeaseTimes, ModelOffer
from storage.store import Store, open_store
from tests.builders import definition, lease_of
from tests.clock import Clock

Create = Callable[..., StudyDefinition]
Claim = Callable[[], Claimed]

MAX_BYTES = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def store(database_url: str, folder: Path) -> Iterator[Store]:
    times = LeaseTimes(heartbeat_seconds=0.5, lease_seconds=1.5)
    opened = open_store(database_url, times, artifacts=folder, max_model_bytes=MAX_BYTES)
    opened.prepare()
    yield opened
    opened.close()


def offer_of(content: bytes, **fields: Any) -> ModelOffer:
    offered: dict[str, Any] = {
        "step": 3,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "suffix": ".pt",
    }
    return ModelOffer(**{**offered, **fields})


def send(store: Store, claimed: Claimed, content: bytes, value: float | None) -> str | None:
    """Offers a model and sends it if it is wanted; why it is not."""
    lease = lease_of(claimed)
    refusal = store.models.offer(lease, offer_of(content), value)
    if refusal is None:
        arrive(store, store.models.receive(lease), claimed, content)
    return refusal


def arrive(store: Store, arrival: Arrival, claimed: Claimed, content: bytes) -> None:
    arrival.write(content)
    store.models.keep(lease_of(claimed), arrival)
    arrival.close()


def perform(store: Store, claimed: Claimed, value: float) -> str | None:
    """Sends a model that holds the trial's number, and completes the trial."""
    refusal = send(store, claimed, str(claimed.number).encode(), value)
    store.claims.complete(lease_of(claimed), value, {})
    return refusal


def models(store: Store) -> dict[int, bytes]:
    """The content of each trial's model, as trials and files tell it alike."""
    found = {}
    for trial in store.trials.page("demo").items:
        if trial.model is not None:
            record, path = store.models.get("demo", trial.number)
            assert record == trial.model
            found[trial.number] = path.read_bytes()
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def kept_ids(store: Store) -> list[str]:
    return sorted(
        trial.model.artifact_id for trial in store.trials.page("demo").items if trial.model
    )


def rows(database_url: str) -> int:
    engine = sa.create_engine(database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return int(
            connection.execute(sa.select(sa.func.count()).select_from(t.hpo_model)).scalar_one()
        )


@pytest.mark.parametrize(
    ("direction", "values", "kept"),
    [
        (Direction.MINIMIZE, [3.0, 1.0, 2.0, 5.0], [1, 2]),
        (Direction.MAXIMIZE, [3.0, 1.0, 2.0, 5.0], [0, 3]),
        (Direction.MINIMIZE, [2.0, 2.0, 2.0, 1.0], [0, 3]),  # ties go to the smaller number
    ],
)
def test_the_models_of_the_best_trials_stay(
    store: Store,
    create: Create,
    claim: Claim,
    folder: Path,
    database_url: str,
    direction: Direction,
    values: list[float],
    kept: list[int],
) -> None:
    create(n_trials=4, keep_models=2, direction=direction)
    for value in values:
        perform(store, claim(), value)
        assert len(models(store)) <= 2
    assert models(store) == {number: str(number).encode() for number in kept}
    best = store.studies.best("demo")
    assert best.model is not None
    assert best.model.number == best.number
    assert (best.model.step, best.model.file_name) == (3, f"demo-{best.number}.pt")
    store.models.sweep()
    assert files(folder) == kept_ids(store)
    assert rows(database_url) == 2


def test_models_of_trials_that_violate_a_constraint_make_room(
    store: Store, create: Create, claim: Claim
) -> None:
    create(n_trials=4)
    for value, broken_by in ((0.1, 5.0), (0.05, 1.0), (0.5, -1.0), (0.02, 1.0)):
        claimed = claim()
        send(store, claimed, str(claimed.number).encode(), value)
        store.claims.complete(lease_of(claimed), value, {}, {"weights": broken_by})
        assert len(models(store)) == 1
    best = store.studies.best("demo")
    assert (best.number, list(models(store))) == (2, [2])


def test_a_model_that_would_not_stay_is_not_wanted(
    store: Store, create: Create, claim: Claim
) -> None:
    create()
    assert perform(store, claim(), 1.0) is None
    refusal = perform(store, claim(), 2.0)
    assert refusal == "The study keeps 1, and trial 0 has a better one."
    assert list(models(store)) == [0]


def test_trials_that_end_together_leave_one_model(
    store: Store, create: Create, claim: Claim, folder: Path
) -> None:
    create()
    first, second = claim(), claim()
    assert send(store, first, b"first", 2.0) is None
    assert send(store, second, b"second", 1.0) is None
    assert models(store) == {}, "of trials that still run nobody sees a model"
    store.claims.complete(lease_of(second), 1.0, {})
    store.claims.complete(lease_of(first), 2.0, {})
    assert models(store) == {1: b"second"}
    store.models.sweep()
    assert files(folder) == kept_ids(store)


@pytest.mark.parametrize(("rule", "is_wanted"), [(ValueRule.LAST, False), (ValueRule.BEST, True)])
def test_the_value_comes_from_the_reports_when_none_is_told(
    store: Store, create: Create, claim: Claim, rule: ValueRule, is_wanted: bool
) -> None:
    create(value_rule=rule)
    perform(store, claim(), 1.0)
    second = claim()
    for step, value in enumerate([3.0, 0.5, 2.0]):
        store.claims.report(lease_of(second), Measurement(step=step, value=value), {})
    assert (send(store, second, b"x", None) is None) is is_wanted


@pytest.mark.parametrize(
    ("fields", "offered", "value", "refusal"),
    [
        ({"keep_models": 0}, {}, 1.0, "keep_models is 0"),
        ({}, {"size_bytes": MAX_BYTES + 1}, 1.0, "--max-model-bytes"),
        ({}, {}, float("nan"), "no finite value"),
        ({}, {}, float("inf"), "no finite value"),
        ({}, {}, None, "no finite value"),
    ],
)
def test_a_model_that_cannot_be_kept_is_refused_with_the_reason(
    store: Store,
    create: Create,
    claim: Claim,
    fields: dict[str, Any],
    offered: dict[str, Any],
    value: float | None,
    refusal: str,
) -> None:
    create(**fields)
    lease = lease_of(claim())
    assert refusal in (store.models.offer(lease, offer_of(b"x", **offered), value) or "")
    with pytest.raises(ModelRefused, match="offer it first"):
        store.models.receive(lease)


def test_without_a_folder_no_model_is_wanted(
    database_url: str, store: Store, create: Create, claim: Claim
) -> None:
    create()
    claimed = claim()
    bare = Models(store._database, None, max_bytes=MAX_BYTES, lease_seconds=60)
    assert bare.offer(lease_of(claimed), offer_of(b"x"), 1.0) == NO_FOLDER
    assert bare.sweep() == 0
    assert store.studies.get("demo").models_blocked is None
    perform(store, claimed, 1.0)
    with pytest.raises(NotFound, match="not in this API's folder"):
        bare.get("demo", 0)


def test_a_study_says_why_no_models_are_stored(database_url: str) -> None:
    opened = open_store(database_url)
    opened.prepare()
    try:
        for name, keep_models in (("some", 1), ("none", 0)):
            opened.studies.create(definition(name=name, keep_models=keep_models), given=frozenset())
        assert opened.studies.get("some").models_blocked == NO_FOLDER
        assert opened.studies.get("none").models_blocked is None
    finally:
        opened.close()


class TestFences:
    """A token that is not valid any more moves nothing."""

    def test_a_lost_lease_offers_and_sends_nothing(
        self, store: Store, create: Create, claim: Claim, database_url: str, folder: Path
    ) -> None:
        create(retry_backoff_seconds=0)
        first = claim()
        assert store.models.offer(lease_of(first), offer_of(b"first"), 1.0) is None
        arrival = store.models.receive(lease_of(first))
        arrival.write(b"first")
        store.claims.fail(lease_of(first), Failure(reason=Reason.LOST), {})
        with pytest.raises(LeaseLost):
            store.models.keep(lease_of(first), arrival)
        arrival.close()
        for call in (
            lambda: store.models.offer(lease_of(first), offer_of(b"first"), 1.0),
            lambda: store.models.receive(lease_of(first)),
        ):
            with pytest.raises(LeaseLost):
                call()
        second = claim()
        assert (second.number, second.attempt) == (0, 2)
        perform(store, second, 1.0)
        store.models.sweep()
        assert models(store) == {0: b"0"}
        assert files(folder) == kept_ids(store)

    def test_a_trial_that_has_ended_takes_no_model(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claimed = claim()
        store.claims.complete(lease_of(claimed), 1.0, {})
        with pytest.raises(TrialFinished):
            store.models.offer(lease_of(claimed), offer_of(b"x"), 1.0)

    def test_the_model_of_a_lost_attempt_is_not_that_of_the_next(
        self, store: Store, create: Create, claim: Claim, folder: Path
    ) -> None:
        create(retry_backoff_seconds=0)
        first = claim()
        assert send(store, first, b"first", 1.0) is None
        store.claims.fail(lease_of(first), Failure(reason=Reason.LOST), {})
        store.claims.complete(lease_of(claim()), 1.0, {})
        assert models(store) == {}
        store.models.sweep()
        assert files(folder) == []


class TestRepeats:
    """An answer that got lost costs nothing but the repetition."""

    def test_an_offer_may_be_repeated(self, store: Store, create: Create, claim: Claim) -> None:
        create()
        lease = lease_of(claim())
        for _ in range(3):
            assert store.models.offer(lease, offer_of(b"x"), 1.0) is None

    def test_a_model_that_is_here_is_not_wanted_again(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claimed = claim()
        assert send(store, claimed, b"x", 1.0) is None
        assert send(store, claimed, b"x", 1.0) == "It is stored already."
        store.claims.complete(lease_of(claimed), 1.0, {})
        assert models(store) == {0: b"x"}

    def test_keeping_twice_is_keeping_once(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claimed = claim()
        store.models.offer(lease_of(claimed), offer_of(b"x"), 1.0)
        first = store.models.receive(lease_of(claimed))
        first.write(b"x")
        first.move()
        second = store.models.receive(lease_of(claimed))
        arrive(store, second, claimed, b"x")
        with pytest.raises(ModelRefused):  # its file has gone its way
            store.models.keep(lease_of(claimed), first)
        store.claims.complete(lease_of(claimed), 1.0, {})
        assert models(store) == {0: b"x"}

    def test_another_model_of_the_same_attempt_takes_its_place(
        self, store: Store, create: Create, claim: Claim, folder: Path
    ) -> None:
        create()
        claimed = claim()
        assert send(store, claimed, b"old", 1.0) is None
        assert send(store, claimed, b"new", 1.0) is None
        store.claims.complete(lease_of(claimed), 1.0, {})
        store.models.sweep()
        assert models(store) == {0: b"new"}
        assert files(folder) == kept_ids(store)


class TestArrivals:
    """Nothing half written is ever a model, and nothing is left of it."""

    @pytest.mark.parametrize(
        ("content", "field"), [(b"yxx", "sha256"), (b"xx", "size_bytes"), (b"xxxx", "size_bytes")]
    )
    def test_what_comes_must_be_what_was_offered(
        self, store: Store, create: Create, claim: Claim, folder: Path, content: bytes, field: str
    ) -> None:
        create()
        claimed = claim()
        store.models.offer(lease_of(claimed), offer_of(b"xxx"), 1.0)
        arrival = store.models.receive(lease_of(claimed))
        with pytest.raises(InvalidField) as raised:
            arrive(store, arrival, claimed, content)
        arrival.close()
        assert raised.value.field == field
        assert files(folder) == []

    def test_one_request_at_a_time_takes_in_a_file(
        self, store: Store, create: Create, claim: Claim
    ) -> None:
        create()
        claimed = claim()
        store.models.offer(lease_of(claimed), offer_of(b"xxx"), 1.0)
        half = store.models.receive(lease_of(claimed))
        with pytest.raises(ModelRefused):
            store.models.receive(lease_of(claimed))
        assert send(store, claimed, b"xxx", 1.0) is None, "offered again, it begins anew"
        half.close()

    def test_what_a_dead_process_left_half_way_is_swept(
        self, store: Store, create: Create, claim: Claim, folder: Path, database_url: str
    ) -> None:
        create()
        claimed = claim()
        store.models.offer(lease_of(claimed), offer_of(b"xxx"), 1.0)
        arrival = store.models.receive(lease_of(claimed))
        arrival.write(b"x")
        assert [name[-5:] for name in files(folder)] == [".part"]
        assert store.models.sweep() == 0, "it may still be on its way"
        store.claims.complete(lease_of(claimed), 1.0, {})
        assert store.models.sweep() == 1
        assert (files(folder), rows(database_url)) == ([], 0)
        arrival.close()

    def test_an_upload_that_was_swept_meanwhile_leaves_nothing(
        self, store: Store, create: Create, claim: Claim, folder: Path
    ) -> None:
        create()
        claimed = claim()
        store.models.offer(lease_of(claimed), offer_of(b"xxx"), 1.0)
        arrival = store.models.receive(lease_of(claimed))
        arrival.write(b"xxx")
        arrival.move()
        store.models.offer(lease_of(claimed), offer_of(b"other"), 1.0)
        arrival.move = lambda: None  # type: ignore[method-assign]  # it has moved already
        other = Models(  # another process on the same database and folder
            store._database, Artifacts(folder), max_bytes=MAX_BYTES, lease_seconds=60
        )
        assert other.sweep() == 1
        (folder / arrival.artifact_id).write_bytes(b"xxx")
        with pytest.raises(ModelRefused, match="gone on without"):
            store.models.keep(lease_of(claimed), arrival)
        assert files(folder) == []

    def test_a_folder_that_cannot_be_written_costs_the_model_only(
        self, store: Store, create: Create, claim: Claim, folder: Path
    ) -> None:
        create()
        folder.write_text("a file where the folder should be")
        claimed = claim()
        with pytest.raises(ModelRefused, match="cannot be stored"):
            send(store, claimed, b"x", 1.0)
        store.claims.complete(lease_of(claimed), 1.0, {})
        assert store.trials.get("demo", 0).model is None


class TestSweep:
    """What is no longer wanted goes; what others keep in the folder stays."""

    def test_the_model_of_a_trial_that_fails_goes(
        self, store: Store, create: Create, claim: Claim, folder: Path, database_url: str
    ) -> None:
        create()
        claimed = claim()
        send(store, claimed, b"x", 1.0)
        store.claims.fail(lease_of(claimed), Failure(reason=Reason.OBJECTIVE_ERROR), {})
        assert store.models.sweep() == 1
        assert (files(folder), rows(database_url)) == ([], 0)

    def test_the_models_of_a_study_that_was_deleted_go(
        self, store: Store, create: Create, claim: Claim, folder: Path, stock: RDBStorage
    ) -> None:
        create()
        perform(store, claim(), 1.0)
        optuna.delete_study(study_name="demo", storage=stock)
        store.deleting.purge()
        assert store.models.sweep() == 1
        assert files(folder) == []

    def test_what_other_programs_keep_there_stays(
        self, store: Store, create: Create, claim: Claim, folder: Path
    ) -> None:
        create()
        theirs = str(uuid.uuid4())
        folder.mkdir()
        (folder / theirs).write_text("a plot")
        for value in (3.0, 2.0, 1.0):
            perform(store, claim(), value)
        assert store.models.sweep() == 2
        assert set(files(folder)) == {theirs, *kept_ids(store)}


def test_optuna_finds_the_model_among_the_trials_artifacts(
    store: Store, create: Create, claim: Claim, folder: Path, stock: RDBStorage, tmp_path: Path
) -> None:
    create()
    perform(store, claim(), 2.0)
    perform(store, claim(), 1.0)
    first, second = optuna.load_study(study_name="demo", storage=stock).trials
    assert get_all_artifact_meta(first, storage=stock) == []
    (meta,) = get_all_artifact_meta(second, storage=stock)
    assert (meta.filename, meta.mimetype) == ("demo-1.pt", "application/octet-stream")
    copy = tmp_path / "copy"
    download_artifact(
        artifact_store=FileSystemArtifactStore(folder),
        artifact_id=meta.artifact_id,
        file_path=str(copy),
    )
    assert copy.read_bytes() == b"1"


def test_an_offer_renews_the_lease(
    store: Store, create: Create, claim: Claim, database_url: str
) -> None:
    create()
    claimed = claim()
    clock = Clock(database_url)
    clock.expire(claimed.token)
    assert store.models.offer(lease_of(claimed), offer_of(b"x"), 1.0) is None
    store.claims.reap()
    assert store.claims.complete(lease_of(claimed), 1.0, {}).state == "COMPLETE"
