"""Compaction through clients: what is kept, who reads it, transactions, restarts, trimming."""

import itertools

import pytest
from compacting import SOON_MS, compact, logs_of, pairs, read, send
from crc32c import crc32c
from raw_client import RawClient

import pybroker.testing
from pybroker.client import Client, CompressionType, InitialPosition
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb


def test_of_each_key_the_last_message_is_read_at_its_place(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, *((f"k{i % 3}", b"%d" % i) for i in range(20)))
    everything = read(client, topic, compacted=False)
    compact(broker, topic)
    kept = read(client, topic)
    assert pairs(kept) == [("k2", b"17"), ("k0", b"18"), ("k1", b"19")]
    assert [m.message_id() for m in kept] == [m.message_id() for m in everything[17:]]
    assert pairs(read(client, topic, compacted=False)) == pairs(everything)


def test_what_comes_behind_the_horizon_is_read_whole(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"), ("a", b"2"), ("b", b"3"))
    compact(broker, topic)
    send(client, topic, ("a", b"4"), ("a", b"5"))
    assert pairs(read(client, topic)) == [("a", b"2"), ("b", b"3"), ("a", b"4"), ("a", b"5")]
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("b", b"3"), ("a", b"5")]
    assert len(logs_of(broker, topic)) == 1


def test_an_empty_message_deletes_its_key_until_it_comes_again(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"), ("b", b"2"), ("a", b""), ("c", b"3"), ("c", b""), ("c", b"4"))
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("b", b"2"), ("a", b""), ("c", b"4")]
    send(client, topic, ("b", b""), ("a", b"5"))
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("c", b"4"), ("b", b""), ("a", b"5")]
    send(client, topic, ("c", b""), ("a", b""))
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("b", b""), ("c", b""), ("a", b"")]


def test_a_null_value_deletes_its_key(broker: RunningBroker, client: Client, topic: str) -> None:
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        raw.publish(b"1", 0, partition_key="a")
        raw.publish(b"2", 1, partition_key="b")
        raw.publish(b"not looked at", 2, partition_key="a", null_value=True)
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("b", b"2"), ("a", b"not looked at")]


def test_messages_without_a_key_are_left_out(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    with client.create_producer(topic) as producer:
        producer.send(b"nobody's")
        producer.send(b"1", partition_key="a")
    compact(broker, topic)
    assert [m.data() for m in read(client, topic)] == [b"1"]


def test_messages_without_a_key_stay_if_that_is_configured(topic: str) -> None:
    with (
        pybroker.testing.broker(topic_compaction_retain_null_key=True) as broker,
        Client(broker.service_url) as client,
    ):
        with client.create_producer(topic) as producer:
            producer.send(b"nobody's")
            producer.send(b"1", partition_key="a")
            producer.send(b"2", partition_key="a")
        compact(broker, topic)
        assert [m.data() for m in read(client, topic)] == [b"nobody's", b"2"]


@pytest.mark.parametrize(
    "compression", [CompressionType.NONE, CompressionType.ZLib], ids=["plain", "zlib"]
)
def test_batches_are_compacted_inside(
    broker: RunningBroker, client: Client, topic: str, compression: CompressionType
) -> None:
    batched = {"batching_enabled": True, "compression_type": compression}
    send(client, topic, *((f"k{i}", b"old") for i in range(4)), **batched)
    send(client, topic, ("k1", b"new"), ("k3", b""), ("k4", b"x"), ("k4", b"y"), **batched)
    compact(broker, topic)
    kept = read(client, topic)
    assert pairs(kept) == [
        ("k0", b"old"), ("k2", b"old"), ("k1", b"new"), ("k3", b""), ("k4", b"y"),
    ]  # fmt: skip
    assert [m.message_id().batch_index() for m in kept] == [0, 2, 0, 1, 3]
    send(client, topic, ("k2", b"newer"))
    compact(broker, topic)
    assert pairs(read(client, topic)) == [
        ("k0", b"old"), ("k1", b"new"), ("k3", b""), ("k4", b"y"), ("k2", b"newer"),
    ]  # fmt: skip


def test_a_batch_that_cannot_be_read_stays_whole_and_supersedes_nothing(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"), ("a", b"2"))
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        lies = {"num_messages_in_batch": 2, "send_fields": {"num_messages": 2}}
        raw.start_publish(b"\0\0\0\xffgarbage", 0, partition_key="a", **lies)
        raw.receive(pb.BaseCommand.SEND_RECEIPT)
        raw.start_publish(b"x", 1, partition_key="a", send_fields={"num_messages": 3})
        raw.receive(pb.BaseCommand.SEND_RECEIPT)
        compact(broker, topic)
        raw.subscribe(topic, read_compacted=True)
        raw.flow(100)
        assert [message.message_id.entryId for message in raw.messages(3)] == [1, 2, 3]


@pytest.mark.parametrize("key", [b"\xff\xfe\0\x01", "ключ".encode(), b"a" * 300])
def test_keys_in_any_encoding_are_told_apart(broker: RunningBroker, topic: str, key: bytes) -> None:
    """Keys that are not UTF-8 are written as raw bytes, because protobuf would refuse them. A
    ledger holds five entries.
    """
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        for number, (text, encoded) in enumerate([(key, False), (b"x", False), (b"x", True)] * 2):
            metadata.sequence_id = number
            metadata.partition_key_b64_encoded = encoded
            field = b"\x32" + bytes([len(text)]) if len(text) < 128 else b"\x32\xac\x02"
            raw_metadata = metadata.SerializeToString() + field + text
            _publish_raw(raw, number, raw_metadata, b"%d" % number)
        compact(broker, topic)
        raw.subscribe(topic, read_compacted=True)
        raw.flow(100)
        assert [message.message_id.entryId for message in raw.messages(3)] == [3, 4, 0]


def _publish_raw(raw: RawClient, number: int, metadata: bytes, payload: bytes) -> None:
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    send = pb.CommandSend(producer_id=1, sequence_id=number)
    entry = b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body
    raw.send(pb.BaseCommand.SEND, "send", send, entry)
    raw.receive(pb.BaseCommand.SEND_RECEIPT)


def test_a_message_in_chunks_is_kept_or_left_out_as_one(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    with RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        number = itertools.count()

        def chunk(uuid: str, index: int, payload: bytes) -> None:
            raw.publish(
                payload, next(number), partition_key="a", uuid=uuid, chunk_id=index,
                num_chunks_from_msg=2, total_chunk_msg_size=10,
            )  # fmt: skip

        for uuid in ("one", "two"):
            chunk(uuid, 0, b"first")
            chunk(uuid, 1, b"secnd")
        chunk("three", 0, b"first")
        compact(broker, topic)
        raw.subscribe(topic, read_compacted=True)
        raw.flow(100)
        assert [message.message_id.entryId for message in raw.messages(3)] == [2, 3, 4]


def test_an_open_transaction_holds_the_horizon_back(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    txn = client.new_transaction()
    producer.send(b"2", partition_key="a", txn=txn)
    producer.send(b"3", partition_key="b")
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"1")]
    txn.abort()
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"1"), ("b", b"3")]


def test_an_aborted_message_supersedes_nothing_and_a_committed_one_does(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    for key in "ab":
        producer.send(b"1", partition_key=key)
    aborted, committed = client.new_transaction(), client.new_transaction()
    producer.send(b"", partition_key="a", txn=aborted)
    producer.send(b"2", partition_key="a", txn=aborted)
    producer.send(b"3", partition_key="b", txn=committed)
    aborted.abort()
    committed.commit()
    compact(broker, topic)
    assert pairs(read(client, topic)) == [("a", b"1"), ("b", b"3")]


def test_a_durable_consumer_reads_compacted_and_goes_on_where_it_was(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, *((f"k{i % 10}", b"%d" % i) for i in range(30)))
    compact(broker, topic)
    options = {"initial_position": InitialPosition.Earliest, "is_read_compacted": True}
    consumer = client.subscribe(topic, "s", **options)
    first = [consumer.receive(timeout_millis=SOON_MS) for _ in range(4)]
    consumer.acknowledge_cumulative(first[-1])
    consumer.close()
    consumer = client.subscribe(topic, "s", **options)
    rest = [consumer.receive(timeout_millis=SOON_MS) for _ in range(6)]
    assert [m.data() for m in first + rest] == [b"%d" % i for i in range(20, 30)]
    consumer.redeliver_unacknowledged_messages()
    again = [consumer.receive(timeout_millis=SOON_MS) for _ in range(6)]
    assert pairs(again) == pairs(rest)


def test_what_retention_has_released_is_still_read_compacted(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    send(client, topic, *((f"k{i % 4}", b"%d" % i) for i in range(30)))
    compact(broker, topic)
    for _ in range(30):
        last = consumer.receive(timeout_millis=SOON_MS)
    consumer.acknowledge_cumulative(last)
    consumer.close()  # answered after its acknowledgement
    broker.trim(topic)
    left = read(client, topic, compacted=False)
    assert len(left) < 10
    kept = read(client, topic)
    assert pairs(kept) == [("k2", b"26"), ("k3", b"27"), ("k0", b"28"), ("k1", b"29")]
    assert pairs(read(client, topic, start_message_id=kept[1].message_id())) == pairs(kept[2:])
    send(client, topic, ("k0", b"new"))
    compact(broker, topic)
    assert pairs(read(client, topic)) == [
        ("k2", b"26"),
        ("k3", b"27"),
        ("k1", b"29"),
        ("k0", b"new"),
    ]


def test_what_is_not_compacted_yet_is_not_released(
    broker: RunningBroker, client: Client, topic: str
) -> None:
    send(client, topic, ("a", b"1"))
    compact(broker, topic)
    consumer = client.subscribe(topic, "s")
    send(client, topic, *((f"k{i}", b"%d" % i) for i in range(20)))
    for _ in range(20):
        last = consumer.receive(timeout_millis=SOON_MS)
    consumer.acknowledge_cumulative(last)
    consumer.close()  # answered after its acknowledgement
    broker.trim(topic)
    assert len(read(client, topic)) == 21
    compact(broker, topic)
    broker.trim(topic)
    assert len(read(client, topic)) == 21
    assert len(read(client, topic, compacted=False)) < 10
