"""The login of browsers: a page, a session, no way to another site, and an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import Access, create_app
from storage.store import open_store
from tests.api_kit import await_ready, read, serving

PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Site:
    """A service with an admin, a reader and a worker."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        self.tokens: dict[str, str] = {}
        for role in ("admin", "reader", "worker"):
            headers = {"Authorization": f"Bearer {self.tokens.get('admin', '')}"}
            body = {"name": role, "role": role}
            made = client.post("/v1/tokens", json=body, headers=headers)
            self.tokens[role] = read(made)["token"]

    def browser(self, base_url: str = "http://testserver") -> TestClient:
        return TestClient(self.client.app, base_url=base_url, headers=PAGE, follow_redirects=False)

    def log_in(self, browser: TestClient, role: str = "reader", next: str = "") -> httpx2.Response:
        query = {"next": next} if next else {}
        return browser.post("/login", params=query, data={"token": self.tokens[role]})


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> Iterator[Site]:
    with serving(new_database(request.param)) as client:
        yield Site(client)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/dashboard", "/dashboard"),
        ("/docs", "/docs"),
        ("/", "/"),
        ("/dashboard/studies/1?a=b&c=d", "/dashboard/studies/1%3Fa%3Db%26c%3Dd"),
    ],
)
def test_a_browser_is_led_to_the_login_and_back(site: Site, path: str, asked: str) -> None:
    browser = site.browser()
    sent = browser.get(path)
    assert (sent.status_code, sent.headers["location"]) == (303, f"/login?next={asked}")
    page = browser.get(sent.headers["location"])
    assert page.status_code == 200
    assert Form(page.text).action is None, "a form without one goes to the page's own address"
    back = browser.post(sent.headers["location"], data={"token": site.tokens["reader"]})
    assert (back.status_code, back.headers["location"]) == (303, path)
    assert browser.get("/dashboard").status_code == 200


class Form(HTMLParser):
    """The login form, and every address that the page names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.action: str | None = ""
        self.labelled, self.addresses = set[str](), list[str]()
        self.inputs: list[dict[str, str | None]] = []
        self.lang = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href") if name in found]
        if tag == "form":
            self.action = found.get("action")
        elif tag == "input":
            self.inputs.append(found)
        elif tag == "label":
            self.labelled.add(found["for"] or "")
        elif tag == "html":
            self.lang = found["lang"] or ""


def test_the_page_needs_nothing_from_elsewhere_and_can_be_read_aloud(site: Site) -> None:
    page = site.browser().get("/login")
    form = Form(page.text)
    assert form.lang == "en"
    assert {field["id"] for field in form.inputs} == form.labelled
    assert form.addresses == ["data:,"]
    assert "color-scheme: light dark" in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "next",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/ok\r\nSet-Cookie: a=b",
        '/"><script>',
    ],
)
def test_the_login_leads_nowhere_else(site: Site, next: str) -> None:
    answer = site.log_in(site.browser(), next=next)
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location in ("/", "/%22%3E%3Cscript%3E")
    page = site.browser().get("/login", params={"next": next})
    assert "<script" not in page.text
    assert "evil" not in page.text


def test_the_cookie_holds_a_session_and_no_token(site: Site) -> None:
    browser = site.browser()
    answer = site.log_in(browser)
    cookie = answer.headers["set-cookie"]
    assert site.tokens["reader"] not in cookie
    for attribute in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert attribute in cookie
    assert "Secure" not in cookie
    assert "Secure" in site.log_in(site.browser("https://testserver")).headers["set-cookie"]
    session = browser.cookies["hpo_session"]
    as_bearer = site.client.get("/v1/studies", headers={"Authorization": f"Bearer {session}"})
    assert as_bearer.status_code == 401


def test_a_session_reads_and_is_told_who_it_is(site: Site) -> None:
    browser = site.browser()
    site.log_in(browser)
    assert browser.get("/v1/studies").status_code == 200
    assert browser.get("/docs").status_code == 200
    refused = browser.post("/v1/studies", json={})
    assert (refused.status_code, read(refused)["code"]) == (403, "forbidden")
    assert "logged in as reader, with the role reader" in browser.get("/login").text


def test_a_log_out_ends_the_session_for_good(site: Site) -> None:
    browser = site.browser()
    site.log_in(browser)
    session = browser.cookies["hpo_session"]
    answer = browser.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "hpo_session" not in browser.cookies
    kept = site.client.get("/v1/studies", headers={"Cookie": f"hpo_session={session}"})
    assert (kept.status_code, read(kept)["code"]) == (401, "unauthorized")
    assert "log in again" in read(kept)["detail"]


def test_a_revoked_token_takes_its_sessions_with_it(site: Site) -> None:
    admin = {"Authorization": f"Bearer {site.tokens['admin']}"}
    body = {"name": "guest", "role": "reader"}
    guest = read(site.client.post("/v1/tokens", json=body, headers=admin))["token"]
    browser = site.browser()
    browser.post("/login", data={"token": guest})
    assert browser.get("/dashboard").status_code == 200
    site.client.delete("/v1/tokens/guest", headers=admin)
    assert browser.get("/dashboard").status_code == 303
    # The name comes back, the session does not.
    site.client.post("/v1/tokens", json=body, headers=admin)
    assert browser.get("/dashboard").status_code == 303


@pytest.mark.parametrize(
    ("token", "status", "sentence"),
    [
        ("hpo_wrong", 401, "not known here"),
        ("", 401, "not known here"),
        ("\ud800", 401, "not known here"),
        (None, 403, "A token of the role worker cannot read pages"),
    ],
)
def test_what_opens_nothing(site: Site, token: str | None, status: int, sentence: str) -> None:
    body = f"token={site.tokens['worker'] if token is None else token}"
    answer = site.browser().post("/login", content=body.encode("utf-8", "surrogatepass"))
    assert (answer.status_code, sentence in answer.text) == (status, True)
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers


def test_a_page_of_another_site_cannot_log_a_browser_in(site: Site) -> None:
    browser = site.browser()
    browser.headers["Sec-Fetch-Site"] = "cross-site"
    answer = site.log_in(browser)
    assert (answer.status_code, read(answer)["code"]) == (403, "cross_site")


def test_programs_get_problems_and_no_pages(site: Site) -> None:
    for accept in ("*/*", "application/json"):
        answer = site.client.get("/dashboard", headers={"Accept": accept})
        assert (answer.status_code, read(answer)["code"]) == (401, "unauthorized")
    wrong = {**PAGE, "Authorization": "Bearer hpo_wrong"}
    answer = site.client.get("/dashboard", headers=wrong)
    assert answer.status_code == 401
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "cookie", ["hpo_session", "hpo_session=", "=;;=", 'a="\\', "hpo_session=x"]
)
def test_cookies_that_mean_nothing(site: Site, cookie: str) -> None:
    answer = site.client.get("/v1/studies", headers={"Cookie": cookie})
    assert answer.status_code == 401


def test_a_login_where_nobody_needs_one(new_database: Callable[[str], str]) -> None:
    app = create_app(open_store(new_database("sqlite")), access=Access(root_path="/hpo"))
    with TestClient(app, follow_redirects=False) as client:
        await_ready(client)
        answer = client.get("/login")
        assert (answer.status_code, answer.headers["location"]) == (303, "/hpo/")
        assert client.post("/login", data={"token": "x"}).status_code == 401
