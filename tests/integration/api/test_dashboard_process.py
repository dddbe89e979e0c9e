"""The process that serves the dashboard: there when somebody looks, gone when nobody does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from starlette.testclient import TestClient

from api.dashboard_process import IDLE_SECONDS, DashboardProcess
from api.relay import headers_of
from storage.store import Store, open_store
from tests.api_kit import await_fact, read, serving


class Dashboards:
    """The process of one store, under a clock of our own."""

    def __init__(self, store: Store) -> None:
        self.now = 1000.0
        self.process = DashboardProcess(store, writes=False, clock=lambda: self.now)


@pytest.fixture
def dashboards(sqlite_url: str) -> Iterator[Dashboards]:
    store = open_store(sqlite_url)
    made = Dashboards(store)
    yield made
    made.process.close()
    store.close()


def test_it_ends_when_nobody_has_looked_for_a_while(dashboards: Dashboards) -> None:
    process = dashboards.process
    assert process.pid is None
    with process.in_use():
        folder, pid = process.socket_path().parent, process.pid
        dashboards.now += 10 * IDLE_SECONDS
        process.end_if_idle()
        assert process.pid == pid  # a request is open
    assert (folder.stat().st_mode & 0o777) == 0o700
    dashboards.now += IDLE_SECONDS - 1
    process.end_if_idle()
    assert process.pid == pid
    dashboards.now += 1
    process.end_if_idle()
    assert process.pid is None
    assert not psutil.pid_exists(pid or 0)
    assert not folder.exists()


def test_it_is_told_nothing_that_others_can_read_and_no_token(
    dashboards: Dashboards, monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    monkeypatch.setenv("HPO_TOKEN", "hpo_secret")
    dashboards.process.socket_path()
    child = psutil.Process(dashboards.process.pid)
    assert sqlite_url not in " ".join(child.cmdline())
    environment = child.environ()
    assert (environment["TZ"], environment["HPO_DB"]) == ("UTC", sqlite_url)
    assert "HPO_TOKEN" not in environment


def test_what_shows_who_asks_goes_no_further() -> None:
    sent = [
        (b"host", b"hpo.example"),
        (b"cookie", b"hpo_session=x"),
        (b"authorization", b"Bearer x"),
        (b"connection", b"keep-alive"),
        (b"x-forwarded-proto", b"gopher"),
        (b"content-type", b"application/json"),
    ]
    assert dict(headers_of({"type": "http", "scheme": "https", "headers": sent})) == {
        "host": "hpo.example",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-forwarded-proto": "https",
    }


def dashboard_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "--socket-fd" in child.cmdline()]


def test_it_is_started_again_when_it_has_died(client: TestClient) -> None:
    assert client.get("/dashboard").status_code == 200
    for process in dashboard_processes():
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def answers() -> bool:
        response = client.get("/dashboard")
        if response.status_code != 200:  # not more often than every few seconds
            assert (response.status_code, read(response)["code"]) == (503, "unavailable")
        return response.status_code == 200

    await_fact(answers)


@pytest.mark.parametrize(
    ("program", "sentence"),
    [("/nowhere/python", "cannot be started"), ("/bin/false", "has ended")],
)
def test_that_it_cannot_start_is_said(
    new_database: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    sentence: str,
) -> None:
    with serving(new_database("sqlite")) as client:
        monkeypatch.setattr("sys.executable", program)
        response = client.get("/dashboard")
        problem = read(response)
        assert (response.status_code, problem["code"]) == (503, "unavailable")
        assert sentence in problem["detail"]
        assert client.get("/v1/studies").status_code == 200
