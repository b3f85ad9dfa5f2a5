"""TLS ports and peers that speak no TLS, are slow, are many, or close without notice."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from certificates import Authority
from tls_ports import address, client, context, settings

import pybroker.testing
from pybroker.admin.http import server as http_server
from pybroker.base.runtime import SystemClock
from pybroker.security import tls_connection
from pybroker.security.tls_connection import (
    MAX_ANSWERED,
    MAX_SILENT,
    TlsAcceptor,
    TlsConnection,
    most_handshakes,
)
from pybroker.security.tls_contexts import TlsContexts, TlsSettings
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame

TOPIC = "persistent://public/default/tls"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue("broker")
    return made


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **settings(authority)) as running:
        yield running


def test_who_speaks_no_tls_is_closed(broker: RunningBroker) -> None:
    for url in (broker.service_url_tls, broker.admin_url_tls):
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff" * 70_000):
            with socket.create_connection(address(url), timeout=30) as peer:
                peer.sendall(data)
                drain(peer)


def drain(peer: socket.socket) -> None:
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        return


def test_slow_handshakes_end(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = settings(authority, handshake_timeout_ms=100)
    monkeypatch.setattr(http_server, "HEAD_S", 0.1)
    with pybroker.testing.broker(http=True, **slow) as running:
        for url in (running.service_url_tls, running.admin_url_tls):
            with socket.create_connection(address(url), timeout=30) as peer:
                peer.sendall(b"\x16\x03\x01\x02\x00")  # the header of a ClientHello
                drain(peer)

        async def be_patient(broker: Any) -> None:
            """On a busy machine the handshake of a good client may take longer than 100 ms."""
            broker.server._tls_acceptor.handshake_timeout_s = 30.0
            services = broker.server._services
            services.config = replace(services.config, handshake_timeout_ms=30_000)

        running.call(be_patient)
        with client(running, authority) as tls:
            tls.create_producer(TOPIC)


def test_handshakes_of_one_address_make_room_for_each_other(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "MAX_SILENT", 3)
    with pybroker.testing.broker(**settings(authority)) as running:
        opened = [socket.create_connection(address(running.service_url_tls), 30) for _ in range(10)]
        for oldest in opened[:7]:
            drain(oldest)

        async def count(broker: Any) -> int:
            return broker.server._tls_acceptor.handshakes

        assert running.call(count) == 3
        for peer in opened:
            peer.close()
        with client(running, authority) as tls:
            tls.create_producer(TOPIC).send(b"x")
        running.wait_until(lambda: running.call(count) == 0)


class Peer(asyncio.Transport):
    """The client's end: records what the server sends."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__({"peername": (host, 1)})
        self.received, self.aborted = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.received += data

    def abort(self) -> None:
        self.aborted = True


class Doorstep:
    """A TlsAcceptor without sockets."""

    def __init__(self, authority: Authority) -> None:
        certificate, key = (str(authority.directory / f"broker.{end}") for end in ("crt", "key"))
        contexts = TlsContexts(TlsSettings(certificate, key), 300.0, SystemClock())
        self.door = TlsAcceptor(contexts, asyncio.Protocol, 10.0)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        self.hello = outgoing.read()

    def comes(self, said: bytes, host: str = "10.0.0.1") -> tuple[Peer, TlsConnection]:
        peer, connection = Peer(host), self.door()
        connection.connection_made(peer)
        self.says(connection, said)
        return peer, connection

    def says(self, connection: TlsConnection, said: bytes) -> None:
        connection.get_buffer(-1)[: len(said)] = said
        connection.buffer_updated(len(said))


def test_a_machine_has_no_more_handshakes_for_its_many_ipv6_addresses(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "MAX_SILENT", 4)

    async def who_stayed() -> tuple[bool, list[bool]]:
        doorstep = Doorstep(authority)
        other, _ = doorstep.comes(b"", "2001:db9::1")
        peers = [doorstep.comes(b"", f"2001:db8::{number}")[0] for number in range(10)]
        assert doorstep.door.handshakes == 4
        return not other.aborted, [not peer.aborted for peer in peers]

    assert asyncio.run(who_stayed()) == (True, [False] * 7 + [True] * 3)


@pytest.mark.parametrize("silent", [b"", b"\x16\x03\x01", b"half a hello"])
def test_silent_peers_do_not_take_the_place_of_one_that_was_answered(
    authority: Authority, silent: bytes
) -> None:
    """They have the same address; some send the beginning of a ClientHello."""

    async def stayed() -> bool:
        doorstep = Doorstep(authority)
        good, connection = doorstep.comes(doorstep.hello[:100])
        doorstep.says(connection, doorstep.hello[100:])
        assert good.received
        said = doorstep.hello[:-1] if silent == b"half a hello" else silent
        for _ in range(2 * tls_connection.MAX_SILENT):
            doorstep.comes(said)
        assert doorstep.door.handshakes == 1 + tls_connection.MAX_SILENT
        return not good.aborted

    assert asyncio.run(stayed())


def test_peers_that_were_answered_make_room_for_each_other_and_not_for_silent_ones(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "MAX_ANSWERED", 3)

    async def who_stayed() -> tuple[bool, list[bool]]:
        doorstep = Doorstep(authority)
        silent, _ = doorstep.comes(b"")
        answered = [doorstep.comes(doorstep.hello)[0] for _ in range(5)]
        return not silent.aborted, [not peer.aborted for peer in answered]

    assert asyncio.run(who_stayed()) == (True, [False, False, True, True, True])


def test_handshakes_leave_descriptors_to_others() -> None:
    assert most_handshakes(1_000_000) == (MAX_SILENT, MAX_ANSWERED)
    assert most_handshakes(1024) == (64, 64)
    assert most_handshakes(8) == (1, 1)


def test_bytes_after_the_handshake_that_are_no_tls_end_the_connection(
    broker: RunningBroker, authority: Authority
) -> None:
    plain = socket.create_connection(address(broker.service_url_tls), timeout=30)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read())
            incoming.write(plain.recv(65536))
    plain.sendall(outgoing.read() + b"\x17\x03\x03\x00\x40" + b"x" * 64)
    drain(plain)
    plain.close()


def test_a_client_that_says_goodbye_and_one_that_does_not_leave_nothing(
    authority: Authority,
) -> None:
    connect = pb.CommandConnect(client_version="x", protocol_version=21)
    frame = encode_frame(pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=connect))

    async def count(running: Any) -> int:
        return len(running.server.sessions)

    with pybroker.testing.broker(**settings(authority)) as running:
        for goodbye in (True, False):
            plain = socket.create_connection(address(running.service_url_tls), timeout=30)
            tls = context(authority).wrap_socket(plain, server_hostname="localhost")
            tls.sendall(frame)
            assert tls.recv(65536)
            assert running.call(count) == 1
            if goodbye:
                tls.unwrap().close()
            else:
                tls.close()
            running.wait_until(lambda: running.call(count) == 0)


def test_an_expired_handshake_is_none_of_the_connections(authority: Authority) -> None:
    """Connections in their handshake do not count for `brokerMaxConnections`."""
    with pybroker.testing.broker(**settings(authority, broker_max_connections=2)) as running:
        idle = [socket.create_connection(address(running.service_url_tls), 30) for _ in range(10)]
        with client(running, authority) as tls:
            tls.create_producer(TOPIC)
        for peer in idle:
            peer.close()
