"""The page at /docs: Swagger UI from files on this machine, because many GPU nodes have no way out.

FastAPI's own page loads its scripts from a CDN and stays blank there.
"""

from __future__ import annotations

from pathlib import Path

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

FILES = Path(fastapi_offline.__file__).parent / "static"
FILES_PATH = "/docs-files"


def add_docs(app: FastAPI) -> None:
    """Serves the page and the files that it names."""
    app.mount(FILES_PATH, StaticFiles(directory=FILES), name="docs-files")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        root = str(request.scope.get("root_path", ""))
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} {app.version}",
            swagger_js_url=f"{root}{FILES_PATH}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{FILES_PATH}/swagger-ui.css",
            swagger_favicon_url=f"{root}{FILES_PATH}/favicon.png",
        )
