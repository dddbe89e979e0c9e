"""Figures for Prometheus at /metrics: few labels, and never the name of a study or a token.

What one process did is counted here; what stands in the database is asked for when somebody
looks, a few seconds' old at most, so any number of API processes tell the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hpo.errors import HpoError
from storage.census import Census
from storage.store import Store

CENSUS_SECONDS = 5.0
METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
REQUEST_BUCKETS = (0.005, 0.02, 0.05, 0.2, 0.5, 2.0, 5.0, 30.0)
STATEMENT_BUCKETS = (0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 1.0, 5.0)


class Metrics:
    """The figures of one app."""

    def __init__(self, store: Store, *, n_waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "hpo_request_seconds",
            "Time of requests by their route",
            ["method", "route", "code"],
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._statements = Histogram(
            "hpo_statement_seconds",
            "Time of statements in the database",
            ["kind"],
            buckets=STATEMENT_BUCKETS,
            registry=self.registry,
        )
        self._claims = Counter(
            "hpo_claims", "Claims that were answered", ["answer"], registry=self.registry
        )
        self._verdicts = Counter(
            "hpo_verdicts", "Verdicts on reports", ["verdict"], registry=self.registry
        )
        self.registry.register(_InTheDatabase(store, n_waiting))

    def note_request(self, method: str, route: str, code: int, seconds: float) -> None:
        known = method if method in METHODS else "(other)"
        self._requests.labels(known, route, str(code)).observe(seconds)

    def note_statement(self, kind: str, seconds: float) -> None:
        self._statements.labels(kind).observe(seconds)

    def note_claim(self, *, was_granted: bool) -> None:
        self._claims.labels("trial" if was_granted else "none").inc()

    def note_verdict(self, verdict: str) -> None:
        self._verdicts.labels(verdict).inc()


class _InTheDatabase(Collector):
    """What is asked for when somebody looks; a database that is away hides the rest from nobody."""

    def __init__(
        self,
        store: Store,
        n_waiting: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._n_waiting, self._clock = store, n_waiting, clock
        self._lock = threading.Lock()
        self._census: Census | None = None
        self._known_until = float("-inf")

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that to register asks no database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            census = self._census = self._counted()
        yield _gauge("hpo_database_up", "Whether the database answers", int(census is not None))
        yield _gauge("hpo_requests_waiting", "Long polls and streams now", self._n_waiting())
        expired = CounterMetricFamily("hpo_leases_expired", "Leases that ran out and were ended")
        expired.add_metric([], self._store.claims.n_expired)
        yield expired
        if census is None:
            return
        yield _by_label("hpo_trials", "Trials by state", "state", census.trials)
        yield _by_label("hpo_studies", "Studies by state", "state", census.studies)
        yield _by_label("hpo_leases", "Leases by phase", "phase", census.leases)
        yield _gauge("hpo_workers_alive", "Workers that beat", census.n_workers)
        yield _gauge("hpo_worker_slots_alive", "Slots of workers that beat", census.n_slots)

    def _counted(self) -> Census | None:
        now = self._clock()
        if now < self._known_until:
            return self._census
        self._known_until = now + CENSUS_SECONDS
        try:
            return self._store.census()
        except HpoError:
            return None


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _by_label(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
