"""BatchingType.KeyBased: an entry's messages share their key, which the entry names."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from scripted_broker import ScriptedBroker, Sent

import pybroker.testing
from pybroker.client import BatchingType, Client, ConsumerType, InitialPosition, ProducerQueueIsFull
from pybroker.testing import RunningBroker
from pybroker.wire.message_metadata import parse_metadata, payload_of
from pybroker.wire.single_messages import split_batch

KEY_BASED: dict[str, Any] = {"batching_enabled": True, "batching_type": BatchingType.KeyBased}
A_WHILE: dict[str, Any] = {**KEY_BASED, "batching_max_publish_delay_ms": 60_000}
_numbers = itertools.count(1)


def entry(sent: Sent) -> tuple[str, int, list[bytes]]:
    """Its key, sequence id and contents."""
    metadata = parse_metadata(sent.entry)
    messages = split_batch(payload_of(sent.entry), metadata.num_messages_in_batch)
    contents = [content for _, content in messages]
    return metadata.partition_key, metadata.sequence_id, contents


def send_all(broker: ScriptedBroker, client: Any, *messages: dict[str, Any]) -> list[Any]:
    async def work() -> list[Any]:
        producer = await client.create_producer("t", **A_WHILE)
        tasks = []
        for number, message in enumerate(messages):
            tasks.append(asyncio.ensure_future(producer.send(b"%d" % number, **message)))
            await asyncio.sleep(0)
        await producer.flush()
        return list(await asyncio.gather(*tasks))

    return broker.run(work())


def keyed(keys: str) -> list[dict[str, Any]]:
    return [{"partition_key": key} for key in keys]


def test_each_key_has_an_entry_under_its_last_sequence_id_and_the_lower_goes_first(
    broker: ScriptedBroker, client: Any
):
    ids = send_all(broker, client, *keyed("abacb"))
    assert [entry(sent) for sent in broker.sent] == [
        ("a", 2, [b"0", b"2"]),
        ("c", 3, [b"3"]),
        ("b", 4, [b"1", b"4"]),
    ]
    # The scripted broker numbers entries by sequence id.
    places = [(each.entry_id(), each.batch_index()) for each in ids]
    assert places == [(2, 0), (4, 0), (2, 1), (3, 0), (4, 1)]


def test_one_key_has_an_ordinary_batch(broker: ScriptedBroker, client: Any):
    send_all(broker, client, *keyed("aaa"))
    [sent] = broker.sent
    metadata = parse_metadata(sent.entry)
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (0, 2)


def test_the_ordering_key_comes_first_and_none_at_all_is_a_key_as_well(
    broker: ScriptedBroker, client: Any
):
    messages = [
        {"partition_key": "a", "ordering_key": b"x"},
        {"partition_key": "b", "ordering_key": b"x"},
        {},
        {"partition_key": "a"},
        {},
    ]
    send_all(broker, client, *messages)
    metadata = [parse_metadata(sent.entry) for sent in broker.sent]
    assert [each.ordering_key for each in metadata] == [b"x", b"", b""]
    assert [entry(sent)[2] for sent in broker.sent] == [[b"0", b"1"], [b"3"], [b"2", b"4"]]


def test_the_limits_are_for_all_keys_together(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t", **A_WHILE, batching_max_messages=3)
        await asyncio.gather(*(producer.send(b"m", **each) for each in keyed("abc")))

    broker.run(work())
    assert len(broker.sent) == 3


def test_what_is_refused_belongs_to_no_batch(broker: ScriptedBroker, client: Any):
    async def work() -> None:
        producer = await client.create_producer("t", **A_WHILE, max_pending_messages=1)
        first = asyncio.ensure_future(producer.send(b"0", partition_key="a"))
        await asyncio.sleep(0)
        with pytest.raises(ProducerQueueIsFull):
            await producer.send(b"1", partition_key="b")
        await producer.flush()
        await first

    broker.run(work())
    assert [entry(sent)[2] for sent in broker.sent] == [[b"0"]]


# --- at a real broker ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deduplicating() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/keyed-{next(_numbers)}"


@pytest.mark.parametrize("in_a_transaction", [False, True], ids=["plain", "in a transaction"])
def test_deduplication_takes_no_batch_for_a_copy_of_another(deduplicating, topic, in_a_transaction):
    """The sequence ids of one batch lie between those of another."""
    with Client(deduplicating.service_url) as client:
        consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
        producer = client.create_producer(topic, **KEY_BASED)
        txn = client.new_transaction() if in_a_transaction else None
        for number in range(200):
            producer.send_async(b"%d" % number, None, partition_key=f"{number % 7}", txn=txn)
        producer.flush()
        if txn is not None:
            txn.commit()
        got = sorted(int(consumer.receive(10_000).data()) for _ in range(200))
        assert got == list(range(200))


def test_key_shared_consumers_divide_the_keys_and_have_each_in_order(deduplicating, topic):
    with Client(deduplicating.service_url) as client:
        consumers = [
            client.subscribe(topic, "s", consumer_type=ConsumerType.KeyShared) for _ in range(2)
        ]
        producer = client.create_producer(topic, **KEY_BASED)
        for number in range(400):
            producer.send_async(b"%d" % number, None, partition_key=f"{number % 20}")
        producer.flush()
        got: list[list[int]] = [[], []]
        while len(got[0]) + len(got[1]) < 400:
            for consumer, numbers in zip(consumers, got, strict=True):
                numbers += [int(message.data()) for message in consumer.batch_receive()]
    keys = [{number % 20 for number in each} for each in got]
    assert all(keys) and not keys[0] & keys[1]
    assert sorted(got[0] + got[1]) == list(range(400))
    for each in got:
        for key in range(20):
            of_key = [number for number in each if number % 20 == key]
            assert of_key == sorted(of_key)
