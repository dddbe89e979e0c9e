"""Who may do what, in one place: the rule for every route, and the guard that keeps it.

The rule follows from a route's tags and method, so that a new route is covered the day it is
written. The guard knows the living tokens by their digests and reads them again every few
seconds; a token that was revoked through another process is refused after that time at the latest.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.types import Scope

from api.routes import Route
from api.upkeep import Upkeep
from hpo.access import Role, digest_of, includes
from hpo.errors import HpoError, Unavailable
from storage.store import Store
from storage.tokens import Holder, Keys

KNOWN_SECONDS = 3.0
AWAY_SECONDS = 0.5
NOTE_SECONDS = 60.0
COOKIE = "hpo_session"

WORKER_PROTOCOL, OPERATIONS = "worker protocol", "operations"
READING = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN = frozenset({"/healthz", "/readyz", "/login", "/logout"})
TOKENS = "/v1/tokens"
# Asked for by a worker that clears up checkpoints, a start that looks for its own, and whoever asks
# who it is.
WORKER_READS = re.compile(r"/v1/(session|workers|studies|studies/\{\w+\}/trials(/\{\w+\})?)")
DELETES = re.compile(r"(/v1/studies/\{\w+\}|/api/studies/\d+)")
# Routes that have no place in the OpenAPI document.
PAGES = frozenset(
    {"/", "/console", "/console/dashboard/{study}", "/docs", "/docs-files", "/openapi.json"}
)

Rule = frozenset[Role]
ANYBODY: Rule = frozenset()


class Unauthorized(HpoError):
    """This service asks for a token: send it as `Authorization: Bearer …`, or log in at /login."""

    code = "unauthorized"


class Forbidden(HpoError):
    """The role of this token does not allow this."""

    code = "forbidden"


class CrossSite(HpoError):
    """A page of another site asked for this change by a cookie; send a token in Authorization."""

    code = "cross_site"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks; a session is a browser's, and nobody has a name while there are no tokens."""

    name: str | None
    role: Role
    is_session: bool = False


NOBODY = Caller(name=None, role=Role.ADMIN)


def rule_of(route: Route | None, method: str, path: str) -> Rule | None:
    """The roles of which one is needed; empty for anybody, None where there is no rule.

    What no route takes belongs to the dashboard, or is nowhere: that, too, only readers learn.
    """
    if route is None:
        return _roles_for(path, method, tags=frozenset())
    if route.template in OPEN:
        return ANYBODY
    is_listed = route.template in PAGES or OPERATIONS in route.tags
    if not (is_listed or route.template.startswith("/v1/")):
        return None
    return _roles_for(route.template, method, tags=route.tags)


def _roles_for(template: str, method: str, *, tags: frozenset[str]) -> Rule:
    if template.startswith(TOKENS) or (method == "DELETE" and DELETES.fullmatch(template)):
        return frozenset({Role.ADMIN})
    is_reading = method in READING
    if WORKER_PROTOCOL in tags:
        return frozenset({Role.WORKER, Role.READER} if is_reading else {Role.WORKER})
    if is_reading and WORKER_READS.fullmatch(template):
        return frozenset({Role.WORKER, Role.READER})
    return frozenset({Role.READER if is_reading else Role.OPERATOR})


def check_role(caller: Caller, rule: Rule | None) -> None:
    """Raises Forbidden, with the role that is needed."""
    if rule is None:
        raise Forbidden("There is no rule who may do this, so nobody may.")
    if rule and not any(includes(caller.role, role) for role in rule):
        needed = " or ".join(sorted(rule))
        raise Forbidden(
            f"The token {caller.name!r} has the role {caller.role}; this needs {needed}.",
            role=caller.role,
            needed=sorted(rule),
        )


class Guard:
    """Tells who asks. `may_be_open` lets everybody in as long as there was never a token.

    `own_token` is one that is in no database: that of a worker which was started beside the API.
    """

    def __init__(
        self,
        store: Store,
        upkeep: Upkeep,
        *,
        may_be_open: bool,
        own_token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._upkeep, self._clock = store, upkeep, clock
        self._may_be_open = may_be_open
        self._own = digest_of(own_token) if own_token else None
        self._keys = Keys(any_token_ever=True, tokens={}, sessions={})
        self._outage: HpoError = Unavailable()
        self._known_until = self._away_until = float("-inf")
        self._n_changes = 0
        self._reading = asyncio.Lock()
        # Its own thread, so that a token is looked up while all others are busy.
        self._threads = anyio.CapacityLimiter(1)
        self._used: set[str] = set()
        self._noted_at: dict[str, float] = {}

    async def caller(self, scope: Scope) -> Caller:
        """Who sends this request. Raises Unauthorized, or Unavailable while nobody can tell."""
        headers = Headers(scope=scope)
        bearer, session = bearer_of(headers), session_of(headers)
        if bearer is not None and digest_of(bearer) == self._own:
            return Caller(name="hpo up", role=Role.WORKER)
        keys = await self._fresh_keys()
        if self._may_be_open and not keys.any_token_ever:
            return NOBODY
        if bearer is not None:
            return self._known(keys.tokens.get(digest_of(bearer)), is_session=False)
        if session is not None:
            return self._known(keys.sessions.get(digest_of(session)), is_session=True)
        raise Unauthorized()

    async def still_knows(self, scope: Scope) -> bool:
        """Whether who sent this request some time ago is still known; yes while nobody can tell."""
        try:
            await self.caller(scope)
        except Unauthorized:
            return False
        except HpoError:
            return True
        return True

    async def holder_of(self, token: str) -> Holder | None:
        """Whose token this is."""
        return (await self._fresh_keys()).tokens.get(digest_of(token))

    def forget(self) -> None:
        """Lets the next request read the tokens anew; called when this process changed them."""
        self._n_changes += 1
        self._known_until = float("-inf")

    def note_uses(self) -> None:
        """Writes down which tokens were used, each once a minute at most. Raises Unavailable."""
        now = self._clock()
        due = {
            name
            for name in set(self._used)  # a copy: requests go on meanwhile
            if now >= self._noted_at.get(name, float("-inf")) + NOTE_SECONDS
        }
        if due:
            self._store.tokens.note_uses(due)
            self._noted_at |= dict.fromkeys(due, now)
            self._used -= due

    def _known(self, holder: Holder | None, *, is_session: bool) -> Caller:
        if holder is None:
            raise Unauthorized(
                "This session is over; log in again at /login."
                if is_session
                else "This token is not known here, or it was revoked; ask for another one.",
                error="invalid_token",
            )
        self._used.add(holder.name)
        return Caller(name=holder.name, role=holder.role, is_session=is_session)

    async def _fresh_keys(self) -> Keys:
        if self._clock() >= self._known_until:
            async with self._reading:
                if self._clock() >= self._known_until:
                    await self._read()
        return self._keys

    async def _read(self) -> None:
        self._upkeep.check_prepared()
        if self._clock() < self._away_until:  # those who waited for the lock fail together
            raise type(self._outage)(str(self._outage))
        started_at, n_changes = self._clock(), self._n_changes
        try:
            self._keys = await anyio.to_thread.run_sync(
                self._store.tokens.keys, limiter=self._threads
            )
        except HpoError as error:
            self._outage, self._away_until = error, self._clock() + AWAY_SECONDS
            raise
        if n_changes == self._n_changes:  # else what was read may be older than the change
            self._known_until = started_at + KNOWN_SECONDS


def bearer_of(headers: Headers) -> str | None:
    """The token of an Authorization header; other schemes are for a proxy before us."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def session_of(headers: Headers) -> str | None:
    """The session that a browser's cookie names."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value


def check_same_site(scope: Scope, origins: frozenset[str]) -> None:
    """Raises CrossSite for a change that a page elsewhere asks for with a browser's own rights.

    A token in a header was put there on purpose; a cookie the browser adds for any page.
    """
    headers = Headers(scope=scope)
    if scope["method"] in READING or bearer_of(headers) is not None:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin in origins and "cookie" not in headers:
        return
    if site is not None:
        is_ours = site in ("same-origin", "none")
    else:
        is_ours = origin is None or origin.partition("://")[2] == headers.get("host")
    if not is_ours:
        raise CrossSite()
