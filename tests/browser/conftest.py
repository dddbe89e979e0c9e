"""A real Chromium, and what went wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# A browser asks its maker's servers for updates unless told not to.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Browser:
    """A page, and what went wrong while it was looked at."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("requestfailed", self._note_failed)
        page.on(
            "response",
            lambda reply: (
                self.faults.append(f"{reply.status}: {reply.url}") if reply.status >= 400 else None
            ),
        )
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("console", self._note_said)

    def _note_failed(self, request: Request) -> None:
        # The page was left, or a stream closed, before the answer had come or ended.
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"failed: {request.url}")

    def _note_said(self, message: ConsoleMessage) -> None:
        # Where a page names no icon, a browser asks the root of the host, which may be a proxy.
        is_icon = message.location["url"].endswith("/favicon.ico")
        if message.type in ("error", "warning") and not is_icon:
            self.faults.append(f"console: {message.text}")


@pytest.fixture
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("apt install chromium: there is no browser here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield Browser(chromium.new_page())
        chromium.close()
