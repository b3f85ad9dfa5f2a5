"""Many simultaneous scrapes of /metrics, or many that hang up, cost as much as one."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

import pybroker.testing
from pybroker.admin.routes.metrics import MetricsRoutes
from pybroker.testing import RunningBroker

WAIT_S = 30
RENDER = MetricsRoutes._render


class Counted:
    def __init__(self) -> None:
        self.begun = 0
        self.held = False
        self.there, self.given_up = threading.Event(), threading.Event()


@pytest.fixture
def renders(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()

    async def render(routes: MetricsRoutes) -> list[bytes]:
        counted.begun += 1
        counted.there.set()
        try:
            if counted.held:
                await asyncio.Event().wait()
            return await RENDER(routes)
        except asyncio.CancelledError:
            counted.given_up.set()
            raise

    monkeypatch.setattr(MetricsRoutes, "_render", render)
    return counted


@pytest.fixture
def broker(renders: Counted) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, metrics_cache_ms=600_000) as broker:
        yield broker


def scrape_and_keep_open(broker: RunningBroker) -> socket.socket:
    parts = urlsplit(broker.admin_url)
    assert parts.hostname is not None
    connection = socket.create_connection((parts.hostname, parts.port), timeout=WAIT_S)
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return connection


def body(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as file:
        head, _, rest = file.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    return rest


def test_fifty_scrapes_are_one_rendering(broker: RunningBroker, renders: Counted) -> None:
    connections = [scrape_and_keep_open(broker) for _ in range(50)]
    bodies = {body(connection) for connection in connections}
    assert len(bodies) == 1
    assert b"pulsar_active_connections" in bodies.pop()
    assert renders.begun == 1


def test_what_nobody_waits_for_is_not_rendered(broker: RunningBroker, renders: Counted) -> None:
    renders.held = True
    connections = [scrape_and_keep_open(broker) for _ in range(20)]
    assert renders.there.wait(WAIT_S)
    for connection in connections:
        connection.close()
    assert renders.given_up.wait(WAIT_S)
    assert renders.begun == 1
    assert httpx.get(f"{broker.admin_url}/admin/v2/brokers/health").text == "ok"


def test_a_length_is_said(broker: RunningBroker) -> None:
    answer = httpx.get(f"{broker.admin_url}/metrics")
    assert int(answer.headers["content-length"]) == len(answer.content)
