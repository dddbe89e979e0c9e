"""optuna-dashboard under a prefix: its page and its script name all paths from the site's root.

It has no setting for it, so the paths are put right in what it serves, once for a process.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.routes import path_of, root_of

SCRIPT = "/static/bundle.js"
# In the script of optuna-dashboard 0.21; a test looks for each of them.
IN_SCRIPT = (
    'url_prefix:"/dashboard"',
    "${this.baseURL}/api/",
    "`/csv/${",
    "`/artifacts/${",
    "${e}/artifacts/${",
)
IN_PAGE = '="/static/'


class Prefixed:
    """The dashboard behind a proxy that has a prefix for it; without one it is as it was."""

    def __init__(self, dashboard: ASGIApp) -> None:
        self._dashboard = dashboard
        self._scripts: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, path = root_of(scope), path_of(scope)
        inner = {**scope, "path": path or "/", "root_path": "", "raw_path": None}
        if not root:
            await self._dashboard(scope, receive, send)
        elif path == SCRIPT:
            await (await self._script(root, Headers(scope=scope)))(inner, receive, send)
        else:
            await self._dashboard(inner, receive, _Page(root, send))

    async def _script(self, root: str, headers: Headers) -> Response:
        if root not in self._scripts:
            self._scripts[root] = await anyio.to_thread.run_sync(_zipped_script, root)
        body = self._scripts[root]
        if "gzip" in headers.get("accept-encoding", ""):
            return Response(
                body, headers={"Content-Encoding": "gzip"}, media_type="text/javascript"
            )
        return Response(gzip.decompress(body), media_type="text/javascript")


class _Page:
    """Puts the paths of a page right on its way out, and leaves everything else as it is."""

    def __init__(self, root: str, send: Send) -> None:
        self._root, self._send = root, send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        body = self._body.replace(IN_PAGE.encode(), f'="{self._root}/static/'.encode())
        kept = [item for item in start["headers"] if item[0].lower() != b"content-length"]
        headers = [*kept, (b"content-length", str(len(body)).encode())]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _is_html(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("text/html")


def script_for(root: str) -> str:
    """The dashboard's script with the prefix in front of each of its paths."""
    import optuna_dashboard

    script = Path(optuna_dashboard.__file__).with_name("public") / "bundle.js"
    text = script.read_text(encoding="utf-8")
    for found in IN_SCRIPT:
        before, slash, path = found.partition("/")
        text = text.replace(found, f"{before}{root}{slash}{path}")
    return text


def _zipped_script(root: str) -> bytes:
    return gzip.compress(script_for(root).encode(), 3)
