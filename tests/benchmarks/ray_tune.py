"""Ray Tune with Optuna's search on the same database, as a peer of `tests.benchmarks.throughput`.

A process of its own: for each line it serves a trial for each client, and answers how many that
were and how long it took. A number of seconds would not do: Ray needs some until the first ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.databases import PARAMS, STUDY
from tests.benchmarks.protocol import curve
from tests.benchmarks.stock import SAMPLERS, open_storage

N_CLIENTS = 8


def nothing(_config: dict[str, Any]) -> None:
    """A trial that reports and does no more."""
    from ray import tune

    for step, value in enumerate(curve()):
        tune.report({"loss": value, "step": step})


def serve(url: str, sampler: str, folder: Path) -> tuple[int, float]:
    """A trial for each client, all at a time."""
    from ray import tune
    from ray.tune.schedulers import MedianStoppingRule
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    search = OptunaSearch(
        study_name=STUDY, storage=open_storage(url), sampler=SAMPLERS[sampler](seed=1)
    )
    begin = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(nothing, {"cpu": 1.0}),
        param_space={name: tune.uniform(0.0, 1.0) for name in PARAMS},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=N_CLIENTS,
            search_alg=ConcurrencyLimiter(search, max_concurrent=N_CLIENTS),
            scheduler=MedianStoppingRule(time_attr="step"),
        ),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    ).fit()
    seconds = time.perf_counter() - begin
    return sum(bool((result.metrics or {}).get("done")) for result in results), seconds


def main() -> None:
    import ray

    url, sampler = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray tells of itself there
    logging.disable(logging.WARNING)
    ray.init(num_cpus=N_CLIENTS, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        answers.write("ready\n")
        for _ in sys.stdin:
            served = serve(url, sampler, Path(folder))
            answers.write(json.dumps(served) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
