"""Attacks before authentication: floods of refused logins, and costly TLS handshakes."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from certificates import Authority
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient, Refused

import pybroker.testing
from pybroker.security.tls_connection import TlsConnection
from pybroker.security.tls_contexts import TlsSettings, make_context
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

SHOWN = {
    "nothing": b"",
    "no token": b"\xff" * 100,
    "a token without a signature": b"eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "an expired token": token("alice", exp=1).encode(),
    "a huge token": b"x" * 60_000,
    "another's": token("alice", b"y" * 32).encode(),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    certificate, key = Authority(tmp_path_factory.mktemp("tls")).issue("broker")
    tls = {"tls_certificate_file_path": certificate, "tls_key_file_path": key}
    with pybroker.testing.broker(**TOKEN_SETTINGS, **tls, broker_service_port_tls=0) as running:
        yield running


def left(broker: RunningBroker) -> int:
    async def count(running: Any) -> int:
        return len(running.server.sessions)

    return broker.call(count)


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN.keys())
def test_a_refused_login_leaves_nothing(broker: RunningBroker, shown: bytes) -> None:
    with pytest.raises(Refused):
        RawClient(broker.service_url, auth_method_name="token", auth_data=shown)
    broker.wait_until(lambda: left(broker) == 0)


def test_a_second_connect_does_not_change_the_role(broker: RunningBroker) -> None:
    fields = {"auth_method_name": "token", "auth_data": token("alice").encode()}
    with RawClient(broker.service_url, **fields) as client:
        again = pb.CommandConnect(client_version="x", protocol_version=21, **fields)
        client.send(pb.BaseCommand.CONNECT, "connect", again)
        client.wait_closed()


def test_nothing_is_done_before_the_login(broker: RunningBroker) -> None:
    host, port = broker.service_url.removeprefix("pulsar://").rsplit(":", 1)
    look = pb.CommandLookupTopic(topic="t", request_id=1)
    frame = encode_frame(pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=look))
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(frame)
        assert peer.recv(65536) == b""


def test_renegotiation_is_refused(tmp_path: Path) -> None:
    context = make_context(TlsSettings(*Authority(tmp_path).issue("broker")))
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_a_hello_byte_by_byte_is_no_handshake_yet(broker: RunningBroker) -> None:
    client = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    port = urlsplit(broker.service_url_tls).port or 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
        for index in range(50):
            peer.sendall(hello[index : index + 1])
        assert left(broker) == 0
        peer.sendall(hello[50:])
        assert peer.recv(65536)


def test_what_openssl_keeps_of_a_large_message_is_little(tmp_path: Path) -> None:
    """OpenSSL's buffers never shrink, so they must never grow."""
    grown = []

    class Bio:
        pending = 0

        def read(self) -> bytes:
            return b""

    class Tls:
        def write(self, data: bytes) -> None:
            grown.append(len(data))

    connection = TlsConnection.__new__(TlsConnection)
    connection._tls, connection._outgoing = Tls(), Bio()  # type: ignore[assignment]
    connection._encrypted(b"x" * 5_000_000)
    assert sum(grown) == 5_000_000
    assert max(grown) <= 64 * 1024
