"""What readers see of transactions: all of a commit, nothing of an abort, never a marker."""

from collections.abc import Callable
from typing import Any

import pytest
from raw_client import RawClient
from scenario import (
    IN_LOG_ORDER,
    SOON_MS,
    assert_nothing_more,
    create_partitioned_topic,
    drain,
    is_consumed_to_the_end,
    subscribe,
)

from pybroker.client import Client, CompressionType, MessageId, Timeout
from pybroker.wire.message_metadata import parse_metadata, payload_of


def test_nothing_is_visible_before_the_commit_and_everything_after_it(
    client: Client, topics: Callable[[int], list[str]]
) -> None:
    names = topics(3)
    consumers = [subscribe(client, name) for name in names]
    producers = [client.create_producer(name) for name in names]
    txn = client.new_transaction(timeout_ms=60_000)
    for producer in producers:
        for number in range(5):
            producer.send(b"%d" % number, txn=txn)
    for consumer in consumers:
        assert_nothing_more(consumer)
    txn.commit()
    for consumer in consumers:
        assert drain(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_commit_over_the_partitions_of_a_topic_shows_them_all(
    client: Client, shared_broker: Any, topic: str
) -> None:
    create_partitioned_topic(shared_broker, topic, 3)
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    with client.new_transaction() as txn:
        for number in range(9):
            producer.send(b"%d" % number, txn=txn)
        assert_nothing_more(consumer)
    assert sorted(drain(consumer, 9)) == [b"%d" % number for number in range(9)]


def test_an_aborted_transaction_is_never_received_and_leaves_no_backlog(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    for _ in range(10):
        producer.send(b"aborted", txn=txn)
    txn.abort()
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]
    shared_broker.wait_until(lambda: shared_broker.backlog(topic, "sub") == 0)


@IN_LOG_ORDER
def test_a_plain_message_behind_an_open_transaction_waits_for_its_end(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"in", txn=txn)
    producer.send(b"plain")
    assert_nothing_more(consumer)
    txn.commit()
    assert drain(consumer, 2) == [b"in", b"plain"]


@IN_LOG_ORDER
def test_interleaved_transactions_appear_in_log_order(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    first, second = client.new_transaction(), client.new_transaction()
    producer.send(b"a1", txn=first)
    producer.send(b"b1", txn=second)
    producer.send(b"a2", txn=first)
    second.commit()
    assert_nothing_more(consumer)
    first.commit()
    assert drain(consumer, 3) == [b"a1", b"b1", b"a2"]


def test_an_abort_between_two_commits_leaves_them_alone(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    for payload, commit in ((b"1", True), (b"2", False), (b"3", True)):
        txn = client.new_transaction()
        producer.send(payload, txn=txn)
        if commit:
            txn.commit()
        else:
            txn.abort()
    assert drain(consumer, 2) == [b"1", b"3"]
    assert_nothing_more(consumer)


def test_the_last_message_id_stops_before_an_open_transaction(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"plain")
    plain = consumer.receive(timeout_millis=SOON_MS).message_id()
    txn = client.new_transaction()
    producer.send(b"in", txn=txn)
    assert consumer.get_last_message_id() == plain
    txn.commit()
    committed = consumer.receive(timeout_millis=SOON_MS).message_id()
    assert consumer.get_last_message_id() == committed


def test_a_reader_at_an_aborted_tail_has_no_message_available(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"plain")
    reader = client.create_reader(topic, MessageId.earliest)
    assert reader.has_message_available()
    assert reader.read_next(SOON_MS).data() == b"plain"
    txn = client.new_transaction()
    producer.send(b"aborted", txn=txn)
    txn.abort()
    assert not reader.has_message_available()
    with pytest.raises(Timeout):
        reader.read_next(150)


def test_a_reader_behind_a_commit_marker_has_no_message_available(
    client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    with client.new_transaction() as txn:
        producer.send(b"committed", txn=txn)
    reader = client.create_reader(topic, MessageId.earliest)
    assert reader.read_next(SOON_MS).data() == b"committed"
    assert not reader.has_message_available()


def test_markers_are_never_delivered_and_the_mark_delete_position_reaches_the_end(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    for _ in range(5):
        with client.new_transaction() as txn:
            producer.send(b"in", txn=txn)
    assert drain(consumer, 5) == [b"in"] * 5
    assert_nothing_more(consumer)
    shared_broker.wait_until(lambda: is_consumed_to_the_end(shared_broker, topic, "sub"))


def test_key_properties_and_compression_survive_a_transaction(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, compression_type=CompressionType.ZLib)
    with client.new_transaction() as txn:
        producer.send(
            b"x" * 1000, txn=txn, partition_key="key", properties={"a": "1"}, event_timestamp=7
        )
    message = consumer.receive(timeout_millis=SOON_MS)
    assert message.data() == b"x" * 1000
    assert message.partition_key() == "key"
    assert message.properties() == {"a": "1"}
    assert message.event_timestamp() == 7


def test_schema_version_and_every_other_field_survive_a_transaction(
    raw: RawClient, topic: str
) -> None:
    fields = {
        "schema_version": (3).to_bytes(8, "big"),
        "ordering_key": b"order",
        "uuid": "chunked",
        "num_chunks_from_msg": 2,
        "chunk_id": 0,
        "null_value": True,
    }
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    raw.publish(b"payload", 0, txn_id, **fields)
    raw.end(txn_id, commit=True)
    entry = raw.receive_entry(topic)
    metadata = parse_metadata(entry)
    assert {name: getattr(metadata, name) for name in fields} == fields
    assert payload_of(entry) == b"payload"


def test_a_late_send_after_the_commit_is_refused_and_hides_nothing(
    client: Client, raw: RawClient, topic: str
) -> None:
    consumer = subscribe(client, topic)
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    raw.add_partition(txn_id, topic)
    assert raw.publish(b"in time", 0, txn_id).HasField("message_id")
    assert not raw.end(txn_id, commit=True).HasField("error")
    assert raw.publish(b"late", 1, txn_id).error, "a send after the end must be refused"
    assert raw.publish(b"plain", 2).HasField("message_id")
    assert drain(consumer, 2) == [b"in time", b"plain"]
    assert_nothing_more(consumer)


def test_a_send_without_add_partition_is_refused(raw: RawClient, topic: str) -> None:
    raw.create_producer(topic)
    txn_id = raw.new_txn()
    assert raw.publish(b"unannounced", 0, txn_id).error
    assert not raw.end(txn_id, commit=True).HasField("error")
