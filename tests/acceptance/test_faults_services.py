"""The database and the API go away and come back: workers go on, and everything arrives once."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest
import sqlalchemy as sa

from hpo.client import Client
from hpo.errors import HpoError, Unavailable
from hpo.worker.calls import WorkerClient
from tests.acceptance.conftest import Service, await_fact, free_port, serve
from tests.acceptance.faults import OwnPostgres, own_postgres, whole_trials

LIGHT = ("--devices", "cpu", "--isolation", "spawn", "--allow", "objectives.synthetic")


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnPostgres]:
    """A server with few connections, which ends a session that is idle for 2 s."""
    with own_postgres(max_connections="40", idle_session_timeout="2s") as server:
        yield server


@pytest.fixture(scope="module")
def shared(own_server: OwnPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on that server with two workers of four slots, for all tests here."""
    folder = tmp_path_factory.mktemp("shared")
    for service in serve(own_server.url, folder, lease_seconds=3):
        for _ in range(2):
            service.launch_worker(*LIGHT, "--slots", "4")
        await_fact(lambda s=service: len(s.client.workers()) == 2, what="for the workers")
        yield service
        assert [process.poll() for process in service.processes[1:3]] == [None, None]


def create(service: Service, name: str, n_trials: int, **settings: float) -> None:
    service.client.create_study(
        {
            "name": name,
            "objective": "objectives.synthetic:quadratic",
            "n_trials": n_trials,
            "seed": 3,
            "sampler": "random",
            "settings": settings,
            "retry_backoff_seconds": 0,
        }
    )


def n_reports(service: Service, name: str) -> int:
    """Also 0 while the database does not answer."""
    try:
        trials = list(service.client.trials(name))
    except Unavailable:
        return 0
    return sum(t["last_step"] + 1 for t in trials if t["last_step"] is not None)


def test_a_database_that_is_away_and_an_api_that_is_killed_cost_nothing(
    shared: Service, own_server: OwnPostgres
) -> None:
    service = shared
    create(service, "long", 8, steps=60, sleep_seconds=0.2)
    await_fact(lambda: n_reports(service, "long") >= 16, what="for 8 running trials")
    own_server.stop("immediate")
    try:
        time.sleep(6)  # the outage: twice as long as a lease
        assert httpx2.get(f"{service.url}/readyz").status_code == 503
    finally:
        own_server.start()
    reported = await_fact(lambda: n_reports(service, "long"))
    await_fact(lambda: n_reports(service, "long") > reported, what="for reports")
    service.api.kill()
    service.api.wait()
    service.start_api()
    service.await_ready()
    assert service.await_end("long")["state"] == "completed"
    trials = whole_trials(service.client, "long", 8, n_steps=60)
    assert {len(trial["attempts"]) for trial in trials} == {1}, "an outage cost an attempt"


def test_worker_api_and_database_start_in_any_order(tmp_path: Path, sqlite_url: str) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}") as client:
        service = Service(database_url=sqlite_url, port=port, folder=tmp_path, client=client)
        try:
            worker = service.launch_worker(*LIGHT, "--slots", "1")
            log = tmp_path / "worker-0.log"
            await_fact(lambda: "waiting for the API" in log.read_text(), what="for the worker")
            service.start_api()
            await_fact(lambda: is_registered(service), what="for its registration")
            create(service, "early", 2)
            assert service.await_end("early")["state"] == "completed"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            service.stop()


def is_registered(service: Service) -> bool:
    try:
        return bool(service.client.workers())
    except HpoError:  # the API is still starting
        return False


def test_idle_sessions_may_be_ended_between_two_reports(shared: Service) -> None:
    """R26: a report every 3 s where the server ends a session that is idle for 2 s."""
    create(shared, "slow", 1, steps=2, sleep_seconds=3)
    assert shared.await_end("slow")["state"] == "completed"
    (trial,) = whole_trials(shared.client, "slow", 1, n_steps=2)
    assert len(trial["attempts"]) == 1


def test_connections_stay_within_the_servers_limit(shared: Service) -> None:
    """R25: a flood of requests while trials run; the pools of one API process are the bound."""
    service = shared
    create(service, "busy", 12, steps=20, sleep_seconds=0.05)
    admin = sa.create_engine(service.database_url, poolclass=sa.StaticPool)
    count = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
        "AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    counts, is_over = [], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            with admin.connect() as connection:
                counts.append(connection.execute(count).scalar_one())

    watcher = threading.Thread(target=watch)
    watcher.start()
    paths = ("/v1/studies", "/v1/studies/busy/trials?curves=true", "/v1/workers", "/readyz")
    with httpx2.Client(base_url=service.url, timeout=60) as http, ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda n: http.get(paths[n % 4]).status_code, range(400)))
    assert set(answers) <= {200, 503}, "neither an answer nor a plain 'try again'"
    assert answers.count(200) > 200
    assert service.await_end("busy")["state"] == "completed"
    is_over.set()
    watcher.join()
    admin.dispose()
    assert 0 < max(counts) <= 32  # two pools of 8 + 8, as the README says
    trials = whole_trials(service.client, "busy", 12, n_steps=20)
    assert {len(trial["attempts"]) for trial in trials} == {1}


def test_a_beat_advances_while_a_trial_runs(shared: Service) -> None:
    """R17, R56: the worker's own beat, whatever the objective does meanwhile."""
    service = shared
    create(service, "silent", 1, steps=1, sleep_seconds=5)
    await_fact(lambda: any(t["state"] == "RUNNING" for t in service.client.trials("silent")))
    seen = {service.client.workers()[0]["last_seen_at"]}
    while service.client.study("silent")["state"] == "running":
        seen.add(service.client.workers()[0]["last_seen_at"])
        time.sleep(0.1)  # half a second lies between two beats
    (trial,) = whole_trials(service.client, "silent", 1, n_steps=1)
    assert len(trial["attempts"]) == 1
    assert len(seen) >= 4, "longer than a lease without a report, and hardly a beat"


def test_an_api_with_open_polls_stops_in_time(shared: Service) -> None:
    """Claims that wait for a minute are answered at once; the worker finds the other process."""
    service = shared
    worker_id = str(uuid.uuid4())
    document = {"name": "mine", "version": "0", "protocol": 1, "slots": 1, "devices": ["cpu"]}
    with WorkerClient(service.url) as worker:
        worker.register(document | {"id": worker_id, "allow": ["none"], "objectives": []})

    def poll(n: int) -> int:
        claim = {"worker_id": worker_id, "claim_key": f"poll {n}", "device": "cpu"}
        return int(http.post("/v1/claims", json=claim | {"wait_seconds": 60}).status_code)

    with httpx2.Client(base_url=service.url, timeout=90) as http, ThreadPoolExecutor(20) as pool:
        polls = [pool.submit(poll, n) for n in range(20)]
        with pytest.raises(TimeoutError):
            polls[0].result(timeout=1)
        service.api.send_signal(signal.SIGTERM)
        assert service.api.wait(timeout=10) == 0
        assert {waiting.result() for waiting in polls} == {204}
    service.start_api()
    service.await_ready()


def test_processes_that_start_together_make_one_schema(tmp_path: Path, postgres_url: str) -> None:
    """R16: three API processes and two workers on an empty database, all alive, all at work."""
    services = []
    with contextlib.ExitStack() as stack:
        for port in (free_port() for _ in range(3)):
            client = stack.enter_context(Client(f"http://127.0.0.1:{port}"))
            service = Service(
                database_url=postgres_url, port=port, folder=tmp_path / str(port), client=client
            )
            service.folder.mkdir()
            stack.callback(service.stop)
            services.append(service)
        for service in services:
            service.start_api()
        for service in services[:2]:
            service.launch_worker(*LIGHT, "--slots", "2")
        for service in services:
            service.await_ready()
        first, last = services[0], services[-1]
        await_fact(lambda: len(last.client.workers()) == 2, what="for the workers")
        create(first, "shared", 20, steps=5, sleep_seconds=0.05)
        assert last.await_end("shared")["state"] == "completed"
        trials = whole_trials(last.client, "shared", 20, n_steps=5)
        assert {len(trial["attempts"]) for trial in trials} == {1}
        assert {p.poll() for service in services for p in service.processes} == {None}


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_dashboards_process_does_not_outlive_the_api(
    sqlite_service: Service, end: signal.Signals
) -> None:
    service = sqlite_service
    page = f"{service.url}/dashboard"
    assert httpx2.get(page, timeout=60, follow_redirects=True).status_code == 200
    (dashboard,) = psutil.Process(service.api.pid).children()
    (socket_path,) = {c.laddr for c in dashboard.net_connections("unix") if c.laddr}
    assert Path(socket_path).exists()
    service.api.send_signal(end)
    service.api.wait()
    await_fact(lambda: not dashboard.is_running(), what="for the end of the dashboard")
    await_fact(lambda: not Path(socket_path).exists(), what="for its socket to go")
    service.start_api()  # nothing keeps the lock of the SQLite file
    service.await_ready()
    assert httpx2.get(page, timeout=60, follow_redirects=True).status_code == 200
