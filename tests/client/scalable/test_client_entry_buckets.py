"""Producers stamp entry buckets, and stream consumers that outnumber the segments share them."""

from bisect import bisect_right
from contextlib import suppress
from typing import Any

import pytest
from raw_client import RawClient
from scalable_orders import KEYS, Orders, by_key, contents, receive, stream

from pybroker.broker.dispatch.hash_ring import slot_of
from pybroker.client import BatchingType, Client, Timeout
from pybroker.client.messages import Outgoing
from pybroker.client.producing.entry_buckets import EntryBuckets
from pybroker.wire.message_metadata import parse_metadata
from pybroker.wire.single_messages import split_batch

SPLITS = (16384, 32768, 49152)
MORE_KEYS = [f"k{number}" for number in range(40)]


def entries(broker: Any, orders: Orders, messages: int) -> list[bytes]:
    """Those of the topic's first segment with so many messages."""
    with RawClient(broker.service_url) as raw:
        raw.subscribe(f"{orders.segments}/0000-ffff-0")
        raw.flow(1000)
        found = []
        while messages > 0:
            raw.messages(1)
            found.append(raw.entry)
            messages -= parse_metadata(raw.entry).num_messages_in_batch
        return found


def publish(producer: Any, count: int, txn: Any = None) -> dict[str, list[bytes]]:
    """Returns what was sent, by keys."""
    sent: dict[str, list[bytes]] = {}
    for number in range(count):
        key, content = MORE_KEYS[number % len(MORE_KEYS)], b"%05d" % number
        producer.send_async(content, partition_key=key, txn=txn)
        sent.setdefault(key, []).append(content)
    producer.flush()
    return sent


def received_by(consumers: list[Any], count: int) -> list[list[Any]]:
    """What each has got and acknowledged, once all of it is there."""
    found: list[list[Any]] = [[] for _ in consumers]
    while sum(map(len, found)) < count:
        for consumer, own in zip(consumers, found, strict=True):
            before = len(own)
            with suppress(Timeout):
                while True:
                    own.append(consumer.receive(timeout_millis=50))
            if len(own) > before:
                consumer.acknowledge_cumulative(own[-1])
    return found


# -- producers


def test_the_bucket_of_a_message_is_that_of_its_ordering_key_or_else_of_its_key() -> None:
    buckets = EntryBuckets(SPLITS)
    assert buckets.hash_of(Outgoing(b"")) == 0
    for key in MORE_KEYS:
        wanted = slot_of(key.encode())
        assert buckets.hash_of(Outgoing(b"", partition_key=key)) == wanted
        ordered = Outgoing(b"", partition_key="other", ordering_key=key.encode())
        assert buckets.hash_of(ordered) == wanted
        assert buckets.bucket_of(wanted) == wanted * 4 // 65536


@pytest.mark.parametrize("batching", [BatchingType.Default, BatchingType.KeyBased])
def test_a_batch_has_messages_of_one_bucket_and_says_of_which_hashes(
    broker: Any, client: Client, orders: Orders, batching: BatchingType
) -> None:
    options: Any = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000}
    producer = client.create_producer(orders.name, batching_type=batching, **options)
    publish(producer, 120)
    producer.send_async(b"no key")
    producer.flush()
    for entry in entries(broker, orders, 121):
        metadata = parse_metadata(entry)
        least, most = metadata.entry_hash_min, metadata.entry_hash_max
        assert bisect_right(SPLITS, least) == bisect_right(SPLITS, most)
        payload = entry[-metadata.uncompressed_size :]
        singles = [single for single, _ in split_batch(payload, metadata.num_messages_in_batch)]
        hashes = [
            slot_of(each.partition_key.encode()) if each.HasField("partition_key") else 0
            for each in singles
        ]
        assert (min(hashes), max(hashes)) == (least, most)


def test_a_message_that_is_sent_alone_is_stamped_too(
    broker: Any, client: Client, orders: Orders
) -> None:
    producer = client.create_producer(orders.name, batching_enabled=False)
    producer.send(b"x", partition_key=KEYS[0])
    metadata = parse_metadata(*entries(broker, orders, 1))
    assert metadata.entry_hash_min == metadata.entry_hash_max == slot_of(KEYS[0].encode())


# -- stream consumers


def test_stream_consumers_share_a_segment_and_each_key_has_one(
    broker: Any, client: Client, orders: Orders
) -> None:
    producer = client.create_producer(orders.name, batching_enabled=True)
    consumers = [stream(client, orders, consumer_name=name) for name in "abc"]
    for _ in range(2):
        sent = publish(producer, 80)
        found = received_by(consumers, 80)
        assert by_key([each for own in found for each in own]) == sent
        owners = [{each.partition_key() for each in own} for own in found]
        assert all(owners) and sum(map(len, owners)) == len(sent)
    segment = f"{orders.segments}/0000-ffff-0"
    broker.wait_until(lambda: not broker.backlog(segment, "ledger"))
    violations = broker.call(_violations)
    assert not violations, "every entry is within one bucket"


async def _violations(running: Any) -> dict[str, int]:
    return dict(running.topics.scalable.measures.violations)


def test_what_a_consumer_has_received_is_acknowledged_before_others_share_its_segment(
    client: Client, orders: Orders
) -> None:
    one = stream(client, orders, consumer_name="one")
    published = orders.publish()
    held = receive(one, 3)
    other = stream(client, orders, consumer_name="other")
    for consumer in (one, other):
        with pytest.raises(Timeout):
            consumer.receive(timeout_millis=300)
    one.acknowledge_cumulative(held[-1])
    found = received_by([one, other], len(published) - 3)
    assert sorted(contents([*held, *found[0], *found[1]])) == published, "and nothing twice"


def test_a_consumer_that_has_a_segment_alone_again_goes_on_in_order(
    client: Client, orders: Orders
) -> None:
    one, other = (stream(client, orders, consumer_name=name) for name in ("one", "other"))
    first = by_key(
        [each for own in received_by([one, other], len(orders.publish())) for each in own]
    )
    orders.publish()
    held = receive(other, 1)
    other.close()
    later = by_key(received_by([one], 14)[0])
    assert first.keys() == later.keys() and contents(held)[0] in later[held[0].partition_key()]
    assert all(values == sorted(values) for values in later.values())


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_acknowledges_messages_of_a_shared_segment(
    broker: Any, client: Client, orders: Orders, commits: bool
) -> None:
    one, other = (stream(client, orders, consumer_name=name) for name in ("one", "other"))
    published = orders.publish()
    txn = client.new_transaction()
    count = 0
    for consumer in (one, other):
        messages = []
        while True:
            try:
                messages.append(consumer.receive(timeout_millis=300))
            except Timeout:
                break
        count += len(messages)
        if messages:
            consumer.acknowledge_cumulative(messages[-1], txn=txn)
    assert count == len(published)
    if commits:
        txn.commit()
        segment = f"{orders.segments}/0000-ffff-0"
        broker.wait_until(lambda: not broker.backlog(segment, "ledger"))
    else:
        txn.abort()
        found = received_by([one, other], len(published))
        assert sorted(contents([*found[0], *found[1]])) == published


def test_consumers_follow_a_rebucket_in_the_order_of_each_key(
    client: Client, orders: Orders
) -> None:
    consumers = [stream(client, orders, consumer_name=name) for name in "ab"]
    sent = orders.publish()
    orders.rebucket(0, 8)
    sent += orders.publish()
    found = [each for own in received_by(consumers, len(sent)) for each in own]
    assert sorted(contents(found)) == sent
    for own in by_key(found).values():
        assert len(set(own)) == len(own)
