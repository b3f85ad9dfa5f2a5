"""Bytes that do not follow the protocol: the broker answers an error or closes the connection;
others continue.
"""

import asyncio
import gc
from collections.abc import Iterator

import pytest
from peer import CONNECT, Peer, frame
from raw_client import RawClient

import pybroker.testing
from pybroker.server.connections import session
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import encode_frame
from pybroker.wire.message_metadata import build_entry

Type = pb.BaseCommand
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
PING = encode_frame(pb.BaseCommand(type=Type.PING, ping=pb.CommandPing()))
METADATA = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def nested_message_id(depth: int) -> bytes:
    """An ACK with a message id that contains a message id, and so on."""
    inner = b""
    for _ in range(depth):
        inner = b"\x08\x01\x10\x01" + (b"\x3a" + varint(len(inner)) + inner if inner else b"")
    ack = b"\x08\x01\x10\x00\x1a" + varint(len(inner)) + inner
    return b"\x08\x0a\x52" + varint(len(ack)) + ack


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


UNREADABLE = {
    "total size 0": u32(0),
    "total size 0 and more": u32(0) + bytes(60),
    "total size 3": u32(3) + bytes(60),
    "total size 2^31-1": u32(2**31 - 1) + u32(2**31 - 10) + bytes(60),
    "total size 2^32-1": u32(2**32 - 1) + u32(10) + bytes(60),
    "larger than a message may be": u32(MAX_MESSAGE_BYTES + 10 * 1024 + 1) + u32(10) + bytes(60),
    "command larger than the frame": u32(20) + u32(17) + bytes(60),
    "command of 2 MiB": frame(b"\x0a" + bytes(2 * 1024 * 1024)),
    "empty command": frame(b""),
    "unknown command type": frame(b"\x08\x7b"),
    "command type without its body": frame(b"\x08\x05"),
    "a scalable topic's lookup, which is not served": frame(b"\x08\x46"),
    "an answer, as if the peer were a broker": frame(b"\x08\x03\x1a\x03\x0a\x01x"),
    "varint of eleven bytes": frame(b"\x08" + b"\xff" * 10 + b"\x01"),
    "varint cut off": frame(b"\x08\xff"),
    "body longer than the command": frame(b"\x08\x05\x2a\x7f\x0a"),
    "text that is not UTF-8": frame(b"\x08\x17\xba\x01\x05\x0a\x01\xff\x10\x01"),
    "group that never ends": frame(b"\x08\x12\x0b"),
    "message ids nested a thousand times": frame(nested_message_id(1000)),
    "TLS's hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_refused(peer: Peer, data: bytes) -> None:
    peer.write(data)
    assert peer.is_refused()


@pytest.mark.parametrize(
    "data",
    [PING, frame(b"\x08\x06\x32\x04\x08\x01\x10\x01", bytes(20)), UNREADABLE["total size 3"]],
    ids=["PING", "SEND", "noise"],
)
def test_nothing_may_come_before_connect(service_url: str, bystander: None, data: bytes) -> None:
    with Peer(service_url, handshake=False) as stranger:
        stranger.write(data)
        assert stranger.is_refused()


@pytest.fixture(scope="module")
def impatient_broker() -> Iterator[RunningBroker]:
    """Only for tests of late peers: on a busy machine even an honest client may need longer."""
    with pybroker.testing.broker(handshake_timeout_ms=200) as broker:
        yield broker


@pytest.mark.parametrize("sent", [0, 1, 4, 8, len(CONNECT) - 1], ids="{} bytes of CONNECT".format)
def test_who_does_not_finish_connect_in_time_is_disconnected(
    impatient_broker: RunningBroker, sent: int
) -> None:
    with Peer(impatient_broker.service_url, handshake=False) as stranger:
        stranger.write(CONNECT[:sent])
        assert stranger.answer() is None


def test_a_second_connect_ends_the_connection(peer: Peer) -> None:
    peer.write(CONNECT)
    assert peer.is_refused()


def test_half_a_frame_and_a_goodbye_leave_nothing_behind(service_url: str, bystander: None) -> None:
    for size in range(1, len(PING)):
        with Peer(service_url) as leaver:
            leaver.write(PING[:size])


def test_a_wrong_checksum_is_told_and_the_producer_goes_on(client: RawClient) -> None:
    client.create_producer("checksums")
    entry = build_entry(METADATA, b"payload")[:-1] + b"!"
    client.send(Type.SEND, "send", pb.CommandSend(producer_id=1, sequence_id=1), entry)
    refused = client.receive(Type.SEND_ERROR)
    assert (refused.error, refused.sequence_id) == (pb.ChecksumError, 1)
    assert isinstance(client.publish(b"payload", 2), pb.CommandSendReceipt)


@pytest.mark.parametrize("count", [2**31 - 1, 0, -1, -(2**31)])
def test_an_impossible_number_of_messages_is_refused(peer: Peer, count: int) -> None:
    producer = pb.CommandProducer(topic="counts", producer_id=1, request_id=1)
    peer.write(encode_frame(pb.BaseCommand(type=Type.PRODUCER, producer=producer)))
    assert not peer.is_refused()
    send = pb.CommandSend(producer_id=1, sequence_id=0, num_messages=count)
    entry = build_entry(METADATA, b"payload")
    peer.write(encode_frame(pb.BaseCommand(type=Type.SEND, send=send), entry))
    assert peer.is_refused()


def test_a_message_as_large_as_allowed_goes_through(client: RawClient) -> None:
    client.create_producer("large")
    receipt = client.publish(bytes(MAX_MESSAGE_BYTES), 0)
    assert isinstance(receipt, pb.CommandSendReceipt)


def test_a_refused_connection_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before the timeout of closing connections: otherwise a flood would fill memory."""
    monkeypatch.setattr(session, "_CLOSE_TIMEOUT_S", 600.0)

    def transports() -> int:
        gc.collect()
        return sum(isinstance(found, asyncio.Transport) for found in gc.get_objects())

    with pybroker.testing.broker() as broker:
        before = transports()
        for _ in range(20):
            with Peer(broker.service_url) as peer:
                peer.write(UNREADABLE["HTTP"])
                assert peer.is_refused()
        broker.wait_until(lambda: transports() <= before)


def test_before_connect_no_large_frame_is_received(service_url: str, bystander: None) -> None:
    with Peer(service_url, handshake=False) as stranger:
        stranger.write((5 * 1024 * 1024).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        assert stranger.answer() is None
