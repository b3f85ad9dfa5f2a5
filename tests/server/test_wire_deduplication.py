"""After a crash, deduplication knows the same of a producer as before; over the wire."""

import zlib
from collections.abc import Iterator

import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TxnId
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, payload_of

RECEIPT = pb.BaseCommand.SEND_RECEIPT
CRASHES = pytest.mark.parametrize("crash", [False, True], ids=["live", "recovered"])


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(config=BrokerConfig(broker_deduplication_enabled=True)) as running:
        yield running


def connected(broker: RunningBroker, topic: str) -> RawClient:
    raw = RawClient(broker.service_url)
    raw.create_producer(topic, producer_name="p")
    return raw


def again(broker: RunningBroker, raw: RawClient, topic: str, crash: bool) -> RawClient:
    if not crash:
        return raw
    raw.close()
    broker.kill_and_restart()
    return connected(broker, topic)


def stored(broker: RunningBroker, topic: str) -> list[bytes]:
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic, producer_name="end")
        raw.publish(b"end", 0)
        raw.subscribe(topic, durable=False, subscription="reader")
        raw.flow(1000)
        found: list[bytes] = []
        while not found or found[-1] != b"end":
            raw.messages(1)
            found.append(payload_of(raw.entry))
        return found[:-1]


@CRASHES
def test_a_refused_message_may_come_again_behind_a_later_one(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    raw = connected(broker, topic)
    raw.publish(b"zero", 0)
    nobodys = {"txnid_most_bits": 0, "txnid_least_bits": 4711}
    raw.start_publish(b"one", 1, send_fields=nobodys)
    raw.receive(pb.BaseCommand.SEND_ERROR)
    raw.publish(b"two", 2)
    raw = again(broker, raw, topic, crash)
    raw.publish(b"one again", 1)
    raw.publish(b"one a third time", 1)
    raw.close()
    assert stored(broker, topic) == [b"zero", b"two", b"one again"]


@CRASHES
def test_a_message_that_came_damaged_may_come_again_behind_a_later_one(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    raw = connected(broker, topic)
    send = pb.CommandSend(producer_id=1, sequence_id=0)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    entry = build_entry(metadata, b"zero")
    raw.send(pb.BaseCommand.SEND, "send", send, entry[:-1] + b"?")
    error = raw.receive(pb.BaseCommand.SEND_ERROR)
    assert error.error == pb.ChecksumError
    raw.publish(b"one", 1)
    raw = again(broker, raw, topic, crash)
    raw.publish(b"zero", 0)
    raw.close()
    assert stored(broker, topic) == [b"one", b"zero"]


@CRASHES
def test_the_sequence_id_of_a_send_counts_and_not_that_of_its_metadata(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    raw = connected(broker, topic)
    raw.start_publish(b"one", 1000, send_fields={"sequence_id": 1})
    raw.receive(pb.BaseCommand.SEND_RECEIPT)
    raw = again(broker, raw, topic, crash)
    raw.publish(b"one again", 1)
    raw.publish(b"two", 2)
    raw.close()
    assert stored(broker, topic) == [b"one", b"two"]


@CRASHES
def test_a_batch_is_known_by_the_ids_of_its_send(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    raw = connected(broker, topic)
    batch = {"highest_sequence_id": 9, "num_messages": 10}
    raw.start_publish(b"batch", 0, send_fields=batch)
    raw.receive(pb.BaseCommand.SEND_RECEIPT)
    raw = again(broker, raw, topic, crash)
    raw.publish(b"nine again", 9)
    raw.publish(b"ten", 10)
    raw.close()
    assert stored(broker, topic) == [b"batch", b"ten"]


@CRASHES
def test_a_large_message_whose_transaction_was_aborted_may_come_behind_a_later_one(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    raw = connected(broker, topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    _publish_chunk(raw, 0, txn_id)
    raw.end(txn_id, commit=False)
    raw.publish(b"one", 1)
    raw = again(broker, raw, topic, crash)
    _publish_chunk(raw, 0, None)
    _publish_chunk(raw, 1, None)
    raw.close()
    assert stored(broker, topic) == [b"one", b"chunk 0", b"chunk 1"]


def _publish_chunk(raw: RawClient, number: int, txn_id: TxnId | None) -> None:
    names = {} if txn_id is None else {"txnid_most_bits": txn_id[0], "txnid_least_bits": txn_id[1]}
    raw.start_publish(
        b"chunk %d" % number,
        0,
        send_fields={"is_chunk": True, **names},
        uuid="u",
        chunk_id=number,
        num_chunks_from_msg=2,
        total_chunk_msg_size=14,
    )
    raw.receive(pb.BaseCommand.SEND_RECEIPT)


@CRASHES
@pytest.mark.parametrize("chunks", [{}, {"num_chunks_from_msg": 2, "chunk_id": 0}])
def test_an_id_that_no_answer_can_tell_is_refused_and_the_producer_comes_back(
    broker: RunningBroker, topic: str, crash: bool, chunks: dict[str, int]
) -> None:
    raw = connected(broker, topic)
    raw.publish(b"zero", 0)
    for too_high in (2**63, 2**64 - 1):
        refused = raw.publish(b"too high", too_high, **chunks)
        assert isinstance(refused, pb.CommandSendError)
        assert "above the highest" in refused.message
    raw.publish(b"highest", 2**63 - 1)
    raw = again(broker, raw, topic, crash)
    raw.close_producer()
    assert raw.ask_for_producer(topic, producer_name="p").last_sequence_id == 2**63 - 1
    raw.close()
    assert stored(broker, topic) == [b"zero", b"highest"]


def test_too_high_ids_among_others_are_refused_alone(broker: RunningBroker, topic: str) -> None:
    with connected(broker, topic) as raw:
        with raw.in_one_piece():
            for number, sequence_id in enumerate((1, 2, 2**63, 3, 2**64 - 1)):
                raw.start_publish(b"%d" % number, sequence_id)
        kinds = pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR
        answers = [raw.receive(*kinds) for _ in range(5)]
    refused = [each.sequence_id for each in answers if isinstance(each, pb.CommandSendError)]
    assert refused == [2**63, 2**64 - 1]
    assert stored(broker, topic) == [b"0", b"1", b"3"]


def send_batches(raw: RawClient, firsts: range, of: int, size_bytes: int) -> None:
    """Batches of messages that compress well; only the first id of each is stated."""
    for first in firsts:
        payload = b""
        for each in range(first, first + of):
            single = pb.SingleMessageMetadata(payload_size=size_bytes, sequence_id=each)
            encoded = single.SerializeToString()
            payload += len(encoded).to_bytes(4, "big") + encoded + bytes(size_bytes)
        raw.start_publish(
            zlib.compress(payload),
            first,
            producer_name="p",
            send_fields={"num_messages": of},
            num_messages_in_batch=of,
            compression=pb.CompressionType.ZLIB,
            uncompressed_size=len(payload),
        )


@CRASHES
def test_batches_that_take_long_to_examine_are_stored_and_answered_in_order(
    broker: RunningBroker, topic: str, crash: bool
) -> None:
    """All in one read: more than one turn of the loop examines."""
    raw = connected(broker, topic)
    with raw.in_one_piece():
        send_batches(raw, range(0, 40, 4), of=4, size_bytes=300_000)
    assert [raw.receive(RECEIPT).sequence_id for _ in range(10)] == list(range(0, 40, 4))
    raw = again(broker, raw, topic, crash)
    with raw.in_one_piece():
        send_batches(raw, range(2, 42, 4), of=4, size_bytes=300_000)
    receipts = [raw.receive(RECEIPT) for _ in range(10)]
    assert [each.sequence_id for each in receipts] == list(range(2, 42, 4))
    raw.close()
    entries = [zlib.decompress(each) for each in stored(broker, topic)[:10]]
    assert [len(entry) // 300_000 for entry in entries] == [4] * 10
    (rest,) = stored(broker, topic)[10:]
    assert len(rest) // 300_000 == 2
