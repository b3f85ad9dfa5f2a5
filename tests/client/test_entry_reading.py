"""Entries as stored, and the client's questions about topics and schemas."""

import asyncio

import pytest

from pybroker.client import Client, InitialPosition, MessageId, encode_batch
from pybroker.client.aio import Client as AioClient
from pybroker.wire.message_metadata import last_batch_index, payload_of

TOPIC = "persistent://public/default/entries"
_BYTES = 1 << 30


@pytest.fixture
def places(pulsar_broker):
    """Publishes five batches of three messages; returns their positions."""
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(TOPIC)
        ids = [producer.send_batch(encode_batch([b"%d" % n] * 3)) for n in range(5)]
    return [(each.ledger_id(), each.entry_id()) for each in ids]


def reading(pulsar_broker, work, after=MessageId.earliest, **options):
    async def run():
        async with AioClient(pulsar_broker.service_url) as client:
            reader = await client.create_entry_reader(TOPIC, after, **options)
            return await work(reader)

    return asyncio.run(run())


def test_entries_come_whole_and_in_order(pulsar_broker, places):
    async def work(reader):
        return await reader.take(_BYTES, places[-1], 5)

    entries = reading(pulsar_broker, work)
    assert [each[:2] for each in entries] == places
    assert [last_batch_index(each.data) for each in entries] == [2] * 5
    assert payload_of(entries[4].data).endswith(b"4")


def test_reading_begins_behind_a_place(pulsar_broker, places):
    async def work(reader):
        return await reader.take(_BYTES, places[-1], 5)

    after = MessageId(-1, *places[2])
    assert [each[:2] for each in reading(pulsar_broker, work, after)] == places[3:]


def test_no_more_comes_than_was_permitted(pulsar_broker, places):
    async def work(reader):
        first = await reader.take(_BYTES, places[-1], 5)
        reader.unpacked(3 * len(first))
        return first, await reader.take(_BYTES, places[-1], 5)

    first, second = reading(pulsar_broker, work, permits=6)
    assert [each[:2] for each in first + second][:4] == places[:4]
    assert len(first) == 2


def test_where_nothing_comes_the_wait_ends(pulsar_broker, places):
    async def work(reader):
        return await reader.take(1, (2**40, 0), 0.01), await reader.last_message_id()

    entries, last = reading(pulsar_broker, work, MessageId(-1, *places[-1]))
    assert entries == []
    assert (last.ledger_id(), last.entry_id()) == places[-1]


def test_a_reader_whose_connection_breaks_goes_on_behind_what_was_taken(pulsar_broker, places):
    async def work(reader):
        first = await reader.take(1, places[0], 5)
        reader._attachment.connection.abort("cut")
        rest = []
        while not rest or rest[-1][:2] != places[-1]:
            rest += await reader.take(_BYTES, places[-1], 5)
            reader.unpacked(3)
        return first + rest

    taken = reading(pulsar_broker, work, permits=3)
    assert [each[:2] for each in taken] == places


def test_a_namespaces_topics_are_listed(pulsar_broker, places):
    with Client(pulsar_broker.service_url) as client:
        assert TOPIC in client.get_topics_of_namespace("public/default")


def test_a_topic_without_a_schema_has_none(pulsar_broker, places):
    with Client(pulsar_broker.service_url) as client:
        assert client.get_schema(TOPIC) is None
