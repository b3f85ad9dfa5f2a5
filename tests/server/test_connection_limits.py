"""Limits of connections and of their bytes in flight, and how connections end."""

import asyncio
import gc
import re
import socket
import sys
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TopicName
from pybroker.broker.dispatch.delivery import ROUND_BYTES
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CommandFrame, FrameDecoder, encode_frame
from pybroker.wire.message_metadata import build_entry

_T = pb.BaseCommand
MIB = 1024 * 1024


def connections(broker: Any) -> int:
    async def count(running: Any) -> int:
        return len(running.server.sessions)

    return int(broker.call(count))


@pytest.mark.parametrize("limit", ["broker_max_connections", "broker_max_connections_per_ip"])
def test_one_connection_too_many_is_closed_and_does_no_harm(limit: str) -> None:
    with pybroker.testing.broker(**{limit: 2}) as broker:
        url = broker.service_url
        with RawClient(url) as first:
            with RawClient(url):
                assert refusal(url).error == pb.NotAllowedError
            assert first.kinds_before_pong() == []
            broker.wait_until(lambda: connections(broker) == 1)
            with RawClient(url) as another:
                assert another.kinds_before_pong() == []


def test_who_is_over_a_limit_hears_what_apache_pulsar_says(caplog: Any) -> None:
    with pybroker.testing.broker(broker_max_connections_per_ip=1) as broker:
        with RawClient(broker.service_url):
            answer = refusal(broker.service_url)
        assert answer.request_id == 2**64 - 1
        sentence = r"Reached the maximum number of connections on address/127\.0\.0\.1:\d+"
        assert re.fullmatch(sentence, answer.message)
    with pybroker.testing.broker(broker_max_connections=1) as broker, RawClient(broker.service_url):
        answer = refusal(broker.service_url)
        assert answer.message == "Reached the maximum number of connections"
    assert "its address has 1 open (brokerMaxConnectionsPerIp): 127.0.0.1" in caplog.text


def test_many_that_are_refused_at_a_time_hear_why_and_the_oldest_make_room() -> None:
    with (
        pybroker.testing.broker(broker_max_connections=1) as broker,
        RawClient(broker.service_url) as first,
    ):
        refused = [socket.create_connection(_address(broker.service_url)) for _ in range(100)]
        for each in refused:
            each.settimeout(10)
            assert b"Reached the maximum number" in each.recv(1000)
        for each in refused:
            assert each.recv(1000) == b""
            each.close()
        assert first.kinds_before_pong() == []


def test_a_limit_of_0_is_none() -> None:
    limits = {"broker_max_connections": 0, "broker_max_connections_per_ip": 0}
    with pybroker.testing.broker(**limits) as broker, ExitStack() as stack:
        for _ in range(20):
            raw = stack.enter_context(RawClient(broker.service_url))
            assert raw.kinds_before_pong() == []


def test_a_machine_with_many_clients_is_served_as_the_broker_comes() -> None:
    with pybroker.testing.broker() as broker, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.service_url)) for _ in range(150)]
        assert clients[-1].kinds_before_pong() == []


def refusal(url: str) -> Any:
    """The error, after which the broker closes. The client's CONNECT is in flight meanwhile."""
    connect = _T(type=_T.CONNECT, connect=pb.CommandConnect(client_version="x"))
    with socket.create_connection(_address(url), timeout=10) as connection:
        connection.sendall(encode_frame(connect))
        received = b""
        while data := connection.recv(65_536):
            received += data
    (event,) = FrameDecoder(MIB).receive(received)
    assert isinstance(event, CommandFrame)
    assert event.command.type == _T.ERROR
    return event.command.error


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


def test_a_small_budget_slows_publishers_down_and_loses_nothing(topic: str) -> None:
    with (
        pybroker.testing.broker(max_pending_publish_bytes=1000) as broker,
        RawClient(broker.service_url) as raw,
    ):
        raw.create_producer(topic)
        for number in range(200):
            raw.start_publish(b"x" * 700, number)
        receipts = [raw.receive(_T.SEND_RECEIPT).sequence_id for _ in range(200)]
        assert receipts == list(range(200))


def test_a_consumer_that_never_reads_does_not_fill_the_memory(topic: str) -> None:
    with (
        pybroker.testing.broker() as broker,
        RawClient(broker.service_url) as publisher,
        RawClient(broker.service_url) as lazy,
    ):
        lazy.subscribe(topic)
        lazy.flow(1_000_000)
        publisher.create_producer(topic)
        for number in range(24):
            publisher.publish(bytes(MIB), number)

        async def buffered(running: Any) -> int:
            await asyncio.sleep(0)
            sessions = running.server.sessions
            return max(s._transport.get_write_buffer_size() for s in sessions)

        assert broker.call(buffered) <= 2 * MIB + ROUND_BYTES
        lazy.messages(24)


@pytest.mark.slow
def test_who_asks_for_much_and_never_reads_does_not_fill_the_memory(topic: str) -> None:
    """The broker builds each answer only once the one before it has been sent."""
    with (
        pybroker.testing.broker() as broker,
        RawClient(broker.service_url) as publisher,
        RawClient(broker.service_url) as lazy,
    ):
        publisher.create_producer(topic)
        place = publisher.publish(bytes(10_000), 0).message_id
        asked = pb.CommandAskTopics(read_bytes=MIB)
        for _ in range(100):
            asked.question.add(topic=topic, read_to=place)
        for number in range(64):
            asked.request_id = 1000 + number
            lazy.send(_T.ASK_TOPICS, "askTopics", asked)

        async def buffered(running: Any) -> int:
            for _ in range(1000):
                await asyncio.sleep(0)
            sessions = running.server.sessions
            return max(s._transport.get_write_buffer_size() for s in sessions)

        for number in range(64):
            if number % 8 == 0:
                assert broker.call(buffered) <= 2 * MIB
            answer = lazy.receive(_T.ASK_TOPICS_RESPONSE)
            assert answer.request_id == 1000 + number
            assert [len(each.entry) for each in answer.answer] == [1] * 100


def held_by_decoders(broker: Any) -> list[int]:
    async def look(running: Any) -> list[int]:
        return [session._inbox._decoder.held_bytes for session in running.server.sessions]

    return list(broker.call(look))


def half_a_message(raw: RawClient, topic: str) -> tuple[bytes, bytes]:
    """The two halves of the frame of a message of 2 MiB. Its producer exists already."""
    raw.create_producer(topic)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    send = _T(type=_T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0))
    frame = encode_frame(send, build_entry(metadata, bytes(2 * MIB)))
    return frame[:MIB], frame[MIB:]


def test_many_consumers_of_a_connection_that_never_reads_share_one_limit(topic: str) -> None:
    with (
        pybroker.testing.broker() as broker,
        RawClient(broker.service_url) as publisher,
        RawClient(broker.service_url) as lazy,
    ):
        publisher.create_producer(topic)
        for number in range(4):
            publisher.publish(bytes(MIB), number)
        for consumer_id in range(30):
            lazy.subscribe(topic, consumer_id, subscription=f"s{consumer_id}")
        with lazy.in_one_piece():
            for consumer_id in range(30):
                lazy.flow(1000, consumer_id)
        lazy.messages(1)

        async def buffered(running: Any) -> int:
            await asyncio.sleep(0.01)
            sessions = running.server.sessions
            return max(s._transport.get_write_buffer_size() for s in sessions)

        assert broker.call(buffered) <= 2 * MIB + ROUND_BYTES
        lazy.messages(30 * 4 - 1)


def test_half_received_frames_wait_for_one_another(topic: str) -> None:
    with (
        pybroker.testing.broker(max_pending_frame_bytes=3 * MIB) as broker,
        RawClient(broker.service_url) as first,
        RawClient(broker.service_url) as second,
    ):
        (begin, rest), (other_begin, other_rest) = (
            half_a_message(raw, f"{topic}-{name}")
            for raw, name in ((first, "first"), (second, "second"))
        )
        first._socket.sendall(begin)
        broker.wait_until(lambda: max(held_by_decoders(broker)) == MIB)
        second._socket.sendall(other_begin)
        broker.wait_until(lambda: min(held_by_decoders(broker)) > 0)
        for _ in range(20):
            assert min(held_by_decoders(broker)) <= 512 * 1024  # one read, or two
        first._socket.sendall(rest)
        first.receive(_T.SEND_RECEIPT)
        second._socket.sendall(other_rest)
        second.receive(_T.SEND_RECEIPT)


def test_a_frame_in_tiny_pieces_takes_no_more_memory_than_its_size() -> None:
    decoder = FrameDecoder(MIB)
    decoder.receive((MIB).to_bytes(4, "big") + (10).to_bytes(4, "big"))
    for _ in range(100_000):
        decoder.receive(b"x")
    held = sum(sys.getsizeof(part) for part in decoder._parts)
    assert held < 2 * decoder.held_bytes


def test_answers_that_nobody_reads_are_not_written(topic: str) -> None:
    with (
        pybroker.testing.broker() as broker,
        RawClient(broker.service_url) as lazy,
        RawClient(broker.service_url) as other,
    ):
        partitioned = TopicName.parse(f"{topic}-{'x' * 500}")

        async def create(running: Any) -> None:
            await running.topics.create_partitioned(partitioned, 1000)

        broker.call(create)
        asked = pb.CommandGetTopicsOfNamespace(namespace="public/default")
        with lazy.in_one_piece():
            for _ in range(200):
                lazy.start_request(_T.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", asked)
        assert other.kinds_before_pong() == []

        async def buffered(running: Any) -> int:
            await asyncio.sleep(0.01)
            sessions = running.server.sessions
            return max(s._transport.get_write_buffer_size() for s in sessions)

        assert broker.call(buffered) <= 3 * MIB
        for _ in range(200):
            answer = lazy.receive(_T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            assert len(answer.topics) == 1000


def test_what_was_received_before_a_stop_is_answered(topic: str) -> None:
    with pybroker.testing.broker() as broker, RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        entry = build_entry(metadata, b"x")
        asked = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=99)
        requests = [
            encode_frame(
                _T(type=_T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=number)), entry
            )
            for number in range(100)
        ]
        requests.append(encode_frame(_T(type=_T.PARTITIONED_METADATA, partitionMetadata=asked)))

        async def receive_and_stop(running: Any) -> None:
            (session,) = running.server.sessions
            session._inbox.receive(b"".join(requests))
            await running.server.stop()

        broker.call(receive_and_stop)
        receipts = [raw.receive(_T.SEND_RECEIPT).sequence_id for _ in range(100)]
        assert receipts == list(range(100))
        assert raw.answer_to(99).partitions == 0
        raw.wait_closed()


def test_a_stop_gives_up_what_never_ends_without_a_complaint() -> None:
    with pybroker.testing.broker() as broker, RawClient(broker.service_url) as raw:

        async def stop_amid_work(running: Any) -> list[Any]:
            unhandled: list[Any] = []
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: unhandled.append(context))
            (session,) = running.server.sessions
            session.requests.start(asyncio.Event().wait(), "something endless")
            await running.server.stop(answer_timeout_s=0.01)
            gc.collect()
            loop.set_exception_handler(None)
            return unhandled

        assert broker.call(stop_amid_work) == []
        raw.wait_closed()
