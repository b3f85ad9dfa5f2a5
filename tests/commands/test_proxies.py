"""HTTP proxies that the environment names: none leads to this machine, and others are named."""

from collections.abc import Callable

import pytest

from pybroker.commands.admin.proxies import is_loopback, proxy_for
from pybroker.commands.admin.rest import Rest, RestError
from pybroker.process.cli import main
from pybroker.testing import RunningBroker

PROXY = "http://user:secret@127.0.0.1:9/"  # nothing listens there


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, PROXY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "direct.example")


def test_a_broker_on_this_machine_is_reached_directly(
    broker: RunningBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admin", "--admin-url", broker.admin_url, "tenants", "list"]) == 0
    assert "public" in capsys.readouterr().out


def test_the_proxy_to_another_broker_is_named_without_its_password() -> None:
    with pytest.raises(RestError) as caught:
        Rest("http://broker.example:8080").ask("GET", "tenants")
    said = str(caught.value)
    assert "through the proxy 127.0.0.1:9 of the variable http_proxy" in said
    assert "no_proxy=broker.example" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://localhost:8080", ""),
        ("https://[::1]:8443", ""),
        ("http://127.1.2.3", ""),
        ("http://direct.example:8080", ""),
        ("https://broker.example", "127.0.0.1:9"),
    ],
)
def test_a_proxy_is_used_unless_the_broker_is_near_or_excepted(url: str, proxy: str) -> None:
    assert proxy_for(url) == proxy


@pytest.mark.parametrize(("form", "found"), [("http://p:1/", "p:1"), ("p:1", "p:1")])
def test_a_proxy_may_be_named_without_scheme(
    form: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, form)
    assert proxy_for("http://broker.example") == found


def test_names_that_only_begin_with_localhost_are_elsewhere() -> None:
    near: Callable[[str], bool] = is_loopback
    assert [near("localhost.example"), near("my.localhost"), near("10.0.0.1")] == [
        False,
        True,
        False,
    ]
