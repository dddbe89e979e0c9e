"""The pages in a real browser: they load whole, from this machine alone, and show the study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from api.app import Access, create_app
from hpo.access import Role
from hpo.client import Client
from storage.store import open_store
from tests.acceptance.conftest import Service, serve
from tests.browser.conftest import Browser
from tests.proxy_kit import await_fact, proxied, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with one study that has ended."""
    folder = tmp_path_factory.mktemp("pages")
    for running in serve(f"sqlite:///{folder / 'hpo.db'}", folder):
        running.start_worker("--slots", "2", "--devices", "cpu")
        running.client.create_study(
            {
                "name": "bowl",
                "objective": "objectives.synthetic:quadratic",
                "n_trials": 12,
                "seed": 1,
            }
        )
        running.await_end("bowl")
        yield running


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/"])
def test_the_dashboard_lists_the_study(service: Service, browser: Browser, path: str) -> None:
    browser.page.goto(service.url + path)
    browser.page.get_by_text("bowl").first.wait_for()
    assert browser.faults == []


def test_the_dashboard_shows_a_study(service: Service, browser: Browser) -> None:
    browser.page.goto(f"{service.url}/dashboard")
    browser.page.get_by_text("bowl").first.click()
    browser.page.get_by_text("Hyperparameter Importance").first.wait_for()
    assert browser.faults == []


def test_the_documentation_lists_the_endpoints(service: Service, browser: Browser) -> None:
    browser.page.goto(f"{service.url}/docs")
    browser.page.get_by_text("/v1/studies/{study}/best").first.wait_for()
    assert browser.faults == []


def test_behind_a_prefix_a_person_logs_in_and_finds_the_study(
    tmp_path: Path, browser: Browser
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'hpo.db'}")
    app = create_app(store, access=Access(root_path="/hpo"))
    with served(app) as target, proxied(target, "/hpo") as url, Client(url) as client:
        await_fact(lambda: httpx2.get(f"{url}/readyz", trust_env=False).status_code == 200)
        space = {"x": {"type": "float", "low": 0, "high": 1}}
        client.create_study(
            {
                "name": "bowl",
                "objective": "a:b",
                "direction": "maximize",
                "space": space,
                "n_trials": 3,
            }
        )
        token = client.create_token("me", Role.ADMIN)["token"]
        page = browser.page
        page.goto(f"{url}/dashboard")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("bowl").first.click()
        page.get_by_text("Hyperparameter Importance").first.wait_for()
        assert page.url.startswith(f"{url}/dashboard/studies/")
        page.reload()
        page.get_by_text("Hyperparameter Importance").first.wait_for()
        page.goto(f"{url}/docs")
        page.get_by_text("/v1/studies/{study}/best").first.wait_for()
        page.goto(f"{url}/login")
        page.get_by_text("You are logged in as me").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        assert browser.faults == []
