"""Topics over a memory backend, with a clock that tests advance."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dispatch_fakes import FakeOutcomes
from virtual_loop import LoopClock, run_virtually

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName, TxnId
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.consumer import Consumer
from pybroker.broker.topics import Topics
from pybroker.process.ledger_factory import ledger_factory
from pybroker.wire.frames import SendRun

ORDERS = TopicName.parse("orders")


class Owner:
    """The owner of producers and consumers without a connection."""

    writable = True

    def close_producer(self, producer: Producer, reason: str) -> None:
        pass

    def active_consumer_changed(self, consumer: Consumer, is_active: bool) -> None:
        pass

    def close_consumer(self, consumer: Consumer, reason: str) -> None:
        pass


class World:
    def __init__(self, backend: MemoryBackend, config: BrokerConfig) -> None:
        clock = LoopClock()
        self.factory: ManagedLedgerFactory = ledger_factory(backend, clock, config)
        self.backend = backend
        self.tenants = Tenants(backend.metadata, config)
        self.outcomes: Any = FakeOutcomes()
        self.topics = Topics(
            self.factory, backend.metadata, self.tenants, self.outcomes, clock, config
        )

    async def topic(self, name: TopicName = ORDERS) -> Topic:
        topic = await self.topics.get(name, create=True)
        assert topic is not None
        return topic

    async def producer(self, topic: Topic) -> Producer:
        producer = Producer(1, "p", Owner())
        await topic.add_producer(producer, lambda error: None)
        return producer

    async def publish(self, topic: Topic, producer: Producer, txn_id: TxnId | None = None) -> None:
        stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        run = SendRun(1, txn_id)
        run.entries.append(b"x" * 20)
        run.message_counts.append(1)
        topic.publish(producer, run, lambda position, error: stored.set_result(error))
        assert await stored is None

    def exists(self, name: TopicName = ORDERS) -> bool:
        return self.factory.exists(name.ledger_name)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], **config: Any) -> None:
    async def go() -> None:
        backend = MemoryBackend()
        await backend.open()
        world = World(backend, BrokerConfig(**config))
        await scenario(world)
        await world.topics.close()
        await world.factory.close()
        await backend.close()

    run_virtually(go())
