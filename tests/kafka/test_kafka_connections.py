"""Connections of Kafka's clients: versions, order, limits, and bytes that make no sense."""

import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kafka_produce import FETCH, batch, create, fetch_body, produce, produce_body
from raw_kafka import TIMEOUT_S, RawKafka

from pybroker.kafka.codec.message_table import message_kinds
from pybroker.kafka.codec.messages import API_VERSIONS, Header, encode_request
from pybroker.kafka.connection import Closing, _refusal
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.intake import MAX_QUEUED
from pybroker.kafka.listener import IDLE_S
from pybroker.kafka.requests.table import LEFT_OUT, ROWS, codec, handler
from pybroker.testing import RunningBroker, broker

PRODUCE, METADATA, LIST_GROUPS = 0, 3, 16


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture
def client(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def test_a_broker_without_kafka_has_no_address_for_it() -> None:
    with broker() as started:
        assert started.kafka_bootstrap == ""


def test_every_row_of_the_table_is_served() -> None:
    for key, row in ROWS.items():
        kind = message_kinds()[key]
        assert kind.name == row.name and callable(handler(key)) and len(codec(key)) == 2
        assert row.first in kind.versions and row.last in kind.versions
    assert not LEFT_OUT.keys() & ROWS.keys()
    assert LEFT_OUT.keys() | ROWS.keys() == message_kinds().keys()
    for key, why in LEFT_OUT.items():
        assert why.startswith(f"{message_kinds()[key].name}: ")


@pytest.mark.parametrize("version", range(5))
def test_the_broker_says_what_it_speaks(client: RawKafka, version: int) -> None:
    named = {"client_software_name": "raw", "client_software_version": "1"}
    answer = client.ask(API_VERSIONS, version, named)
    assert answer["error_code"] == ErrorCode.NONE
    versions = {each["api_key"]: each for each in answer["api_keys"]}
    assert versions.keys() == ROWS.keys()
    assert versions[METADATA] == {"api_key": METADATA, "min_version": 0, "max_version": 13}


def test_a_version_that_is_too_new_is_answered_in_version_0(client: RawKafka) -> None:
    frame = encode_request(Header(API_VERSIONS, 4, 5, "raw"), {})
    client.send_frame(frame[:2] + (99).to_bytes(2, "big") + frame[4:])
    answer = client.receive_frame()
    assert answer[:6] == (5).to_bytes(4, "big") + ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
    assert int.from_bytes(answer[6:10], "big") == len(ROWS)
    assert client.ask(METADATA, 1, {"topics": []})["topics"] == []


def test_a_client_without_a_proper_name_is_refused(client: RawKafka) -> None:
    named = {"client_software_name": "no name!", "client_software_version": "1"}
    assert client.ask(API_VERSIONS, 3, named)["error_code"] == ErrorCode.INVALID_REQUEST


def test_requests_are_answered_in_their_order(client: RawKafka) -> None:
    for number in range(300):
        client.send(METADATA, 9, {"topics": [{"name": f"missing-{number}"}]} | NO_CREATION)
    for number in range(300):
        (topic,) = client.receive()["topics"]
        assert topic["name"] == f"missing-{number}"


NO_CREATION = {"allow_auto_topic_creation": False}


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it sent an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01", "it sent a TLS handshake on a port without TLS"),
        (b"\xff\xff\xff\xff", "it sent a request of -1 bytes"),
        (b"\x7f\xff\xff\xff", "it sent a request of 2147483647 bytes"),
        (b"\x00\x50\x00\x00" + b"\x00\x03\x00\x01\x00\x00\x00\x01", "API key 3 has 5242880 bytes"),
        (b"\x00\x00\x00\x02\x00\x03", "it sent a request of 2 bytes"),
        (b"\x00\x00\x00\x0a" + b"\x03\xe7\x00\x01\x00\x00\x00\x01\xff\xff", "API key 999"),
        (b"\x00\x00\x00\x0a" + b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff", "version 99"),
        (b"\x00\x00\x00\x0a" + b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x09", "cannot be read"),
        (b"\x00\x00\x00\x0a" + b"\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff", "cannot be read"),
    ],
)
def test_bytes_that_make_no_sense_close_the_connection_with_a_sentence_in_the_log(
    client: RawKafka, caplog: pytest.LogCaptureFixture, sent: bytes, why: str
) -> None:
    with caplog.at_level(logging.INFO, "pybroker.kafka"):
        client.socket.sendall(sent)
        assert client.is_closed()
    assert any(why in line for line in caplog.messages), caplog.messages
    assert not [record for record in caplog.records if record.exc_info]


def test_a_request_that_comes_byte_by_byte_is_answered(client: RawKafka) -> None:
    frame = encode_request(Header(METADATA, 1, 3, "raw"), {"topics": []})
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in len(frame).to_bytes(4, "big") + frame:
        client.socket.sendall(bytes([byte]))
    assert client.receive_frame()[:4] == (3).to_bytes(4, "big")


def test_a_connection_over_the_limit_of_its_address_takes_the_place_of_a_silent_one() -> None:
    with broker(kafka=True, broker_max_connections_per_ip=2) as started:
        address = started.kafka_bootstrap
        with RawKafka(address) as silent, RawKafka(address) as used:
            assert used.ask(METADATA, 1, {"topics": []})["brokers"]
            with RawKafka(address) as third:
                assert third.ask(METADATA, 1, {"topics": []})["brokers"]
                assert silent.is_closed()
                with RawKafka(address) as fourth:
                    assert fourth.is_closed()
            assert used.ask(METADATA, 1, {"topics": []})["brokers"]


def test_who_reads_a_large_response_slowly_is_not_idle(running: RunningBroker) -> None:
    host, _, port = running.kafka_bootstrap.rpartition(":")
    with RawKafka(running.kafka_bootstrap) as writer, RawKafka(running.kafka_bootstrap) as slow:
        slow.socket.close()
        slow.socket = socket.socket()
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        slow.socket.settimeout(TIMEOUT_S)
        slow.socket.connect((host, int(port)))
        create(writer, "large")
        for _ in range(12):
            assert produce(writer, "large", batch(bytes(1_000_000)))[0] == 0
        slow.send(FETCH, 12, fetch_body("large", 0, most_bytes=1 << 24))

        def unsent() -> int:
            return running.call(_unsent_bytes)

        running.wait_until(lambda: unsent() > 0)
        before = unsent()
        running.call(partial(_look, IDLE_S))
        running.clock.advance("11m")
        while unsent() == before:  # the kernel has buffers, too
            assert slow.socket.recv(64 * 1024)
        assert running.call(partial(_look, IDLE_S)), "it reads"
        running.clock.advance("11m")
        assert not running.call(partial(_look, IDLE_S)), "it has read nothing since"


def _slow(started: Any) -> Any:
    found = list(started._kafka._places)
    return max(found, key=lambda each: each._buffered_bytes)


async def _unsent_bytes(started: Any) -> int:
    size: int = _slow(started)._buffered_bytes
    return size


async def _look(idle_s: float, started: Any) -> bool:
    """Whether the connection is still open."""
    connection = _slow(started)
    connection.check_alive(idle_s)
    return not connection._closed


def test_a_response_without_room_for_an_error_ends_the_connection() -> None:
    error = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not yours")
    with pytest.raises(Closing, match="Produce failed: not yours"):
        _refusal(ROWS[PRODUCE], error)
    answer = _refusal(ROWS[LIST_GROUPS], error)
    assert answer["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_client_whose_requests_wait_is_not_read(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as waiting:
        create(waiting, "quiet")
        waiting.send(FETCH, 12, fetch_body("quiet", 0, wait_ms=30_000))
        for _ in range(3 * MAX_QUEUED):
            waiting.send(METADATA, 9, {"topics": []} | NO_CREATION)

        async def is_read(started: Any) -> bool:
            found = max(started._kafka._places, key=lambda each: len(each._intake))
            is_read: bool = found._transport.is_reading()
            return is_read

        running.wait_until(lambda: not running.call(is_read))
        assert produce_now(running, "quiet") == 0
        waiting.receive()
        for _ in range(3 * MAX_QUEUED):
            waiting.receive()
        assert running.call(is_read)


def produce_now(running: RunningBroker, topic: str) -> int:
    with RawKafka(running.kafka_bootstrap) as other:
        return produce(other, topic, batch(b"x"))[0]


@pytest.mark.parametrize("error", [Closing("enough"), RuntimeError("a bug")])
def test_a_pipelined_request_that_fails_ends_the_connection(
    client: RawKafka, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    create(client, "fails")

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("pybroker.kafka.connection._outcome", fails)
        client.send(PRODUCE, 9, produce_body("fails", batch(b"x")))
        assert client.is_closed()
