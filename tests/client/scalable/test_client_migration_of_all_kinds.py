"""What an ordinary topic holds when it is made scalable: prepared transactions, delayed messages,
subscriptions of all kinds, producers with deduplication.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from test_client_migration import EARLIEST, Shop, received

import pybroker.testing
from pybroker.client import ConsumerType, Timeout, aio
from pybroker.testing import RunningBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as running:
        yield running


def scenario(broker: Any, work: Callable[[Shop], Awaitable[None]]) -> None:
    async def go() -> None:
        async with aio.Client(broker.service_url, enable_transaction=True) as client:
            await work(await Shop(broker, client).open())

    asyncio.run(go())


def contents(messages: list[Any]) -> list[bytes]:
    return sorted(bytes(each.data()) for each in messages)


async def nothing(consumer: Any) -> bool:
    try:
        await consumer.receive(100)
    except Timeout:
        return True
    return False


@pytest.mark.parametrize("commits", [True, False])
def test_a_prepared_transaction_is_decided_afterwards(broker: Any, commits: bool) -> None:
    async def work(shop: Shop) -> None:
        queue = await shop.client.create_queue_consumer(shop.name, "workers", **EARLIEST)
        taken = await shop.publish()
        txn = await shop.client.new_transaction()
        for message in await received(queue, len(taken)):
            await queue.acknowledge(message, txn=txn)
        written = await shop.publish(txn=txn)
        await txn.prepare(f"shop-{commits}")
        await shop.migrate()
        later = await shop.publish()
        assert contents(await received(queue, len(later))) == later, "nothing of the transaction"
        (left,) = await shop.client.prepared_transactions(f"shop-{commits}")
        again = shop.client.attach_transaction(left.txn_id)
        await (again.commit() if commits else again.abort())
        expected = written if commits else taken
        assert contents(await received(queue, len(expected))) == expected
        assert await nothing(queue)

    scenario(broker, work)


def test_delayed_messages_are_delivered_when_they_are_due(broker: Any) -> None:
    async def work(shop: Shop) -> None:
        queue = await shop.client.create_queue_consumer(shop.name, "workers", **EARLIEST)
        sent = await shop.publish(4, deliver_after=timedelta(seconds=1))
        await shop.migrate()
        assert await nothing(queue)
        assert contents(await received(queue, len(sent))) == sent

    scenario(broker, work)


@pytest.mark.parametrize("kind", list(ConsumerType))
def test_a_subscription_of_any_kind_goes_on_with_what_it_has_not_acknowledged(
    broker: Any, kind: ConsumerType
) -> None:
    async def work(shop: Shop) -> None:
        published = await shop.publish()
        former = await shop.client.subscribe(shop.name, "any", kind, **EARLIEST)
        half = await received(former, len(published))
        for message in half[::2]:
            await former.acknowledge(message)
        await former.close()
        await shop.migrate()
        published += await shop.publish()
        left = sorted(set(published) - {bytes(each.data()) for each in half[::2]})
        queue = await shop.client.create_queue_consumer(shop.name, "any", **EARLIEST)
        assert contents(await received(queue, len(left))) == left
        assert await nothing(queue)

    scenario(broker, work)


def test_a_producer_s_sequence_ids_go_on(broker: Any) -> None:
    async def work(shop: Shop) -> None:
        await shop.producer.close()
        shop.producer = await shop.client.create_producer(shop.name, "till", follows_migration=True)
        queue = await shop.client.create_queue_consumer(shop.name, "workers", **EARLIEST)
        sent = await shop.publish(7)
        await shop.migrate()
        sent += await shop.publish(7)
        assert contents(await received(queue, len(sent))) == sent
        assert shop.producer.last_sequence_id() >= 0 and await nothing(queue)

    scenario(broker, work)
