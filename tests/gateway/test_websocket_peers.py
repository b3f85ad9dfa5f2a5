"""Peers of the WebSocket API that may not, or that mean harm: each harms itself alone."""

import asyncio
import itertools
import json
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import websocket
from credentials import bearer, token
from permission_world import SETTINGS, World
from raw_websocket import BINARY, CLOSE, CONTINUATION, FIN, PING, PONG, TEXT, RawPeer
from ws_programs import connected, encoded, hear, publish, receive, refusal, say, url_of

import pybroker.testing
from pybroker.client import Client, CompressionType, NotAllowed
from pybroker.gateway.websocket.consumer import _DeadLetterQueue
from pybroker.gateway.websocket.parameters import DeadLetters
from pybroker.testing import RunningBroker

IN = "persistent/public/default"
LIMIT = 100_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as running:
        yield running


@pytest.fixture
def world(guarded: RunningBroker) -> World:
    made = World(guarded)
    made.admin("PUT", made.on_topic())
    made.grant("writer", "produce")
    made.grant("reader", "consume")
    return made


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, web_socket_max_text_frame_size=LIMIT) as running:
        yield running


# -- who may


def producer_of(world: World) -> str:
    return f"v2/producer/persistent/{world.namespace}/t"


def consumer_of(world: World) -> str:
    return f"v2/consumer/persistent/{world.namespace}/t/s"


def test_a_token_comes_in_a_header_in_the_query_or_in_a_cookie(world: World) -> None:
    path, said = producer_of(world), token("writer")
    for more, options in (
        ("", {"header": bearer("writer")}),
        (f"?token={said}", {}),
        (f"?token=Bearer%20{said}", {}),
        ("", {"cookie": f"a=b; token={said}"}),
    ):
        with connected(world.broker, path + more, **options) as ws:
            assert publish(ws, b"x")["result"] == "ok"
    assert refusal(world.broker, path)[0] == 401
    assert refusal(world.broker, f"{path}?token=x")[0] == 401


def test_a_token_in_the_query_of_another_route_is_no_login(world: World) -> None:
    tenants = f"{world.broker.admin_url}/admin/v2/tenants"
    assert httpx.get(f"{tenants}?token={token('admin')}").status_code == 401
    assert httpx.get(tenants, cookies={"token": token("admin")}).status_code == 401


def test_tokens_are_in_no_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pybroker.access")
    said = token("nobody")
    assert refusal(world.broker, f"{consumer_of(world)}?token={said}&pullMode=true")[0] == 401
    world.broker.call(clock_of)  # in a later turn: the answer is logged after it was sent
    whole = "\n".join(f"{each.getMessage()} {each.__dict__}" for each in caplog.records)
    assert "token=...&pullMode" in whole
    assert said not in whole


def test_producing_and_consuming_need_their_permissions(world: World) -> None:
    assert refusal(world.broker, consumer_of(world), header=bearer("writer"))[0] == 401
    assert refusal(world.broker, producer_of(world), header=bearer("reader"))[0] == 401
    of_several = f"v3/consumer/s?topics={world.topic}"
    assert refusal(world.broker, of_several, header=bearer("writer"))[0] == 403
    with connected(world.broker, of_several, header=bearer("reader")):
        pass


@pytest.mark.parametrize(("delay_ms", "pause_s"), [(0, 1), (400, 0.6), (60_000, 0)])
def test_letters_that_may_not_be_buried_come_again_at_leisure(
    monkeypatch: pytest.MonkeyPatch, delay_ms: int, pause_s: float
) -> None:
    """Each attempt is a line of the audit log, and the peer need do nothing for it."""
    paused: list[float] = []

    class Refused:
        client = property(lambda self: self)

        async def create_producer(self, _: str) -> None:
            raise NotAllowed("another's topic")

        def negative_acknowledge(self, _: Any) -> None:
            paused.append(-1)

    async def sleep(delay_s: float) -> None:
        paused.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    letters, peer = DeadLetters("another's", 0), Refused()
    queue = _DeadLetterQueue(peer, letters, "s", delay_ms / 1000)  # type: ignore[arg-type]
    message = SimpleNamespace(redelivery_count=lambda: 1)
    assert asyncio.run(queue.takes(message, peer))  # type: ignore[arg-type]
    assert paused == [pause_s, -1]


def test_a_revoked_permission_ends_a_consumer(world: World) -> None:
    with connected(world.broker, consumer_of(world), header=bearer("reader")) as ws:
        world.revoke("reader")
        code, frame = ws.recv_data()
        assert (code, int.from_bytes(frame[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1008)


def test_a_websocket_ends_with_its_credentials(world: World) -> None:
    now_ms = world.broker.call(clock_of)
    said = token("writer", exp=now_ms // 1000 + 100)
    with connected(world.broker, f"{producer_of(world)}?token={said}") as ws:
        assert publish(ws, b"x")["result"] == "ok"
        world.broker.clock.advance("101s")
        code, frame = ws.recv_data()
        assert (code, int.from_bytes(frame[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1008)
        assert b"expired" in frame


async def clock_of(running: object) -> int:
    return int(running._clock.now_ms())  # type: ignore[attr-defined]


def test_pages_of_other_sites_are_refused_unless_they_are_allowed(broker: RunningBroker) -> None:
    path = f"v2/producer/{IN}/t"
    for origin in ("https://evil.example", "null", f"{broker.admin_url}.evil.example"):
        status, reason = refusal(broker, path, origin=origin)
        assert (status, "webSocketAllowedOrigins" in reason) == (403, True)
    with connected(broker, path, origin=broker.admin_url):
        pass
    with connected(broker, path, suppress_origin=True):
        pass
    allowed = ("https://app.example",)
    with pybroker.testing.broker(http=True, web_socket_allowed_origins=allowed) as open_broker:
        with connected(open_broker, path, origin="https://app.example"):
            pass
        assert refusal(open_broker, path, origin="https://app.example.evil")[0] == 403


# -- frames


@pytest.fixture
def raw(broker: RunningBroker) -> Iterator[RawPeer]:
    with RawPeer(broker, f"v2/producer/{IN}/raw-{next(_numbers)}") as peer:
        yield peer


@pytest.mark.parametrize(
    ("head", "payload", "claimed", "code"),
    [
        (FIN | BINARY, b"{}", None, 1003),
        (FIN | TEXT, b"\xff\xfe", None, 1007),
        (FIN | CONTINUATION, b"{}", None, 1002),
        (FIN | 0x3, b"", None, 1002),  # no such kind of frame
        (FIN | 0x40 | TEXT, b"{}", None, 1002),  # compressed, which was not agreed upon
        (PING, b"", None, 1002),  # control frames have no parts
        (FIN | PING, b"x" * 126, None, 1002),
        (FIN | TEXT, b"x" * (LIMIT + 1), None, 1009),
        (FIN | CLOSE, b"x", None, 1002),
        (TEXT, b"{", 2**63, 1002),
    ],
)
def test_a_wrong_frame_ends_its_own_websocket(
    raw: RawPeer, broker: RunningBroker, head: int, payload: bytes, claimed: int | None, code: int
) -> None:
    raw.send(head, payload, claimed)
    assert raw.close_code() == code
    with connected(broker, f"v2/producer/{IN}/t") as ws:
        assert publish(ws, b"x")["result"] == "ok"


def test_a_frame_without_a_mask_ends_its_websocket(raw: RawPeer) -> None:
    raw.socket.sendall(bytes([FIN | TEXT, 2]) + b"{}")
    assert raw.close_code() == 1002


def test_a_message_in_many_parts_may_not_grow_beyond_the_limit(raw: RawPeer) -> None:
    raw.send(TEXT, b"x" * 60_000)
    raw.send(CONTINUATION, b"x" * 60_000)
    assert raw.close_code() == 1009


def test_a_message_that_does_not_end_is_given_up(broker: RunningBroker, raw: RawPeer) -> None:
    raw.send(TEXT, b"{")
    raw.send(FIN | PING, b"there")
    assert raw.frame() == (0xA, b"there")  # the part has arrived
    broker.clock.advance("31s")
    assert raw.close_code() == 1008


def test_a_silent_websocket_is_closed(broker: RunningBroker, raw: RawPeer) -> None:
    raw.send(FIN | PING, b"1")
    raw.frame()
    broker.clock.advance("301s")
    assert raw.close_code() == 1001


def test_ten_thousand_tiny_frames_stop_nobody(broker: RunningBroker, raw: RawPeer) -> None:
    raw.socket.sendall(bytes([FIN | PING, 0x80, 1, 2, 3, 4]) * 10_000)
    raw.socket.sendall(bytes([CONTINUATION & 0x7F | TEXT, 0x80, 1, 2, 3, 4]))
    raw.socket.sendall(bytes([CONTINUATION, 0x80, 1, 2, 3, 4]) * 10_000)
    with connected(broker, f"v2/producer/{IN}/t") as ws:
        assert publish(ws, b"x")["result"] == "ok"
    for _ in range(10_000):
        assert raw.frame() == (0xA, b"")
    raw.send(FIN | CONTINUATION, json.dumps({"payload": ""}).encode())
    kind, answer = raw.frame()
    assert (kind, json.loads(answer)["result"]) == (TEXT, "ok")


def test_what_follows_the_request_at_once_is_not_lost(broker: RunningBroker) -> None:
    url = urlsplit(url_of(broker, f"v2/producer/{IN}/hasty"))
    assert url.hostname is not None and url.port is not None
    message = json.dumps({"payload": encoded(b"x")}).encode()
    frame = bytes([FIN | TEXT, 0x80 | len(message), 0, 0, 0, 0]) + message
    with socket.create_connection((url.hostname, url.port), timeout=30) as hasty:
        hasty.sendall(
            f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
            + frame
        )
        received = b""
        while b'"ok"' not in received:
            received += hasty.recv(10_000)
    assert received.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "headers",
    [
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x"},
        {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "8",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        },
    ],
)
def test_half_a_handshake_is_refused(broker: RunningBroker, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{broker.admin_url}/ws/v2/producer/{IN}/t", headers=headers)
    assert answer.status_code == 400
    assert "WebSocket" in answer.json()["reason"]


def test_a_peer_that_goes_away_leaves_nothing(broker: RunningBroker) -> None:
    topic = f"gone-{next(_numbers)}"
    with connected(broker, f"v2/consumer/{IN}/{topic}/s") as ws:
        ws.sock.close()
    stats = f"{broker.admin_url}/admin/v2/{IN}/{topic}/stats"
    while httpx.get(stats).json()["subscriptions"]["s"]["consumers"]:
        pass


# -- memory


def test_a_message_that_grows_when_uncompressed_ends_its_consumer_and_is_kept() -> None:
    with (
        pybroker.testing.broker(http=True, max_message_size=50_000) as broker,
        Client(broker.service_url) as client,
    ):
        producer = client.create_producer("bombs", batching_enabled=False)
        start = "subscriptionInitialPosition=Earliest"
        with connected(broker, f"v2/consumer/{IN}/bombs/s?{start}") as ws:
            producer.send(b"before")
            assert receive(ws) == b"before"
        bomb = client.create_producer("bombs", compression_type=CompressionType.ZLib)
        bomb.send(b"\0" * 10_000_000)
        with connected(broker, f"v2/consumer/{IN}/bombs/s?{start}") as ws:
            code, frame = ws.recv_data()
            assert (code, int.from_bytes(frame[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1011)
            assert b"10000000 bytes" in frame
        consumer = client.subscribe("bombs", "s")
        assert len(consumer.receive(30_000).data()) == 10_000_000


def test_a_peer_that_does_not_read_is_given_no_more_than_a_little(broker: RunningBroker) -> None:
    topic = f"slow-{next(_numbers)}"
    path, fast = (
        f"v2/consumer/{IN}/{topic}/s?subscriptionType=Shared",
        {"skip_utf8_validation": True},
    )
    with Client(broker.service_url) as client, connected(broker, path, **fast) as slow:
        producer = client.create_producer(topic)
        for _ in range(600):
            producer.send(b"x" * 50_000)
        held = broker.call(held_bytes)
        assert held < 8 * 1024 * 1024  # of 30 MB
        for _ in range(600):
            message = hear(slow)
            say(slow, messageId=message["messageId"])


async def held_bytes(running: object) -> int:
    return int(running._services.outboxes.held_bytes)  # type: ignore[attr-defined]


# -- peers that say nothing


def test_a_peer_that_says_nothing_is_asked_and_then_told_why_it_is_left() -> None:
    """An answer to a ping would do."""
    with (
        pybroker.testing.broker(
            http=True,
            web_socket_ping_duration_seconds=1,
            web_socket_session_idle_timeout_millis=2500,
        ) as broker,
        RawPeer(broker, f"v2/producer/{IN}/silent") as peer,
    ):
        assert peer.frame()[0] == PING
        assert peer.close_code() == 1001


def test_a_peer_that_answers_pings_is_not_idle() -> None:
    with (
        pybroker.testing.broker(
            http=True,
            web_socket_ping_duration_seconds=1,
            web_socket_session_idle_timeout_millis=1500,
        ) as broker,
        RawPeer(broker, f"v2/producer/{IN}/quiet") as peer,
    ):
        for _ in range(3):
            kind, payload = peer.frame()
            assert kind == PING
            peer.send(FIN | PONG, payload)
