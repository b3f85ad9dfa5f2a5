"""The snapshot of deduplication, a cursor of its managed ledger, on the simulated cluster."""

from unittest.mock import Mock

import pytest
from apache_storage import storage  # noqa: F401
from simulated_storage import life, process, run  # noqa: F401

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from managed_ledger.storage.zookeeper.errors import NoNode
from pybroker.base.names import TopicName
from pybroker.broker.deduplication.deduplication import Deduplication
from pybroker.broker.deduplication.producer_sequence import ProducerSequence
from pybroker.broker.deduplication.snapshot import encode_head, encode_producer
from pybroker.broker.deletion.topic_storage import TopicStorage
from pybroker.formats.apache.deduplication import MAX_NODE_BYTES
from pybroker.simulation.world import SimulatedClock

TOPIC = TopicName.parse("persistent://acme/shop/orders")
KEY = "/deduplication/acme/shop/persistent/orders"
LIST = "/managed-ledgers/acme/shop/persistent/orders"


def snapshot(producers):
    state = ProducerSequence()
    state.top = state.durable = 7
    names = [f"producer-{number}" for number in range(producers)]
    parts = [encode_producer(name, state) for name in names]
    return b"".join([encode_head(Position(3, 4)), *parts])


def test_it_is_no_subscription_of_the_topic(storage, run, life):  # noqa: F811
    async def scenario():
        async with storage() as one:
            factory = ManagedLedgerFactory(one.backend, SimulatedClock(life.world))
            ledger = await factory.open(TOPIC.ledger_name)
            await ledger.open_cursor("sub")
            await one.metadata.put(KEY, snapshot(1))
            await factory.close()
        async with storage() as later:
            factory = ManagedLedgerFactory(later.backend, SimulatedClock(life.world))
            assert list((await factory.open(TOPIC.ledger_name)).cursors) == ["sub"]
            assert later.metadata.get(KEY).value == snapshot(1)
            await factory.close()

    run(scenario())


def test_a_large_one_is_there_after_a_crash(storage, run):  # noqa: F811
    async def scenario():
        large = snapshot(MAX_NODE_BYTES // 10)
        async with storage() as later:
            one = storage()
            await one.backend.open()
            await one.metadata.put(KEY, large)
            one.backend.crash()
            await later.metadata.refresh(KEY)
            assert later.metadata.get(KEY).value == large

    run(scenario())


class NoTransactions:
    def ongoing(self):
        return []

    async def read_aside(self):
        for none in ():
            yield none


def test_there_is_one_as_soon_as_deduplication_is_on(storage, run, life):  # noqa: F811
    """Without a cursor, Apache's broker starts at the end of the log."""

    async def scenario():
        async with storage() as one:
            factory = ManagedLedgerFactory(one.backend, SimulatedClock(life.world))
            ledger = await factory.open(TOPIC.ledger_name)
            deduplication = Deduplication(ledger, one.metadata, 100, 1000)
            await deduplication.recover(NoTransactions())
            assert await one.node(f"{LIST}/pulsar.dedup")
            await deduplication.close()
            await factory.close()

    run(scenario())


def test_it_goes_with_its_topic(storage, run, life):  # noqa: F811
    async def scenario():
        async with storage() as one:
            factory = ManagedLedgerFactory(one.backend, SimulatedClock(life.world))
            await factory.open(TOPIC.ledger_name)
            await one.metadata.put(KEY, snapshot(1))
            await TopicStorage(factory, one.metadata, Mock()).remove_topic(TOPIC, lambda: None)
            assert one.metadata.get(KEY) is None
            with pytest.raises(NoNode):
                await one.node(LIST)
            await factory.close()

    run(scenario())
