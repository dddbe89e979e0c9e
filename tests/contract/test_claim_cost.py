"""What a claim costs: few statements, and as many with ten times the trials."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from optuna.distributions import FloatDistribution, distribution_to_json

from hpo.space import FloatRange
from hpo.study import Algorithm, StudyDefinition
from storage import tables as t
from storage.engine import naive_utc
from storage.store import Store
from tests.builders import lease_of, request
from tests.statements import sent_by

Create = Callable[..., StudyDefinition]

SPACE = {f"x{index}": FloatRange(low=0, high=1) for index in range(5)}
# The look, BEGIN, lock, take, COMMIT, hand-over; tpe looks for changes as well. SQLite writes each
# table by a statement of its own.
LIMITS = {("random", "postgresql"): 6, ("tpe", "postgresql"): 7,
          ("random", "sqlite"): 16, ("tpe", "sqlite"): 18}  # fmt: skip


def add_complete(store: Store, n_trials: int) -> None:
    """Trials of another program, which the sampler learns from."""

    def write(connection: sa.Connection) -> None:
        trial = t.trials.c
        last = connection.execute(sa.select(sa.func.max(trial.number))).scalar_one()
        times = {"datetime_start": naive_utc(), "datetime_complete": naive_utc()}
        ids = connection.execute(
            t.trials.insert().returning(trial.trial_id),
            [
                {"study_id": 1, "number": last + 1 + index, "state": "COMPLETE", **times}
                for index in range(n_trials)
            ],
        ).scalars()
        found = list(ids)
        drawn = {"distribution_json": distribution_to_json(FloatDistribution(0, 1))}
        connection.execute(
            t.trial_params.insert(),
            [
                {"trial_id": i, "param_name": name, "param_value": 1 / (2 + i % 7), **drawn}
                for i in found
                for name in SPACE
            ],
        )
        kind = {"objective": 0, "value_type": t.ValueType.FINITE}
        values = [{"trial_id": i, "value": float(i % 11), **kind} for i in found]
        connection.execute(t.trial_values.insert(), values)

    store._database.write(write)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_claim_takes_few_statements_however_many_trials_there_are(
    store: Store, create: Create, worker_id: uuid.UUID, sampler: str
) -> None:
    create(n_trials=1000, space=SPACE, sampler=Algorithm(name=sampler))
    counts = []
    for n_more in (30, 300, 0):
        for _ in range(2):  # the first one reads what is new
            first = store.claims.claim(request(worker_id))
            assert first is not None
            store.claims.complete(lease_of(first), 0.5)
        with sent_by(store) as sent:
            claimed = store.claims.claim(request(worker_id))
        assert claimed is not None
        assert claimed.params.keys() == SPACE.keys()
        counts.append(len(sent))
        if n_more:
            add_complete(store, n_more)
    limit = LIMITS[sampler, store._database.engine.dialect.name]
    assert counts[1:] == [limit, limit], "\n\n".join(sent)
