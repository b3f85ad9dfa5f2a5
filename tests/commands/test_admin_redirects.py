"""A request follows redirects, but takes its credentials only to its own broker."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pybroker.commands.admin.rest import Rest, RestError


class Listening(HTTPServer):
    """Redirects to `to` if set, otherwise answers "yes"; records the credentials that it gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.to = ""
        self.shown: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Listening

    def do_GET(self) -> None:
        self.server.shown.append(self.headers.get("Authorization"))
        sent_on = self.server.to and self.path.startswith("/admin")
        self.send_response(307 if sent_on else 200)
        if sent_on:
            self.send_header("Location", self.server.to)
        self.send_header("Content-Length", "0" if sent_on else "5")
        self.end_headers()
        if not sent_on:
            self.wfile.write(b'"yes"')

    def log_message(self, format: str, *arguments: object) -> None:
        """Keeps the log silent."""


@contextmanager
def listening() -> Iterator[Listening]:
    with Listening() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.fixture
def broker() -> Iterator[Listening]:
    with listening() as server:
        yield server


@pytest.fixture
def stranger() -> Iterator[Listening]:
    with listening() as server:
        yield server


def test_credentials_are_sent_to_no_other_host(broker: Listening, stranger: Listening) -> None:
    broker.to = f"{stranger.url}/there"
    with pytest.raises(RestError, match="credentials are not sent there"):
        Rest(broker.url, "Bearer secret").ask("GET", "brokers/version")
    assert (broker.shown, stranger.shown) == (["Bearer secret"], [])


@pytest.mark.parametrize("to", ["//localhost:{port}/there", "https://127.0.0.1:{port}/there"])
def test_credentials_do_not_follow_to_another_name_or_scheme(broker: Listening, to: str) -> None:
    broker.to = to.format(port=broker.server_port)
    with pytest.raises(RestError, match="--admin-url"):
        Rest(broker.url, "Bearer secret").ask("GET", "brokers/version")
    assert len(broker.shown) == 1


def test_within_the_same_place_they_go_along(broker: Listening) -> None:
    broker.to = "/there"
    assert Rest(broker.url, "Bearer secret").ask("GET", "brokers/version") == "yes"
    assert broker.shown == ["Bearer secret"] * 2


def test_who_shows_none_is_sent_on(broker: Listening, stranger: Listening) -> None:
    broker.to = f"{stranger.url}/there"
    assert Rest(broker.url).ask("GET", "brokers/version") == "yes"
    assert stranger.shown == [None]


def test_no_client_is_redirected_to_a_url_that_is_not_http(broker: Listening) -> None:
    broker.to = "ftp://127.0.0.1:1/there"
    with pytest.raises(RestError, match="which is not a broker URL"):
        Rest(broker.url).ask("GET", "brokers/version")


@pytest.mark.parametrize("scheme", ["http", "https", "ftp"])
def test_a_password_in_the_address_is_refused_and_not_repeated(scheme: str) -> None:
    with pytest.raises(RestError, match="--auth-params") as refused:
        Rest(f"{scheme}://admin:secret@localhost:8080")
    assert "secret" not in str(refused.value)
