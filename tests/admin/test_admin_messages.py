"""Messages in the admin REST: peeked on a subscription, or looked up by position."""

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from crc32c import crc32c
from raw_client import RawClient

from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

P = "/admin/v2/persistent"


@pytest.fixture
def raw(admin: httpx.Client, admin_broker: RunningBroker, topic: str) -> Iterator[RawClient]:
    admin.put(f"{P}/{topic}/subscription/audit", json="earliest")
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{topic}")
        yield raw


def peek(admin: httpx.Client, topic: str, number: int, subscription: str = "audit") -> Any:
    return admin.get(f"{P}/{topic}/subscription/{subscription}/position/{number}")


def test_a_peeked_message_comes_with_everything_its_producer_said(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    message_id = raw.publish(
        b"hello",
        7,
        producer_name="p",
        partition_key="k",
        event_time=1_700_000_000_123,
        schema_version=bytes(8),
        properties=[{"key": "team", "value": "bill\r\ning ü"}],
    ).message_id
    answer = peek(admin, topic, 1)
    assert (answer.status_code, answer.content) == (200, b"hello")
    headers = {name.removeprefix("x-pulsar-"): text for name, text in answer.headers.items()}
    assert headers["message-id"] == f"{message_id.ledgerId}:{message_id.entryId}"
    assert (headers["producer-name"], headers["sequence-id"]) == ("p", "7")
    assert headers["partition-key"] == "k"
    assert headers["event-time"].startswith("2023-11-14T22:13:20.123")
    assert headers["publish-time"].startswith("2023-11-14T22:13:20.000")
    assert headers["base64-schema-version-b64encoded"] == "AAAAAAAAAAA="
    assert json.loads(headers["property"]) == {"team": "bill\r\ning ü"}
    assert headers["property-team"].encode("utf-8") == "bill  ing ü".encode()
    assert headers["is-encrypted"] == "false"
    assert b"X-Pulsar-PROPERTY-team" in dict(
        answer.headers.raw
    )  # the Java client is case-sensitive
    assert "num-batch-message" not in headers
    by_id = admin.get(f"{P}/{topic}/ledger/{message_id.ledgerId}/entry/{message_id.entryId}")
    assert (by_id.status_code, by_id.content) == (200, b"hello")


def test_what_is_acknowledged_is_not_counted(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    ids = [raw.publish(b"%d" % number, number).message_id for number in range(5)]
    raw.subscribe(f"persistent://{topic}", subscription="audit")
    ack = pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[ids[0], ids[2]]
    )
    raw.request(pb.BaseCommand.ACK, "ack", ack)
    assert [peek(admin, topic, number).content for number in (1, 2, 3)] == [b"1", b"3", b"4"]
    missing = peek(admin, topic, 4)
    assert (missing.status_code, "Message not found" in missing.text) == (404, True)


def test_what_is_hidden_is_not_counted(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str, raw: RawClient
) -> None:
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, f"persistent://{topic}")
    raw.publish(b"aborted", 0, txn_id)
    raw.end(txn_id, commit=False)
    raw.publish(b"plain", 1)
    assert peek(admin, topic, 1).content == b"plain"
    assert peek(admin, topic, 2).status_code == 404


def test_a_batch_is_decompressed_and_says_how_many_it_holds(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    batch = b""
    for payload in (b"a", b"bc"):
        single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        batch += struct.pack(">I", len(single)) + single + payload
    raw.publish(
        zlib.compress(batch),
        0,
        send_fields={"num_messages": 2},
        num_messages_in_batch=2,
        compression=pb.ZLIB,
        uncompressed_size=len(batch),
    )
    answer = peek(admin, topic, 1)
    assert answer.content == batch
    assert answer.headers["x-pulsar-num-batch-message"] == "2"
    assert answer.headers["x-pulsar-compression"] == "ZLIB"


def test_what_does_not_decompress_is_an_error_and_not_a_message(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    raw.publish(b"no zlib", 0, compression=pb.ZLIB, uncompressed_size=10)
    raw.publish(b"x", 1, compression=pb.ZLIB, uncompressed_size=2**31)
    for number in (1, 2):
        assert peek(admin, topic, number).status_code == 501


@pytest.mark.parametrize("size", [0, 5, 2000])
def test_nor_is_what_does_not_have_the_size_that_it_claims(
    admin: httpx.Client, topic: str, raw: RawClient, size: int
) -> None:
    raw.publish(zlib.compress(bytes(1000)), 0, compression=pb.ZLIB, uncompressed_size=size)
    answer = peek(admin, topic, 1)
    assert (answer.status_code, f"{size} bytes" in answer.text) == (501, True)


def test_a_chunk_of_what_was_compressed_is_shown_as_it_is(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    whole = zlib.compress(bytes(range(256)))
    chunk = {"uuid": "u", "num_chunks_from_msg": 2, "compression": pb.ZLIB}
    for number, piece in enumerate((whole[:20], whole[20:])):
        raw.publish(piece, 0, chunk_id=number, uncompressed_size=256, **chunk)
        answer = peek(admin, topic, number + 1)
        assert (answer.status_code, answer.content) == (200, piece)
        assert answer.headers["x-pulsar-chunk-id"] == str(number)


def test_strings_that_are_no_utf_8_are_shown_as_far_as_they_are(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    metadata = pb.MessageMetadata(producer_name="p#", sequence_id=0, publish_time=1)
    metadata.properties.add(key="k#", value="v#")
    encoded = metadata.SerializeToString().replace(b"#", b"\xff")
    body = len(encoded).to_bytes(4, "big") + encoded + b"hello"
    entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    send = pb.CommandSend(producer_id=1, sequence_id=0)
    raw.send(pb.BaseCommand.SEND, "send", send, entry)
    raw.receive(pb.BaseCommand.SEND_RECEIPT)
    answer = peek(admin, topic, 1)
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert json.loads(answer.headers["x-pulsar-property"]) == {"k\ufffd": "v\ufffd"}
    assert answer.headers["x-pulsar-producer-name"].encode() == "p\ufffd".encode()


def test_what_is_not_there_is_not_found(
    admin: httpx.Client, namespace: str, topic: str, raw: RawClient
) -> None:
    assert peek(admin, topic, 1).status_code == 404
    assert peek(admin, topic, 0).status_code == 412
    assert peek(admin, topic, 1, "nobody").status_code == 404
    assert peek(admin, f"{namespace}/none", 1).status_code == 404
    assert admin.get(f"{P}/{topic}/ledger/0/entry/{2**40}").status_code == 404
    admin.put(f"{P}/{namespace}/parts/partitions", json=1)
    assert peek(admin, f"{namespace}/parts", 1).status_code == 405


def test_peeking_on_a_subscription_that_does_not_exist_shows_the_earliest_and_creates_nothing(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    for number in range(3):
        raw.publish(b"%d" % number, number)
    admin.post(f"{P}/{topic}/subscription/audit/skip_all")
    assert [peek(admin, topic, n, "never-made").content for n in (1, 3)] == [b"0", b"2"]
    assert peek(admin, topic, 4, "never-made").status_code == 404
    assert peek(admin, topic, 0, "never-made").status_code == 412
    assert peek(admin, topic, 1, "n" * 2000).status_code == 405
    assert admin.get(f"{P}/{topic}/subscriptions").json() == ["audit"]


def test_peeking_on_a_subscription_that_does_not_exist_shows_nothing_aborted(
    admin: httpx.Client, topic: str, raw: RawClient
) -> None:
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, f"persistent://{topic}")
    raw.publish(b"aborted", 0, txn_id)
    raw.end(txn_id, commit=False)
    raw.publish(b"plain", 1)
    assert peek(admin, topic, 1, "never-made").content == b"plain"
