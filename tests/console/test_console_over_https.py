"""Over HTTPS the cookie is sent over HTTPS only, and a certificate is a login."""

from collections.abc import Iterator

import httpx
import pytest
from browsing import Browser, words
from certificates import Authority
from credentials import TOKEN_SETTINGS
from tls_ports import context, settings

import pybroker.testing
from pybroker.testing import RunningBroker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    for name in ("broker", "alice", "bob"):
        made.issue(name)
    return made


@pytest.fixture(scope="module")
def mutual(authority: Authority) -> Iterator[RunningBroker]:
    more = TOKEN_SETTINGS | {"authentication_providers": ("tls", "token")}
    more["tls_trust_certs_file_path"] = str(authority.path)
    with pybroker.testing.broker(http=True, **settings(authority, **more)) as running:
        yield running


def browser(broker: RunningBroker, authority: Authority, *certificate: str) -> Browser:
    made = Browser(broker.admin_url_tls)
    made.http = httpx.Client(
        base_url=broker.admin_url_tls,
        headers={"accept": "text/html"},
        verify=context(authority, *certificate),
    )
    return made


def files_of(authority: Authority, name: str) -> list[str]:
    return [str(authority.directory / f"{name}.{end}") for end in ("crt", "key")]


def test_a_certificate_lets_in(mutual: RunningBroker, authority: Authority) -> None:
    alice = browser(mutual, authority, *files_of(authority, "alice"))
    assert "this browser's certificate" in words(alice.page("/console/login"))
    answer = alice.send("/console/login", "/console/login", method="tls")
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]
    assert "alice" in words(alice.page("/console"))


def test_without_a_certificate_there_is_no_such_button(
    mutual: RunningBroker, authority: Authority
) -> None:
    nobody = browser(mutual, authority)
    assert "this browser's certificate" not in words(nobody.page("/console/login"))
    answer = nobody.send("/console/login", "/console/login", method="tls")
    assert answer.status_code == 401


def test_a_session_begun_with_a_certificate_goes_on_with_that_one_only(
    mutual: RunningBroker, authority: Authority
) -> None:
    alice = browser(mutual, authority, *files_of(authority, "alice"))
    alice.send("/console/login", "/console/login", method="tls")
    cookie = alice.http.cookies["pybroker_console"]
    bob = browser(mutual, authority, *files_of(authority, "bob"))
    for thief in (browser(mutual, authority), bob, Browser(mutual.admin_url)):
        answer = thief.http.get("/console", headers={"cookie": f"pybroker_console={cookie}"})
        assert (answer.status_code, answer.text) == (303, "")
        part = thief.http.get(
            "/console/assets/console.js", headers={"cookie": f"pybroker_console={cookie}"}
        )
        assert part.status_code == 404
    assert "alice" in words(alice.page("/console"))
