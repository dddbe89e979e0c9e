"""The console in a real Chromium, as people use it, with workers that really train."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import pytest
import sqlalchemy as sa
from axe_playwright_python.sync_playwright import Axe

from hpo.access import Role
from hpo.search import PRUNERS, SAMPLERS
from storage import tables as t
from storage.store import Store
from tests.acceptance.conftest import Service, serve
from tests.api_kit import Running
from tests.browser.conftest import Browser
from tests.builders import definition
from tests.proxy_kit import await_fact

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

OBJECTIVES = Path(__file__).parents[1] / "integration" / "objectives_for_tests"
N_SHOWN = 16
SECONDS = 60_000  # for a fact on a busy machine
WRITING = re.compile(
    "^(New study|Launch|Pause|Resume|Stop|Cancel|Extend|Archive|Take out|Delete|Try again|Exclude|"
    "Include)"
)
VIEWS = {
    "studies": "",
    "study": "#/studies/shown",
    "front": "#/studies/front",
    "trial": "#/studies/shown/trials/0",
    "failed": "#/studies/broken/trials/0",
    "workers": "#/workers",
    "launch": "#/new?from=shown",
}
LOOKS = {
    "light": {"width": 1280, "height": 800, "scheme": "light"},
    "dark, phone": {"width": 390, "height": 844, "scheme": "dark"},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with studies of each kind that have ended."""
    folder = tmp_path_factory.mktemp("console")
    for running in serve(f"sqlite:///{folder / 'hpo.db'}", folder):
        options = ("--code", str(OBJECTIVES), "--allow", "shown", "--allow", "objectives.*")
        running.start_worker("--slots", "3", "--devices", "cpu", *options)
        fast: dict[str, Any] = {"sampler": "random", "seed": 3}
        for document in (
            {"name": "shown", "n_trials": N_SHOWN, "tags": ["paper"], **quick(), "seed": 3},
            {"name": "broken", "n_trials": 1, "settings": {"seconds": 0.01, "breaks": True}},
            {
                "name": "front",
                "objective": "shown:two_values",
                "n_trials": 6,
                "directions": ["minimize", "minimize"],
                "metrics": ["error", "cost"],
                **fast,
            },
        ):
            running.client.create_study({"objective": "shown:curve", **document})
        for name in ("shown", "broken", "front"):
            running.await_end(name)
        yield running


def quick() -> dict[str, Any]:
    return {
        "settings": {"seconds": 0.01},
        "pruner": {"name": "median", "n_startup_trials": 2},
    }


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that stands for a fact as long as it needs to, and in which nothing goes wrong."""
    browser.page.set_default_timeout(SECONDS)
    yield browser.page
    assert browser.faults == []


def go(page: Page, service: Service, view: str) -> None:
    page.goto(f"{service.url}/{VIEWS.get(view, view)}")
    page.get_by_role("heading", level=1).wait_for()


def confirm(page: Page, action: str, verb: str) -> None:
    """Presses a button, and the one of the dialog that it opens."""
    page.get_by_role("button", name=action, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
    page.get_by_role("dialog").wait_for(state="detached")


class TestLive:
    def test_a_study_is_launched_watched_paused_and_resumed(
        self, service: Service, page: Page
    ) -> None:
        go(page, service, "#/new")
        page.get_by_label("Objective", exact=True).select_option("shown:curve")
        page.get_by_label("Name", exact=True).first.fill("live")
        level = page.get_by_role("group", name="Parameter level")
        level.get_by_label("Low").fill("2")
        level.get_by_text("low must not be above high").wait_for()
        assert level.get_by_label("Low").get_attribute("aria-invalid") == "true"
        page.get_by_role("button", name="Launch").click()  # stays, and shows what is at fault
        level.get_by_label("Low").fill("0")
        page.get_by_label("Options of the pruner").fill("n_startup_trials=2")
        page.get_by_label("Trials", exact=True).fill("40")
        page.get_by_label("seconds", exact=True).fill("0.15")
        page.get_by_label("Sampler", exact=True).select_option("random")
        page.get_by_text("The service takes it as it is.").wait_for()
        page.get_by_role("button", name="Launch").click()

        page.get_by_role("heading", name="live", level=1).wait_for()
        page.evaluate("window.isTheSamePage = true")
        page.get_by_role("img", name=re.compile("running curve")).wait_for()
        pruned = page.get_by_text(re.compile(r"pruned at step \d+: .* against the median"))
        pruned.first.wait_for()
        confirm(page, "Pause", "Pause")
        page.get_by_text("live is paused.").wait_for()
        page.locator("h1 + .state", has_text="paused").wait_for()
        assert service.client.study("live")["state"] == "paused"
        confirm(page, "Resume", "Resume")
        page.locator("h1 + .state", has_text="running").wait_for()

        assert page.evaluate("window.isTheSamePage") is True
        confirm(page, "Cancel", "Cancel the study")
        page.locator("h1 + .state", has_text="stopped").wait_for()

    def test_a_curve_grows_under_the_eyes_of_who_looks_at_it(
        self, service: Service, page: Page
    ) -> None:
        slow = {"settings": {"steps": 400, "seconds": 0.2}, "max_steps": 400, "n_trials": 1}
        service.client.create_study({"name": "slow", "objective": "shown:curve", **slow})
        go(page, service, "#/studies/slow/trials/0")
        page.evaluate("window.isTheSamePage = true")
        figure = page.locator("section", has=page.locator("#curve")).locator("figcaption")
        log, seen = page.get_by_label("Log of the trial"), set[str]()
        figure.get_by_text(re.compile(r"loss at step \d+")).wait_for()
        await_fact(lambda: seen.add(figure.inner_text()) or len(seen) > 2)
        log.get_by_text(re.compile("step 1: loss")).wait_for()
        confirm(page, "Cancel", "Cancel the trial")
        page.locator("h1 + [role=status]", has_text="failed: cancelled").wait_for()
        assert page.evaluate("window.isTheSamePage") is True

    def test_other_pages_hear_of_a_study_that_others_launch(
        self, service: Service, page: Page
    ) -> None:
        go(page, service, "studies")
        page.get_by_role("link", name="shown").wait_for()
        page.locator(".live.on").wait_for()
        service.client.create_study(
            {"name": "elsewhere", "objective": "shown:curve", "n_trials": 1, **quick()}
        )
        row = page.get_by_role("row", name=re.compile("elsewhere"))
        row.get_by_text("completed").wait_for()
        go(page, service, "#/studies/elsewhere")
        confirm(page, "Archive", "Archive")
        page.get_by_text("archived", exact=True).wait_for()


class TestLooking:
    def test_a_failure_leads_to_its_traceback(self, service: Service, page: Page) -> None:
        go(page, service, "studies")
        page.get_by_role("link", name="broken").click()
        page.get_by_role("region", name="Table of trials").get_by_role("link", name="0").click()
        page.get_by_text("Failed: the objective raised an error.").wait_for()
        trace = page.get_by_label("Traceback")
        assert "raise ValueError" in trace.inner_text()
        assert "is <not> for me" in trace.inner_text()
        page.get_by_label("Log of the trial").get_by_text("step 1: loss").wait_for()

    def test_a_trial_says_why_it_was_pruned(self, service: Service, page: Page) -> None:
        pruned = next(iter(service.client.trials("shown", state="PRUNED")))
        go(page, service, f"#/studies/shown/trials/{pruned['number']}")
        page.get_by_text(re.compile(r"Pruned at step \d+: [\d.]+ against the median")).wait_for()

    def test_a_trial_shows_what_the_kit_tells(self, service: Service, page: Page) -> None:
        complete = next(iter(service.client.trials("shown", state="COMPLETE")))
        go(page, service, f"#/studies/shown/trials/{complete['number']}")
        page.get_by_text("bf16").wait_for()
        page.get_by_label("Shows").select_option("accuracy")
        page.get_by_text("accuracy at step 11").wait_for()

    def test_the_dashboard_opens_at_the_study(self, service: Service, page: Page) -> None:
        go(page, service, "study")
        page.get_by_role("main").get_by_role("link", name="Optuna dashboard").click()
        page.get_by_text("Hyperparameter Importance").first.wait_for()
        assert re.search(r"/dashboard/studies/\d+$", page.url)

    def test_trials_are_filtered_and_sorted(self, service: Service, page: Page) -> None:
        go(page, service, "study")
        table = page.get_by_role("region", name="Table of trials")
        page.locator("#filter-state").select_option("PRUNED")
        n_pruned = service.client.study("shown")["counts"]["PRUNED"]
        await_fact(lambda: table.locator("tbody tr").count() == n_pruned)
        page.locator("#filter-state").select_option("COMPLETE")
        table.get_by_role("button", name="Value").click()
        best = service.client.best("shown")["number"]
        table.locator("tbody tr").first.get_by_role("link", name=str(best), exact=True).wait_for()
        assert table.get_by_role("columnheader", name="Value").get_attribute("aria-sort") == (
            "ascending"
        )

    def test_workers_show_their_devices(self, service: Service, page: Page) -> None:
        go(page, service, "workers")
        page.get_by_text("of 3 slots busy").first.wait_for()
        page.get_by_text("Utilisation").wait_for()

    def test_the_form_offers_what_there_is(self, service: Service, page: Page) -> None:
        go(page, service, "launch")
        for label, known in (("Sampler", SAMPLERS), ("Pruner", PRUNERS)):
            options = page.get_by_label(label, exact=True).locator("option")
            options.first.wait_for(state="attached")
            assert options.all_inner_texts() == list(known)

    def test_the_keyboard_is_enough(self, service: Service, page: Page) -> None:
        go(page, service, "studies")
        page.get_by_role("link", name="shown").wait_for()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        page.get_by_role("link", name="shown").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Extend").focus()
        page.keyboard.press("Enter")
        page.get_by_label("Trials in all").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
        assert service.client.study("shown")["budget"]["n_trials"] == N_SHOWN

    def test_a_chosen_theme_stays(self, service: Service, page: Page) -> None:
        go(page, service, "studies")
        page.get_by_label("Colours").select_option("dark")
        page.reload()
        page.get_by_role("link", name="shown").wait_for()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


@pytest.mark.parametrize("look", LOOKS)
def test_every_view_can_be_read_by_everybody(service: Service, browser: Browser, look: str) -> None:
    chosen = LOOKS[look]
    page = browser.page
    page.emulate_media(color_scheme=chosen["scheme"])
    page.set_viewport_size({"width": chosen["width"], "height": chosen["height"]})
    for view in VIEWS:
        go(page, service, view)
        page.wait_for_load_state("networkidle") if view == "launch" else page.wait_for_timeout(400)
        results = Axe().run(page)
        assert results.violations_count == 0, f"{view}: {results.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    page.evaluate("location.hash = '#/studies/shown'")
    page.get_by_role("button", name="Delete").click()
    results = Axe().run(page, context="dialog")
    assert results.violations_count == 0, results.generate_report()
    assert browser.faults == []


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[str, Store]]:
    """A service in this process, which ends although pages listen to it."""
    service = Running(f"sqlite:///{folder / 'hpo.db'}")
    try:
        yield f"http://127.0.0.1:{service.port}", service.app.state.service.store
    finally:
        service.stop()


def test_a_reader_finds_no_button_that_writes(tmp_path: Path, browser: Browser) -> None:
    """Case R75: whoever may only look is offered nothing else, and is led to the login first."""
    with running(tmp_path) as (url, store):
        fill(store, 3)
        store.tokens.create("me", Role.ADMIN)
        _, secret = store.tokens.create("guest", Role.READER)
        page = browser.page
        page.goto(f"{url}/#/studies/demo")
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="demo").wait_for()  # where the link led to
        for path, fact in (
            ("", "demo"),
            ("#/studies/demo", "Parallel coordinates"),
            ("#/studies/demo/trials/1", "Parameters"),
            ("#/workers", "No worker is connected"),
            ("#/new", "may look at studies and not launch them"),
        ):
            page.goto(f"{url}/{path}")
            page.get_by_text(fact).first.wait_for()
            named = page.locator("button, a").all_inner_texts()
            assert [name for name in named if WRITING.match(name)] == [], path
        page.get_by_text("guest · reader").wait_for()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        assert browser.faults == []


def test_ten_thousand_trials_are_no_ten_thousand_objects(tmp_path: Path, browser: Browser) -> None:
    """How fast they open is measured by `make bench`."""
    with running(tmp_path) as (url, store):
        fill(store, 10_000)
        page = browser.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2]))
        open_ten_thousand(page, url)
        assert browser.faults == []
    assert sum(path.startswith("studies/demo/columns") for path in asked) == 1
    assert sum(path.startswith("studies/demo/trials") for path in asked) == 1


def open_ten_thousand(page: Page, url: str) -> float:
    """Seconds from the click to a page with history, parallel coordinates and trials."""
    page.goto(url)
    page.get_by_role("link", name="demo").wait_for()
    began_at = time.monotonic()
    page.get_by_role("link", name="demo").click()
    page.get_by_role("img", name=re.compile("10 000 trials with a value")).wait_for()
    page.get_by_role("region", name="Table of trials").get_by_role("link").first.wait_for()
    page.get_by_role("img", name=re.compile("complete trials over")).wait_for()
    return time.monotonic() - began_at


PICTURES = {
    "studies": ("", "light", 1280),
    "study": ("#/studies/busy", "light", 1280),
    "study-dark": ("#/studies/busy", "dark", 1280),
    "trial": ("#/studies/shown/trials/0", "light", 1280),
    "workers": ("#/workers", "light", 1280),
    "launch": ("#/new?from=shown", "light", 1280),
    "phone": ("#/studies/busy", "dark", 390),
}
MAX_PICTURE_BYTES = 150_000


def test_pictures(service: Service, browser: Browser, tmp_path: Path) -> None:
    """Those of the README come from here, of a study with some more past: `make screenshots`."""
    wanted = os.environ.get("HPO_SCREENSHOTS")
    settings = {"steps": 25, "seconds": 0.1 if wanted else 1.0}
    service.client.create_study(
        {"name": "busy", "objective": "shown:curve", "n_trials": 200, "max_steps": 25}
        | {"settings": settings, "tags": ["baseline"], "seed": 1}
    )
    if wanted:
        await_fact(lambda: service.client.study("busy")["counts"]["COMPLETE"] >= 12, 90)
    page = browser.page
    for name, (view, scheme, width) in PICTURES.items():
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 800})
        page.goto("about:blank")  # another # alone is no new page
        go(page, service, view)
        page.wait_for_timeout(1500 if wanted else 300)  # what is drawn has no fact to wait for
        picture = Path(wanted or tmp_path) / f"{name}.png"
        page.screenshot(path=picture)
        assert picture.stat().st_size < MAX_PICTURE_BYTES, name
    service.client.cancel_study("busy", now=True)
    assert browser.faults == []


def fill(store: Store, n_trials: int) -> None:
    """A study `demo` with complete trials of five parameters and curves of five steps."""
    store.studies.create(definition(n_trials=n_trials), given=frozenset())
    unit = optuna.distributions.distribution_to_json(optuna.distributions.FloatDistribution(0, 1))

    def write(connection: sa.Connection) -> None:
        study_id = connection.execute(sa.select(t.hpo_study.c.study_id)).scalar_one()
        numbers = range(n_trials)
        times = {name: sa.func.now() for name in ("datetime_start", "datetime_complete")}
        insert = t.trials.insert().returning(t.trials.c.trial_id, sort_by_parameter_order=True)
        facts = {"study_id": study_id, "state": "COMPLETE"}
        rows = [{**facts, "number": number} for number in numbers]
        ids = list(connection.execute(insert.values(times), rows).scalars())
        value = {n: 1 + (n * 7919 % n_trials) / n_trials - n / n_trials / 2 for n in numbers}
        connection.execute(
            t.trial_values.insert(),
            [
                {"trial_id": i, "objective": 0, "value": value[n], "value_type": "FINITE"}
                for i, n in zip(ids, numbers, strict=True)
            ],
        )
        connection.execute(
            t.trial_params.insert(),
            [
                {
                    "trial_id": i,
                    "param_name": f"p{place}",
                    "param_value": (n * (place + 31) % 997) / 997,
                    "distribution_json": unit,
                }
                for i, n in zip(ids, numbers, strict=True)
                for place in range(5)
            ],
        )
        connection.execute(
            t.trial_steps.insert(),
            [
                {
                    "trial_id": i,
                    "step": step,
                    "intermediate_value": value[n] + 1 / (step + 1),
                    "intermediate_value_type": "FINITE",
                }
                for i, n in zip(ids, numbers, strict=True)
                for step in range(5)
            ],
        )

    store._database.write(write)
