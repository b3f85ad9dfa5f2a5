"""A client's certificate is valid until it expires, like a token.

This holds for long-lived connections, for resumed sessions, and for each request over HTTPS.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from certificates import Authority
from credentials import TOKEN_SETTINGS

import pybroker.testing
from pybroker.base.errors import AuthenticationError
from pybroker.security.certificates import TlsProvider
from pybroker.security.identity import Credentials
from pybroker.server.connections import on_connect
from pybroker.testing import RunningBroker
from pybroker.testing.clock import VirtualClock
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import FrameDecoder, encode_frame

_T = pb.BaseCommand
WAIT_S = 30
WEEK_MS = 7 * 24 * 3600 * 1000


class MovedClock(VirtualClock):
    """A clock that tests move; their certificates are valid for a day from now."""

    ahead_ms = 0
    set_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms if self.set_ms is None else self.set_ms


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    for name in ("broker", "alice"):
        made.issue(name)
    return made


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def broker(
    authority: Authority, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningBroker]:
    monkeypatch.setattr("pybroker.testing.running_broker.VirtualClock", lambda: clock)
    settings: dict[str, Any] = {
        "broker_service_port_tls": 0,
        "web_service_port_tls": 0,
        "tls_certificate_file_path": str(authority.directory / "broker.crt"),
        "tls_key_file_path": str(authority.directory / "broker.key"),
        "tls_trust_certs_file_path": str(authority.path),
        "authentication_providers": ("tls", "token"),
    }
    with pybroker.testing.broker(http=True, **TOKEN_SETTINGS | settings) as running:
        yield running


def context(authority: Authority, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(authority.path))
    made.load_cert_chain(*(str(authority.directory / f"alice.{end}") for end in ("crt", "key")))
    if version is not None:
        made.minimum_version = made.maximum_version = version
    return made


class Peer:
    """Speaks the binary protocol over TLS; resumes a session if given one."""

    def __init__(
        self, broker: RunningBroker, made: ssl.SSLContext, session: Any = None, method: str = "tls"
    ) -> None:
        port = urlsplit(broker.service_url_tls).port
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.socket = made.wrap_socket(plain, server_hostname="localhost", session=session)
        self._frames = FrameDecoder(5 * 1024 * 1024)
        flags = pb.FeatureFlags(supports_auth_refresh=True)
        connect = pb.CommandConnect(
            client_version="x", auth_method_name=method, protocol_version=21, feature_flags=flags
        )
        self.socket.sendall(encode_frame(pb.BaseCommand(type=_T.CONNECT, connect=connect)))

    def receives(self) -> Any:
        """The type of the next command; None at the end of the connection."""
        while data := self._received():
            for frame in self._frames.receive(data):
                return frame.command.type  # type: ignore[union-attr]
        return None

    def _received(self) -> bytes:
        try:
            return self.socket.recv(65536)
        except ConnectionError:
            return b""

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def check_logins(broker: RunningBroker, clock: MovedClock) -> None:
    async def check(running: Any) -> None:
        for session in running.server.sessions:
            on_connect.check_login(session, clock.now_ms())

    broker.call(check)


def test_a_live_connection_ends_with_its_certificate(
    broker: RunningBroker, authority: Authority, clock: MovedClock
) -> None:
    with Peer(broker, context(authority)) as peer:
        assert peer.receives() == _T.CONNECTED
        check_logins(broker, clock)
        clock.ahead_ms = WEEK_MS
        check_logins(broker, clock)
        assert peer.receives() is None, "a challenge could not be answered with another one"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("method", ["tls", "token"])
def test_no_session_is_resumed_with_a_certificate_that_has_expired(
    broker: RunningBroker,
    authority: Authority,
    clock: MovedClock,
    version: ssl.TLSVersion,
    method: str,
) -> None:
    made = context(authority, version)
    with Peer(broker, made) as peer:
        assert peer.receives() == _T.CONNECTED
        session = peer.socket.session
    clock.ahead_ms = WEEK_MS
    try:
        with Peer(broker, made, session, method) as again:
            resumed = again.socket.session_reused
            answer = again.receives()
    except (ssl.SSLError, ConnectionError):
        resumed, answer = True, None
    assert answer is None if resumed else answer == _T.ERROR


def test_an_https_connection_has_no_role_once_its_certificate_has_expired(
    broker: RunningBroker, authority: Authority, clock: MovedClock
) -> None:
    url = broker.admin_url_tls + "/admin/v2/clusters"
    with httpx.Client(verify=context(authority)) as https:
        assert https.get(url).status_code == 200
        clock.ahead_ms = WEEK_MS
        refused = https.get(url)
        assert refused.status_code == 401
        assert "expired" in refused.json()["reason"]


def test_a_certificate_holds_until_its_last_second() -> None:
    clock = MovedClock()
    provider = TlsProvider(clock)
    certificate = {
        "subject": ((("commonName", "alice"),),),
        "notAfter": "Jan  1 00:00:10 1970 GMT",
    }
    shown = Credentials("tls", certificate=certificate)
    clock.set_ms = 9_999
    login = asyncio.run(provider.authenticate(shown, "1.2.3.4"))
    assert (login.role, login.expires_ms) == ("alice", 10_000)
    clock.set_ms = 10_000
    with pytest.raises(AuthenticationError, match="expired"):
        asyncio.run(provider.authenticate(shown, "1.2.3.4"))
