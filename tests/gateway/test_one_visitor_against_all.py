"""Whatever one visitor takes, the others are served."""

import json
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import websocket
from raw_websocket import CONTINUATION, FIN, TEXT, RawPeer
from ws_programs import connected, payload_of, publish, receive, refusal

import pybroker.testing
from pybroker.client import Client, CompressionType
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


def test_large_messages_of_a_machine_that_do_not_end_hold_up_no_other_machine() -> None:
    most, part = 100_000, b"x" * 70_000
    settings = {"web_socket_max_text_frame_size": most, "max_pending_frame_bytes": 2 * most}
    with pybroker.testing.broker(http=True, **settings) as broker, ExitStack() as peers:
        path = f"v2/producer/{IN}/t"
        for _ in range(5):
            peers.enter_context(RawPeer(broker, path, "127.0.0.2")).send(TEXT, part)
        broker.wait_until(lambda: broker.call(taken_bytes) == 2 * most)
        for _ in range(3):
            with connected(broker, path) as ws:
                assert publish(ws, b"x" * 60_000)["result"] == "ok"
            with Client(broker.service_url) as client:
                client.create_producer("t").send(b"x" * 90_000)


async def taken_bytes(running: Any) -> int:
    return int(running._services.frames.taken_bytes)


# -- what is received and not taken: a message is small on its way, and large once uncompressed

AHEAD_MB = 1
LARGE = b"\0" * 900_000
FROM_THE_START = "subscriptionInitialPosition=Earliest"


def limited() -> AbstractContextManager[RunningBroker]:
    settings = {"web_socket_pulsar_client_memory_limit_in_mb": AHEAD_MB}
    return pybroker.testing.broker(http=True, **settings)


@contextmanager
def full_queues(broker: RunningBroker, machine: str) -> Iterator[list[websocket.WebSocket]]:
    """Of WebSockets of a machine that take nothing of the topic "large"."""
    url = urlsplit(broker.admin_url)
    with Client(broker.service_url) as client, ExitStack() as peers:
        client.create_producer("large", compression_type=CompressionType.ZLib).send(LARGE)
        client.create_producer("small").send(b"x")
        opened = []
        for number in range(2):
            at = (url.hostname or "", url.port or 0)
            sock = socket.create_connection(at, timeout=30, source_address=(machine, 0))
            path = f"v2/consumer/{IN}/large/{number}?pullMode=true&{FROM_THE_START}"
            opened.append(peers.enter_context(connected(broker, path, socket=sock)))
        broker.wait_until(lambda: broker.call(held_bytes) > AHEAD_MB * 1024 * 1024)
        yield opened


async def held_bytes(running: Any) -> int:
    return int((await running._inside.gateway())._ahead.held_bytes)


def got(broker: RunningBroker, topic: str, wait_ms: int = 30_000, **options: Any) -> list[bytes]:
    answer = httpx.post(
        f"{broker.admin_url}/topics/{IN}/{topic}/subscriptions/http/receive",
        json={"subscriptionInitialPosition": "Earliest", "waitMs": wait_ms, **options},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    return [payload_of(each) for each in answer.json()["messages"]]


def test_a_machine_that_takes_nothing_keeps_no_other_from_its_messages() -> None:
    with limited() as broker, full_queues(broker, "127.0.0.2"):
        assert got(broker, "large") == [LARGE]
        assert got(broker, "small") == [b"x"]
        with connected(broker, f"v2/reader/{IN}/small?messageId=earliest") as ws:
            assert receive(ws) == b"x"


def test_what_a_machine_does_not_take_is_given_up_until_its_others_get_theirs() -> None:
    with limited() as broker, full_queues(broker, "127.0.0.1") as greedy:
        assert got(broker, "small", wait_ms=100) == []
        broker.clock.advance("11s")
        assert got(broker, "small") == [b"x"]
        code, frame = greedy[0].recv_data()
        assert (code, b"receive faster" in frame) == (websocket.ABNF.OPCODE_CLOSE, True)


def test_a_receiver_that_was_given_up_begins_again() -> None:
    with limited() as broker:
        exclusive: dict[str, Any] = {"subscriptionType": "Exclusive", "maxMessages": 1}
        with Client(broker.service_url) as client:
            producer = client.create_producer("large", compression_type=CompressionType.ZLib)
            for _ in range(3):
                producer.send(LARGE)
        assert got(broker, "large", **exclusive) == [LARGE]  # the next one waits in its queue
        with full_queues(broker, "127.0.0.1"):
            broker.clock.advance("11s")
            broker.wait_until(lambda: broker.call(held_bytes) < AHEAD_MB * 1024 * 1024)
        assert got(broker, "large", **exclusive) == [LARGE]
