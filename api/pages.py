"""The console at /: a page and its scripts as they lie in api/console, with nothing from elsewhere.

The page reads /v1 with the session of whoever looks at it and has no data of its own. Its
addresses are relative to a base, which is the prefix of a proxy where there is one.
"""

from __future__ import annotations

import html
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.routes import root_of
from api.service import StoreDep, StudyName

FILES = Path(__file__).with_name("console")
FILES_PATH = "/console"
PAGE = (FILES / "index.html").read_text(encoding="utf-8")
ANY_BASE = '<base href="/">'
# Scripts and styles from here alone, none within the page; nobody may frame it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # Asked for anew each time, and answered by 304: after an upgrade no old script is left.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def console(request: Request) -> HTMLResponse:
    base = f'<base href="{html.escape(root_of(request.scope))}/">'
    return HTMLResponse(PAGE.replace(ANY_BASE, base), headers=HEADERS)


@router.get(FILES_PATH + "/dashboard/{study}")
def dashboard_of(study: StudyName, request: Request, store: StoreDep) -> Response:
    """Leads to the study's page in optuna-dashboard, which knows it by a number."""
    number = store.studies.optuna_id(study)
    return RedirectResponse(f"{root_of(request.scope)}/dashboard/studies/{number}", 303)


class _Files(StaticFiles):
    """Files with the headers of the page."""

    def file_response(self, *args: object, **options: object) -> Response:
        response = super().file_response(*args, **options)  # type: ignore[arg-type]  # passed on
        response.headers.update(HEADERS)
        return response


def add_console(app: FastAPI) -> None:
    """Serves the page and the files that it names."""
    app.include_router(router)
    app.mount(FILES_PATH, _Files(directory=FILES), name="console")
