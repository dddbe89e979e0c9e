"""A soak: studies run while everything around them is killed, stopped and taken away at random.

    python -m tests.acceptance.soak --database postgresql --seconds 300

It prints the faults by kind, how many trials were lost and how many counted twice, and ends with
exit code 1 unless both are 0. A trial that is asked for and has no good end is lost; one with two
ends, or with a step that is missing or there twice, is doubled.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hpo.errors import HpoError
from tests.acceptance.conftest import Service, serve
from tests.acceptance.faults import TRAINING, OwnPostgres, kill, own_postgres, stopped

LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 300.0
N_TRIALS = 12
DATABASES = ("sqlite", "postgresql")
# Light workers start children without torch; the last one trains and writes checkpoints.
WORKERS = (
    *2 * [("--isolation", "spawn", "--slots", "3", "--allow", "objectives.synthetic")],
    ("--slots", "2", "--allow", "noisy"),
)
STUDIES: tuple[dict[str, Any], ...] = (
    {"objective": "objectives.synthetic:quadratic", "settings": {"sleep_seconds": 0.2}},
    {"objective": "noisy:noisy", "settings": {"checkpoint_seconds": 0, "epoch_seconds": 0.2}},
)


class Soak:
    """One service under faults."""

    def __init__(self, service: Service, server: OwnPostgres | None, seed: int) -> None:
        self._service, self._server = service, server
        self._random = random.Random(seed)
        (service.folder / "noisy.py").write_text(TRAINING)
        self._workers = [self._launch(options) for options in WORKERS]
        self._open: dict[str, int] = {}
        self._asked: list[str] = []
        self.faults: Counter[str] = Counter()
        self.n_bad_ends = 0

    def fault(self) -> None:
        """One fault of a random kind, from its beginning to its end."""
        kinds: dict[str, Callable[[], None]] = {
            "worker killed": self._kill_worker,
            "worker terminated": self._terminate_worker,
            "worker stopped past its lease": self._stop_worker,
            "API killed": self._kill_api,
            "API terminated": self._terminate_api,
        }
        if self._server is not None:
            kinds["database crashed"] = lambda: self._restart_database("immediate")
            kinds["database restarted"] = lambda: self._restart_database("fast")
            kinds["database sessions ended"] = self._end_sessions
        kind = self._random.choice([*kinds, "worker killed"])  # the commonest of all
        kinds[kind]()
        self.faults[kind] += 1

    def keep_studies(self) -> None:
        """Launches the next study of a kind when the one before has ended."""
        with contextlib.suppress(HpoError):  # the API may be away
            for kind, fields in enumerate(STUDIES):
                running = [name for name, of in self._open.items() if of == kind]
                if all(self._has_ended(name) for name in running):
                    self._create(f"soak-{len(self._asked)}", kind, fields)

    def await_end(self) -> None:
        """Waits until every study has ended, or patience has."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            with contextlib.suppress(HpoError):
                for name in list(self._open):
                    self._has_ended(name)
            if not self._open:
                return
            time.sleep(0.5)

    def verdict(self) -> tuple[int, int, int]:
        """How many trials were asked for, how many were lost, how many are doubled."""
        n_lost = n_doubled = 0
        for name in self._asked:
            trials = list(self._service.client.trials(name, curves=True))
            good = [trial for trial in trials if trial["state"] in ("COMPLETE", "PRUNED")]
            n_lost += max(0, N_TRIALS - len(good))
            n_doubled += max(0, len(trials) - N_TRIALS) + sum(map(is_doubled, good))
        return N_TRIALS * len(self._asked), n_lost, n_doubled

    def _create(self, name: str, kind: int, fields: dict[str, Any]) -> None:
        common = {"n_trials": N_TRIALS, "seed": len(self._asked), "max_attempts": 1000}
        document = {"name": name, **common, "retry_backoff_seconds": 0, **fields}
        with contextlib.suppress(HpoError):
            # A lost answer is no trouble: the same study is created again by the same name.
            self._service.client.create_study(document)
            self._open[name] = kind
            self._asked.append(name)

    def _has_ended(self, name: str) -> bool:
        has_ended = self._service.client.study(name)["state"] != "running"
        if has_ended:
            del self._open[name]
        return has_ended

    def _launch(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        code = ("--devices", "cpu", "--code", str(self._service.folder))
        return self._service.launch_worker(*code, *options)

    def _kill_worker(self) -> None:
        place = self._random.randrange(len(WORKERS))
        kill(self._workers[place].pid)
        self._workers[place] = self._launch(WORKERS[place])

    def _terminate_worker(self) -> None:
        place = self._random.randrange(len(WORKERS))
        self._terminate(self._workers[place])
        self._workers[place] = self._launch(WORKERS[place])

    def _stop_worker(self) -> None:
        with stopped(self._random.choice(self._workers).pid):
            time.sleep(self._random.uniform(1, 2.5) * LEASE_SECONDS)

    def _kill_api(self) -> None:
        self._service.api.kill()
        self._restart_api()

    def _terminate_api(self) -> None:
        self._terminate(self._service.api)
        self._restart_api()

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        # SIGTERM's own end: it came before the process had begun its work.
        if (code := process.wait(60)) not in (0, -signal.SIGTERM):
            self.n_bad_ends += 1
            sys.stdout.write(f"{process.args} ended with exit code {code}\n")

    def _restart_api(self) -> None:
        self._service.api.wait(30)
        time.sleep(self._random.uniform(0, 1.5) * LEASE_SECONDS)
        self._service.start_api()

    def _restart_database(self, mode: str) -> None:
        assert self._server is not None
        self._server.stop(mode)
        time.sleep(self._random.uniform(0, 2) * LEASE_SECONDS)
        self._server.start()

    def _end_sessions(self) -> None:
        assert self._server is not None
        engine = sa.create_engine(self._server.url, poolclass=sa.NullPool)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = "
        with engine.connect() as connection:
            connection.exec_driver_sql(f"{others}'client backend' AND pid <> pg_backend_pid()")


def is_doubled(trial: dict[str, Any]) -> bool:
    """Whether a trial ended more than once, or its curve is not one."""
    ends = [a for a in trial["attempts"] if a["outcome"] in ("complete", "pruned")]
    steps = [point["step"] for point in trial["curve"]]
    return len(ends) != 1 or steps != list(range(len(steps)))


@contextlib.contextmanager
def prepared(database: str) -> Iterator[tuple[Service, OwnPostgres | None]]:
    """A service with its API on an empty database of a kind."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hpo-soak-")))
        server = None if database == "sqlite" else stack.enter_context(own_postgres())
        url = f"sqlite:///{folder / 'hpo.db'}" if server is None else server.url
        serving = contextlib.contextmanager(serve)
        yield stack.enter_context(serving(url, folder, lease_seconds=LEASE_SECONDS)), server


def soak(database: str, seconds: float, seed: int) -> bool:
    """Whether no trial was lost and none doubled."""
    with prepared(database) as (service, server):
        run = Soak(service, server, seed)
        pauses = random.Random(seed)
        end_at = time.monotonic() + seconds
        while time.monotonic() < end_at:
            run.keep_studies()
            time.sleep(pauses.uniform(0.5, 3))
            run.fault()
        run.await_end()
        n_trials, n_lost, n_doubled = run.verdict()
    lines = [f"{count:6d}  {kind}" for kind, count in sorted(run.faults.items())]
    facts = f"{n_trials} trials asked for, {n_lost} lost, {n_doubled} doubled"
    text = f"{database}: {sum(run.faults.values())} faults in {seconds:g} s (seed {seed}), {facts}"
    sys.stdout.write("\n".join([text, *lines, ""]))
    sys.stdout.flush()
    return n_trials > 0 and (n_lost, n_doubled, run.n_bad_ends) == (0, 0, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--database", choices=DATABASES, action="append")
    parser.add_argument("--seconds", type=float, default=300, help="on each database")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    given = parser.parse_args()
    chosen = given.database or DATABASES
    ended_well = [soak(name, given.seconds, given.seed) for name in chosen]
    return 0 if all(ended_well) else 1


if __name__ == "__main__":
    sys.exit(main())
