"""Sessions of the console and refused logins follow the broker's clock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bcrypt
import httpx
import pytest
from browsing import Browser
from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.security.refused_logins import FAILURES_AT_ONCE
from pybroker.testing import RunningBroker

PASSWORD: Final = "right"
TOPICS: Final = "/admin/v2/persistent/public/default"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Tokens and passwords are accepted; ann is a superuser."""
    digest = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (tmp_path / "htpasswd").write_text(f"ann:{digest}\n")
    settings = TOKEN_SETTINGS | {
        "authentication_providers": ("token", "basic"),
        "basic_auth_conf": str(tmp_path / "htpasswd"),
        "super_user_roles": ("ann",),
    }
    with pybroker.testing.broker(http=True, **settings) as broker:
        yield broker


@pytest.fixture
def browser(broker: RunningBroker) -> Browser:
    browser = Browser(broker.admin_url)
    assert browser.log_in(token("ann")).status_code == 303
    return browser


def is_logged_in(browser: Browser) -> bool:
    """Opening a page uses the session."""
    return browser.open("/console").status_code == 200


def test_a_session_of_the_console_ends_an_hour_after_its_last_use(
    broker: RunningBroker, browser: Browser
) -> None:
    broker.clock.advance("59m")
    assert is_logged_in(browser)
    broker.clock.advance("59m")
    assert is_logged_in(browser)
    broker.clock.advance("61m")
    assert browser.open("/console").headers["location"].startswith("/console/login")
    assert browser.log_in(token("ann")).status_code == 303
    assert is_logged_in(browser)


def test_a_session_of_the_console_ends_after_twelve_hours_of_use(
    broker: RunningBroker, browser: Browser
) -> None:
    for _ in range(13):
        broker.clock.advance("55m")
        assert is_logged_in(browser)
    broker.clock.advance("6m")
    assert not is_logged_in(browser)


def test_who_failed_too_often_may_log_in_a_few_seconds_later(broker: RunningBroker) -> None:
    async def fail(running: Any) -> None:
        refused = running.authentication._providers["basic"].refused
        for _ in range(FAILURES_AT_ONCE):
            refused.failed("127.0.0.1", "ann")

    def log_in() -> httpx.Response:
        return httpx.get(broker.admin_url + TOPICS, auth=("ann", PASSWORD))

    broker.call(fail)
    refused = log_in()
    assert refused.status_code == 401
    assert "Too many failed logins" in refused.text
    broker.clock.advance("1s")
    assert log_in().status_code == 200
