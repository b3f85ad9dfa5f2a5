"""An ordinary topic is made scalable while clients of the V5 kind use it."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from pybroker.base.names import any_topic
from pybroker.broker.scalable.migration import Migration
from pybroker.client import InitialPosition, Timeout, TopicTerminated, aio
from pybroker.client.scalable import Checkpoint

_numbers = count(1)
KEYS = [f"key {number}" for number in range(7)]
EARLIEST = {"initial_position": InitialPosition.Earliest}


class Shop:
    """An ordinary topic of two partitions, with a producer that can follow."""

    def __init__(self, broker: Any, client: aio.Client) -> None:
        self.name = f"persistent://public/default/shop-{next(_numbers)}"
        self.client = client
        self._broker = broker
        self._sent = 0
        self.producer: Any = None

    async def open(self) -> "Shop":
        name = any_topic(self.name)
        await self._ask(lambda running: running.topics.create_partitioned(name, 2))
        self.producer = await self.client.create_producer(self.name, follows_migration=True)
        return self

    async def publish(self, messages: int = 14, **options: Any) -> list[bytes]:
        numbers = range(self._sent, self._sent + messages)
        self._sent += messages
        for number in numbers:
            key = KEYS[number % len(KEYS)]
            await self.producer.send(b"%05d" % number, partition_key=key, **options)
        return [b"%05d" % number for number in numbers]

    async def migrate(self, force: bool = False) -> None:
        async def work(running: Any) -> None:
            topics = running.topics
            metadata = topics._services.metadata
            migration = Migration(topics, topics.scalable, metadata, topics._clock)
            await migration.migrate(any_topic(self.name).scalable_name, force)

        await self._ask(work)

    async def _ask(self, work: Callable[[Any], Awaitable[Any]]) -> None:
        await asyncio.to_thread(self._broker.call, work)


def scenario(broker: Any, work: Callable[[Shop], Awaitable[None]]) -> None:
    async def go() -> None:
        async with aio.Client(broker.service_url) as client:
            await work(await Shop(broker, client).open())

    asyncio.run(go())


async def received(consumer: Any, messages: int) -> list[Any]:
    return [await consumer.receive(30_000) for _ in range(messages)]


def by_key(messages: list[Any]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for each in messages:
        found.setdefault(each.partition_key(), []).append(bytes(each.data()))
    return found


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_producers_and_consumers_go_on(broker: Any, kind: str) -> None:
    async def work(shop: Shop) -> None:
        create = getattr(shop.client, f"create_{kind}_consumer")
        consumer = await create(shop.name, "workers", **EARLIEST)
        published = await shop.publish()
        await shop.migrate()
        published += await shop.publish()
        found = []
        for _ in published:
            found.append(await consumer.receive(30_000))
            if kind == "queue":
                await consumer.acknowledge(found[-1])
            else:
                await consumer.acknowledge_cumulative(found[-1])
        assert sorted(bytes(each.data()) for each in found) == published
        assert any(each.topic_name().startswith("segment://") for each in found)
        if kind == "stream":
            assert all(values == sorted(values) for values in by_key(found).values())

    scenario(broker, work)


def test_a_consumer_that_was_away_gets_everything(broker: Any) -> None:
    async def work(shop: Shop) -> None:
        await (await shop.client.create_queue_consumer(shop.name, "workers")).close()
        published = await shop.publish()
        await shop.migrate()
        published += await shop.publish()
        consumer = await shop.client.create_queue_consumer(shop.name, "workers")
        found = await received(consumer, len(published))
        assert sorted(bytes(each.data()) for each in found) == published

    scenario(broker, work)


def test_a_transaction_that_is_open_commits_afterwards_and_an_aborted_one_shows_nothing(
    broker: Any,
) -> None:
    async def work(shop: Shop) -> None:
        consumer = await shop.client.create_queue_consumer(shop.name, "workers", **EARLIEST)
        before = await shop.publish()
        inputs = await received(consumer, len(before))
        committed, aborted = [await shop.client.new_transaction() for _ in range(2)]
        published = await shop.publish(txn=committed)
        await shop.publish(txn=aborted)
        for message in inputs:
            await consumer.acknowledge(message, txn=committed)
        await shop.migrate()
        published += await shop.publish(txn=committed)
        with pytest.raises(Timeout):
            await consumer.receive(50)
        await aborted.abort()
        await committed.commit()
        found = await received(consumer, len(published))
        assert sorted(bytes(each.data()) for each in found) == published
        assert all(values == sorted(values) for values in by_key(found).values())
        await consumer.close()
        again = await shop.client.create_queue_consumer(shop.name, "workers")
        assert len(await received(again, len(published))) == len(published)
        with pytest.raises(Timeout):
            await again.receive(50)

    scenario(broker, work)


def test_a_checkpoint_of_the_ordinary_topic_goes_on_in_the_scalable_one(broker: Any) -> None:
    async def work(shop: Shop) -> None:
        reader = await shop.client.create_checkpoint_consumer(shop.name, Checkpoint.earliest)
        before = await shop.publish()
        await received(reader, len(before))
        checkpoint = reader.checkpoint()
        await reader.close()
        await shop.migrate()
        published = await shop.publish()
        reader = await shop.client.create_checkpoint_consumer(shop.name, checkpoint)
        found = await received(reader, len(published))
        assert sorted(bytes(each.data()) for each in found) == published

    scenario(broker, work)


def test_by_force_a_4_x_consumer_reads_to_the_end_and_its_producer_is_told(broker: Any) -> None:
    async def work(shop: Shop) -> None:
        consumer = await shop.client.subscribe(shop.name, "old", **EARLIEST)
        producer = await shop.client.create_producer(shop.name)
        published = await shop.publish()
        await shop.migrate(force=True)
        await shop.publish()
        with pytest.raises(TopicTerminated):
            await producer.send(b"too late")
        found = await received(consumer, len(published))
        assert sorted(bytes(each.data()) for each in found) == published
        with pytest.raises(Timeout):
            await consumer.receive(50)

    scenario(broker, work)
