"""Whatever one visitor takes, the others are served."""

import json
import socket
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
from raw_websocket import CONTINUATION, FIN, TEXT, RawPeer
from ws_programs import connected, publish, refusal

import pybroker.testing
from pybroker.client import Client
from pybroker.gateway.polls import MOST
from pybroker.testing import RunningBroker

IN = "persistent/public/default"
TENANTS = "/admin/v2/tenants"


def is_served(broker: RunningBroker) -> None:
    """By HTTP, by a WebSocket, by the binary protocol."""
    assert httpx.get(broker.admin_url + TENANTS).status_code == 200
    with connected(broker, f"v2/producer/{IN}/others") as ws:
        assert publish(ws, b"x")["result"] == "ok"
    with Client(broker.service_url) as client:
        client.create_producer("others").send(b"x")


def test_open_websockets_take_no_place_from_requests() -> None:
    with pybroker.testing.broker(http=True) as broker, ExitStack() as peers:
        for number in range(420):  # more than the HTTP port has connections
            peers.enter_context(RawPeer(broker, f"v2/producer/{IN}/t-{number % 5}"))
        is_served(broker)


def test_websockets_count_as_connections_of_their_machine() -> None:
    with (
        pybroker.testing.broker(http=True, broker_max_connections_per_ip=3) as broker,
        ExitStack() as peers,
    ):
        for _ in range(3):
            peers.enter_context(RawPeer(broker, f"v2/producer/{IN}/t"))
        status, reason = refusal(broker, f"v2/producer/{IN}/t")
        assert (status, "too many connections" in reason) == (429, True)


def test_requests_that_wait_take_no_place_from_others() -> None:
    body = b'{"waitMs": 30000}'
    with pybroker.testing.broker(http=True) as broker, ExitStack() as pollers:
        url = urlsplit(broker.admin_url)
        request = (
            f"POST /topics/{IN}/t/subscriptions/s/receive HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        for _ in range(MOST + 50):
            poller = socket.create_connection((url.hostname or "", url.port or 0), timeout=30)
            pollers.enter_context(poller)
            poller.sendall(request + body)
        is_served(broker)
        broker.wait_until(lambda: broker.call(waiting_polls) == MOST)
        is_served(broker)


async def waiting_polls(running: Any) -> int:
    return len((await running._inside.gateway()).receivers.polls._waiting)


def test_large_messages_that_do_not_end_hold_up_only_large_ones() -> None:
    most, part = 100_000, b"x" * 70_000
    settings = {"web_socket_max_text_frame_size": most, "max_pending_frame_bytes": 2 * most}
    with pybroker.testing.broker(http=True, **settings) as broker, ExitStack() as peers:
        path = f"v2/producer/{IN}/t"
        greedy = [peers.enter_context(RawPeer(broker, path)) for _ in range(2)]
        for peer in greedy:
            peer.send(TEXT, part)
        broker.wait_until(lambda: broker.call(taken_bytes) == 2 * most)
        late = peers.enter_context(RawPeer(broker, path))
        late.send(TEXT, json.dumps({"payload": "A" * 80_000}).encode()[:70_000])
        late.send(FIN | CONTINUATION, json.dumps({"payload": "A" * 80_000}).encode()[70_000:])
        is_served(broker)
        broker.clock.advance("31s")
        assert [peer.close_code() for peer in greedy] == [1008, 1008]
        _, answer = late.frame()
        assert json.loads(answer)["result"] == "ok"
        broker.wait_until(lambda: broker.call(taken_bytes) == 0)


async def taken_bytes(running: Any) -> int:
    return int(running._services.frames.taken_bytes)
