"""Sessions of the console, remembered passwords and failed logins follow the broker's clock."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bcrypt
import httpx
import pytest
from browsing import Browser
from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.security import basic
from pybroker.security.refused_logins import FAILURES_AT_ONCE, FAILURES_PER_SECOND
from pybroker.testing import RunningBroker

HERE: Final = "127.0.0.1"
PASSWORD: Final = "right"
PATIENCE_S: Final = 30
TOPICS: Final = "/admin/v2/persistent/public/default"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker with tokens and passwords; ann is a superuser."""
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


def log_in(broker: RunningBroker, password: str = PASSWORD) -> httpx.Response:
    return httpx.get(broker.admin_url + TOPICS, auth=("ann", password))


def is_logged_in(browser: Browser) -> bool:
    """Opens a page, which also uses the session."""
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


def test_who_failed_too_often_may_log_in_again_later(broker: RunningBroker) -> None:
    async def fail(running: Any) -> None:
        """So many failures that even a slow machine does not forgive them meanwhile."""
        refused = running.authentication._providers["basic"].refused
        for _ in range(FAILURES_AT_ONCE + int(FAILURES_PER_SECOND * 300)):
            refused.failed(HERE, "ann")

    broker.call(fail)
    refused = log_in(broker)
    assert refused.status_code == 401
    assert "Too many failed logins" in refused.text
    broker.clock.advance("301s")
    assert log_in(broker).status_code == 200


def test_a_right_password_is_not_hashed_again_within_ten_minutes_of_its_last_use(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []
    matches = basic.matches

    def counted(password: bytes, digest: str) -> bool:
        hashed.append(password)
        return matches(password, digest)

    monkeypatch.setattr(basic, "matches", counted)
    assert log_in(broker).status_code == 200
    assert hashed == [PASSWORD.encode()]
    for _ in range(2):
        broker.clock.advance("9m")
        assert log_in(broker).status_code == 200
    assert len(hashed) == 1
    broker.clock.advance("10m")
    assert log_in(broker).status_code == 200
    assert len(hashed) == 2


def test_an_address_whose_login_failed_waits_behind_others_for_a_minute(
    broker: RunningBroker,
) -> None:
    async def compared(running: Any) -> list[str]:
        """The order of comparison, if the address with a failed login asks before another one."""
        queue = running.authentication._providers["basic"]._queue
        order: list[str] = []
        go_on = threading.Event()
        held = asyncio.ensure_future(queue.compare("held", "x", lambda: go_on.wait(PATIENCE_S)))
        await asyncio.sleep(0)  # the first comparison has begun
        queue._turn = 0  # resets the turn: every fourth comparison takes from the other queue
        asked = [
            asyncio.ensure_future(
                queue.compare(each, "ann", lambda each=each: order.append(each) is None)
            )
            for each in (HERE, "10.0.0.1")
        ]
        await asyncio.sleep(0)  # both wait
        go_on.set()
        await asyncio.gather(held, *asked)
        return order

    assert log_in(broker, "wrong").status_code == 401
    assert broker.call(compared) == ["10.0.0.1", HERE]
    broker.clock.advance("59s")
    assert broker.call(compared) == ["10.0.0.1", HERE]
    broker.clock.advance("1s")
    assert broker.call(compared) == [HERE, "10.0.0.1"]
