"""Without a login the console shows nothing. A login has the role and the expiry that REST sees."""

import re
import time
from typing import Any

import httpx
import pytest
from browsing import Browser, words
from credentials import token
from permission_world import SETTINGS

import pybroker.testing
from pybroker.console.pages.table import PAGES
from pybroker.console.sessions import Sessions
from pybroker.security.password_queue import too_many
from pybroker.testing import RunningBroker

PATHS = sorted({view.path for page in PAGES for view in page.views if view.method == "GET"})
ASSETS = ("console.js", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css", "icon.svg")


@pytest.fixture
def browser(broker: RunningBroker) -> Browser:
    return Browser(broker.admin_url)


@pytest.mark.parametrize("path", [*PATHS, "/console/no-such-page"])
def test_without_a_login_every_page_leads_to_the_login(browser: Browser, path: str) -> None:
    path = re.sub(r"\{\w+(:\w+)?\}", "1", path)
    answer = browser.open(path)
    assert (answer.status_code, answer.text) == (303, "")
    assert answer.headers["location"].startswith("/console/login?to=")


def test_without_a_login_a_part_of_a_page_is_refused(browser: Browser) -> None:
    answer = browser.http.get("/console/overview/live", headers={"hx-request": "true"})
    assert (answer.status_code, answer.text) == (401, "")
    assert answer.headers["hx-redirect"] == "/console/login"


@pytest.mark.parametrize("name", ASSETS)
def test_without_a_login_there_are_styles_and_nothing_else(browser: Browser, name: str) -> None:
    assert browser.open("/console/assets/console.css").status_code == 200
    assert browser.open(f"/console/assets/{name}").status_code == 404


def test_an_asset_is_refused_in_words_while_too_many_passwords_are_checked(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise too_many()

    monkeypatch.setattr(Sessions, "identity", refuse)
    for path in ("/console/assets/console.js", "/console"):
        answer = browser.open(path)
        assert (answer.status_code, "try again" in words(answer.text)) == (429, True)


def test_the_login_page_tells_nothing_of_the_broker(browser: Browser) -> None:
    page = browser.page("/console/login")
    assert "standalone" not in page and "Topics" not in page and "<script" not in page


def test_after_the_login_the_page_is_there_that_was_asked_for(browser: Browser) -> None:
    answer = browser.send(
        "/console/login", "/console/login", method="token", token=token("admin"), to="/console?x=1"
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/console?x=1")
    assert "admin" in words(browser.page("/console"))


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/console\\@evil", "x"])
def test_a_login_leads_nowhere_else(browser: Browser, to: str) -> None:
    answer = browser.send(
        "/console/login", "/console/login", method="token", token=token("admin"), to=to
    )
    assert answer.headers["location"] == "/console"


def test_a_wrong_token_is_refused_in_the_words_of_the_admin_api(browser: Browser) -> None:
    answer = browser.log_in("no token")
    assert answer.status_code == 401
    assert "Failed to authenticate" in words(answer.text)


def test_the_cookie_is_the_browsers_alone(browser: Browser) -> None:
    before = browser.open("/console/login").headers["set-cookie"]
    after = browser.log_in(token("admin")).headers["set-cookie"]
    for cookie in (before, after):
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/console" in cookie
    assert before.partition(";")[0] != after.partition(";")[0], "the id changes with the login"


def test_who_logs_out_is_out(browser: Browser) -> None:
    browser.log_in(token("admin"))
    cookie = browser.http.cookies["pybroker_console"]
    browser.send("/console/logout", "/console")
    browser.http.cookies.set("pybroker_console", cookie)
    assert browser.open("/console").status_code == 303


def test_a_second_login_ends_the_first_one_s_session(browser: Browser) -> None:
    browser.log_in(token("often"))
    cookie = browser.http.cookies["pybroker_console"]
    browser.log_in(token("admin"))
    assert browser.open("/console").status_code == 200
    browser.http.cookies.clear()
    browser.http.cookies.set("pybroker_console", cookie)
    assert browser.open("/console").status_code == 303


@pytest.mark.slow
def test_a_session_ends_with_its_token(browser: Browser) -> None:
    browser.log_in(token("admin", exp=int(time.time()) + 1))
    while browser.open("/console").status_code == 200:
        pass
    assert browser.open("/console").headers["location"].startswith("/console/login")


def test_a_role_has_a_limited_number_of_sessions_and_the_first_one_ends(
    broker: RunningBroker,
) -> None:
    browsers = [Browser(broker.admin_url) for _ in range(21)]
    for browser in browsers:
        browser.log_in(token("often"))
    assert browsers[0].open("/console").status_code == 303
    assert browsers[1].open("/console").status_code == 200


def test_a_form_without_its_token_is_refused(browser: Browser) -> None:
    browser.log_in(token("admin"))
    for data in ({}, {"form_token": "0" * 64}):
        answer = browser.http.post("/console/logout", data=data)
        assert answer.status_code == 403 and "outdated or from another site" in words(answer.text)
    assert browser.open("/console").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_form_of_another_site_is_refused(browser: Browser, headers: dict[str, str]) -> None:
    browser.log_in(token("admin"))
    data = {"form_token": browser.form_token("/console")}
    assert browser.http.post("/console/logout", data=data, headers=headers).status_code == 403
    assert browser.open("/console").status_code == 200


def test_a_token_of_one_browser_is_no_others(broker: RunningBroker, browser: Browser) -> None:
    other = Browser(broker.admin_url)
    other.log_in(token("admin"))
    browser.log_in(token("admin"))
    data = {"form_token": other.form_token("/console")}
    assert browser.http.post("/console/logout", data=data).status_code == 403


def test_a_password_lets_in_until_it_is_changed(tmp_path: Any) -> None:
    import bcrypt

    def write(password: str) -> None:
        digest = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        (tmp_path / "htpasswd").write_text(f"ann:{digest}\n")

    write("first")
    settings = SETTINGS | {
        "authentication_providers": ("basic",),
        "basic_auth_conf": str(tmp_path / "htpasswd"),
        "super_user_roles": ("ann",),
    }
    with pybroker.testing.broker(http=True, **settings) as broker:
        browser = Browser(broker.admin_url)

        def log_in(password: str) -> httpx.Response:
            return browser.send(
                "/console/login", "/console/login", method="basic", user="ann", password=password
            )

        assert broker.call(_failures) == 0
        assert log_in("wrong").status_code == 401
        assert broker.call(_failures) == 1, "it counts as over REST"
        assert log_in("first").status_code == 303
        assert browser.open("/console").status_code == 200
        write("second")
        broker.call(_reloaded)
        assert browser.open("/console").status_code == 303


async def _failures(broker: Any) -> int:
    """The number of users who failed recently."""
    return len(broker.authentication._providers["basic"].refused)


async def _reloaded(broker: Any) -> None:
    broker.reload_credentials()


def test_without_authentication_there_is_no_login() -> None:
    with pybroker.testing.broker(http=True) as broker:
        browser = Browser(broker.admin_url)
        assert browser.open("/").headers["location"] == "/console"
        assert "Overview" in words(browser.page("/console"))
        assert "Log out" not in browser.page("/console")
        assert browser.open("/console/login").status_code == 404
        assert httpx.get(broker.admin_url + "/").status_code == 404, "REST clients see no redirect"
