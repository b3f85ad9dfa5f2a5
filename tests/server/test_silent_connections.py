"""Silent connections do not keep others out: they are closed to make room."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from raw_client import RawClient

import pybroker.testing
from pybroker.testing import RunningBroker

WAIT_S = 30


@contextmanager
def silent(broker: RunningBroker, *addresses: str) -> Iterator[list[socket.socket]]:
    """A connection from each address, in this order, registered by the broker."""
    parts = urlsplit(broker.service_url)
    made = []
    for address in addresses:
        before = connections(broker)
        each = socket.create_connection(
            ("127.0.0.1", parts.port or 0), timeout=WAIT_S, source_address=(address, 0)
        )
        made.append(each)
        broker.wait_until(lambda: newest(broker) == each.getsockname(), WAIT_S)  # noqa: B023
        assert connections(broker) <= before + 1
    yield made
    for each in made:
        each.close()


def connections(broker: RunningBroker) -> int:
    async def count(running: Any) -> int:
        return len(running.server.sessions)

    return broker.call(count)


def newest(broker: RunningBroker) -> tuple[str, int] | None:
    async def look(running: Any) -> tuple[str, int] | None:
        for session in running.server.sessions[-1:]:
            host, _, port = session.peer.rpartition(":")
            return host, int(port)
        return None

    return broker.call(look)


def is_open(connection: socket.socket) -> bool:
    """Whether the broker has left it open, once all due closings have happened."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def closed(connection: socket.socket) -> bool:
    connection.settimeout(WAIT_S)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_silent_connections_of_other_addresses_make_room() -> None:
    with (
        pybroker.testing.broker(broker_max_connections=3) as broker,
        silent(broker, "127.0.0.2", "127.0.0.3", "127.0.0.3") as held,
        RawClient(broker.service_url) as client,
    ):
        assert client.kinds_before_pong() == []
        assert closed(held[1]), "the oldest of the address with most"
        assert is_open(held[0])
        assert is_open(held[2])


def test_silent_connections_of_the_same_address_make_room() -> None:
    with (
        pybroker.testing.broker(broker_max_connections_per_ip=3) as broker,
        silent(broker, "127.0.0.1", "127.0.0.1", "127.0.0.1") as held,
        RawClient(broker.service_url) as client,
    ):
        assert client.kinds_before_pong() == []
        assert closed(held[0])
        assert all(is_open(each) for each in held[1:])


def test_who_has_logged_in_makes_no_room() -> None:
    with (
        pybroker.testing.broker(broker_max_connections=3) as broker,
        RawClient(broker.service_url) as first,
        RawClient(broker.service_url) as second,
        silent(broker, "127.0.0.2", "127.0.0.3", "127.0.0.4"),
    ):
        for client in (first, second):
            assert client.kinds_before_pong() == []
        assert connections(broker) == 3


def test_a_flood_of_silent_connections_leaves_those_that_log_in_alone() -> None:
    with (
        pybroker.testing.broker(broker_max_connections=10) as broker,
        silent(broker, *["127.0.0.2"] * 30),
    ):
        clients = [RawClient(broker.service_url) for _ in range(5)]
        with silent(broker, *["127.0.0.2"] * 30):
            for client in clients:
                assert client.kinds_before_pong() == []
                client.close()
