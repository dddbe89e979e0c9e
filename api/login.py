"""The login of browsers: a page that takes a token and gives a session for it.

The cookie holds a session's secret, not the token: it opens nothing as a bearer, ends after a
working day, and at once when its token is revoked. The page needs no script and no other file.
"""

from __future__ import annotations

import html
import re
from typing import Annotated
from urllib.parse import parse_qs

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.access import COOKIE, Caller, Unauthorized, session_of
from api.routes import root_of
from api.service import PreparedDep
from hpo.access import Role, includes

router = APIRouter(include_in_schema=False)

SESSION_SECONDS = 12 * 3600
AFTER_LOGIN = "/"
MAX_FORM_BYTES = 4096
# A path here: no scheme, no other host, nothing that a browser would read as either.
OUR_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>hpo: log in</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif;
 --accent: light-dark(#2f54c9, #93abff); --line: light-dark(#b4bbc7, #4d5666); }}
body {{ display: grid; place-items: center; min-height: 95vh; margin: 0;
 background: light-dark(#f6f7f9, #12151b); color: light-dark(#1b2029, #e7eaf0); }}
main {{ width: min(24rem, 90vw); box-sizing: border-box; padding: 1.5rem 1.75rem;
 border-radius: 10px; background: light-dark(#fff, #1a1e26);
 border: 1px solid light-dark(#dfe3e9, #2e3541); }}
h1 {{ margin: 0 0 1rem; font-size: 1.45rem; }}
a {{ color: var(--accent); }}
label {{ font-weight: 500; }}
label, input, button {{ display: block; width: 100%; box-sizing: border-box; font: inherit; }}
input, button {{ padding: .55rem .7rem; margin: .3rem 0 1rem; border-radius: 6px; }}
input {{ border: 1px solid var(--line); background: inherit; color: inherit; }}
button {{ border: 0; background: var(--accent);
 color: light-dark(#fff, #10131a); cursor: pointer; }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
#hint {{ font-size: .86rem; color: light-dark(#59616f, #a3acba); margin: 0; }}
.fault {{ border-left: 3px solid light-dark(#b3261e, #ff8f85); padding-left: .7rem; }}
</style>
</head>
<body>
<main>
<h1>hpo</h1>
{body}
</main>
</body>
</html>
"""
# Without an action the form goes to the page's own address, and what stands behind its # comes back
# with the redirection: so a link into the console leads there after a login.
FORM = """\
{fault}<form method="post">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus
 aria-describedby="hint">
<button type="submit">Log in</button>
<p id="hint">An administrator makes one: <code>hpo token create NAME --role reader</code></p>
</form>
"""
LOGGED_IN = """\
<p>You are logged in as {name}, with the role {role}.</p>
<p><a href="{root}/">Console</a> · <a href="{root}/dashboard">Dashboard</a> ·
 <a href="{root}/docs">API</a></p>
<form method="post" action="{root}/logout"><button type="submit">Log out</button></form>
"""


@router.get("/login")
async def login_page(request: Request, service: PreparedDep) -> Response:
    try:
        caller = await service.guard.caller(request.scope)
    except Unauthorized:
        return _form()
    root = root_of(request.scope)
    return (
        RedirectResponse(root + AFTER_LOGIN, 303) if caller.name is None else _hello(root, caller)
    )


@router.post("/login")
async def log_in(
    request: Request, service: PreparedDep, next: Annotated[str, Query()] = AFTER_LOGIN
) -> Response:
    token = await _token_of(request)
    holder = await service.guard.holder_of(token)
    if holder is None:
        fault = "This token is not known here, or it was revoked; ask for another one."
        return _form(fault, 401)
    if not includes(holder.role, Role.READER):
        fault = f"A token of the role {holder.role} cannot read pages; ask for a reader's."
        return _form(fault, 403)
    secret = await anyio.to_thread.run_sync(
        lambda: service.store.tokens.open_session(token, seconds=SESSION_SECONDS)
    )
    service.guard.forget()
    root = root_of(request.scope)
    response = RedirectResponse(root + our_path(next), 303)
    response.set_cookie(
        COOKIE,
        secret,
        max_age=SESSION_SECONDS,
        path=root or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/logout")
async def log_out(request: Request, service: PreparedDep) -> Response:
    session = session_of(request.headers)
    if session is not None:
        await anyio.to_thread.run_sync(service.store.tokens.close_session, session)
        service.guard.forget()
    root = root_of(request.scope)
    response = RedirectResponse(f"{root}/login", 303)
    response.delete_cookie(
        COOKIE,
        path=root or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def our_path(path: str) -> str:
    """The path when it is one of this service, or the one that a login leads to by itself."""
    return path if OUR_PATH.fullmatch(path) else AFTER_LOGIN


async def _token_of(request: Request) -> str:
    body = await request.body()
    fields = parse_qs(body[:MAX_FORM_BYTES].decode("utf-8", "replace"))
    return fields.get("token", [""])[0].strip()


def _form(fault: str = "", status: int = 200) -> Response:
    told = f'<p class="fault" role="alert">{html.escape(fault)}</p>\n' if fault else ""
    return _page(FORM.format(fault=told), status)


def _hello(root: str, caller: Caller) -> Response:
    name = html.escape(str(caller.name))
    return _page(LOGGED_IN.format(name=name, role=caller.role, root=html.escape(root)), 200)


def _page(body: str, status: int) -> Response:
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
    return HTMLResponse(PAGE.format(body=body), status, headers)
