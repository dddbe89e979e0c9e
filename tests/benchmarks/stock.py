"""Stock Optuna doing the same trials: ask, parameters, reports with their verdicts, tell."""

from __future__ import annotations

import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

import optuna
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.study import Study

from tests.benchmarks.databases import PARAMS, STUDY
from tests.benchmarks.protocol import curve

BUSY_SECONDS = 60
SAMPLERS: dict[str, Any] = {
    "random": optuna.samplers.RandomSampler,
    "tpe": optuna.samplers.TPESampler,
}


def open_storage(url: str, **options: Any) -> BaseStorage:
    """As a user opens it; SQLite waits for other writers, which by default it does for 5 s."""
    if url.startswith("sqlite"):
        options["connect_args"] = {"timeout": BUSY_SECONDS}
    return get_storage(RDBStorage(url, engine_kwargs=options))


def open_study(storage: BaseStorage, sampler: str = "random", seed: int = 1) -> Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.load_study(
        study_name=STUDY,
        storage=storage,
        sampler=SAMPLERS[sampler](seed=seed),
        pruner=optuna.pruners.MedianPruner(),
    )


def serve_one(study: Study) -> None:
    """One trial that does nothing, to its end."""
    trial = study.ask()
    for name in PARAMS:
        trial.suggest_float(name, 0.0, 1.0)
    value = 0.0
    for step, value in enumerate(curve()):
        trial.report(value, step)
        assert not trial.should_prune()
    study.tell(trial, value)


def serve_for(study: Study, seconds: float) -> tuple[int, float]:
    """Trials until the time is over, the last one to its end; how many, and how long it took."""
    begin = time.perf_counter()
    n_trials = 0
    while time.perf_counter() - begin < seconds:
        serve_one(study)
        n_trials += 1
    return n_trials, time.perf_counter() - begin


def serve_turns(
    url: str, sampler: str, proxy_port: int | None, seed: int, pipe: Connection
) -> None:
    """A process that has loaded the study, and serves for as long as the pipe says, each time."""
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of the proxy
    if proxy_port is None:
        storage = open_storage(url)
    else:
        storage = optuna.storages.GrpcStorageProxy(host="127.0.0.1", port=proxy_port)
        storage.wait_server_ready(timeout=BUSY_SECONDS)
    study = open_study(storage, sampler, seed)
    study.get_trials(deepcopy=False)
    serve_one(study)
    pipe.send("ready")
    while True:
        pipe.send(serve_for(study, pipe.recv()))


def serve_proxy(url: str, port: int) -> None:
    """A process of Optuna's gRPC proxy, with a cached storage as its documentation asks."""
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.storages.run_grpc_proxy_server(open_storage(url), host="127.0.0.1", port=port)
