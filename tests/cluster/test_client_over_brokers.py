"""`pybroker.client` when a broker dies: it finds the next broker, and processing stays
exactly-once.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from txn_cluster import TxnBroker, TxnCluster

from pybroker.base.errors import PulsarError
from pybroker.base.names import TopicName
from pybroker.client.aio import Client, Consumer, Producer
from pybroker.client.errors import ClientError, Timeout, TransactionOutcomeUnknown
from pybroker.client.options import InitialPosition

MESSAGES = 12


class Pipeline:
    """Turns orders into invoices, in transactions of three; starts over after a failure."""

    def __init__(self, cluster: TxnCluster, client: Client, orders: str, invoices: str) -> None:
        self._cluster = cluster
        self._client = client
        self._orders = orders
        self._invoices = invoices

    async def fill(self) -> None:
        """Subscribe, so that messages are kept, and publish the orders."""
        await (await self._consumer()).close()
        await (await self._client.subscribe(self._invoices, "reads")).close()
        producer = await self._client.create_producer(self._orders)
        for number in range(MESSAGES):
            await producer.send(b"%d" % number)
        await producer.close()

    async def _consumer(self) -> Consumer:
        return await self._client.subscribe(
            self._orders, "billing", initial_position=InitialPosition.Earliest
        )

    async def run(self, at_half: Any = None) -> None:
        """Run until no orders are left. `at_half` is called within the second transaction."""
        consumer, producer, round_number = None, None, 0
        while True:
            try:
                consumer = consumer or await self._consumer()
                producer = producer or await self._client.create_producer(self._invoices)
                if await self._step(consumer, producer, at_half if round_number == 1 else None):
                    return
                round_number += 1
            except (ClientError, PulsarError):
                for each in (consumer, producer):
                    if each is not None:
                        await _closed(each)
                consumer = producer = None
                round_number += 1
                await asyncio.sleep(1.0)

    async def _step(self, consumer: Consumer, producer: Producer, at_half: Any) -> bool:
        """Whether no orders are left. Waits longer than an open transaction can hold messages."""
        try:
            orders = [await consumer.receive(timeout_millis=60_000)]
        except Timeout:
            return True
        with suppress(Timeout):
            while len(orders) < 3:
                orders.append(await consumer.receive(timeout_millis=1000))
        txn = await self._client.new_transaction(timeout_ms=20_000)
        try:
            for order in orders:
                await producer.send(b"invoice " + order.data(), txn=txn)
                await consumer.acknowledge(order, txn)
                if at_half is not None:
                    at_half()
                    at_half = None
        except (ClientError, PulsarError):
            with suppress(ClientError, PulsarError):
                await txn.abort()
            raise
        with suppress(TransactionOutcomeUnknown):  # acknowledged messages are not redelivered
            await txn.commit()
        return False


async def _closed(part: Consumer | Producer) -> None:
    with suppress(ClientError, PulsarError):  # its broker may be dead
        await part.close()


@pytest.fixture(params=range(2))
def cluster(request: Any) -> Iterator[TxnCluster]:
    cluster = TxnCluster(request.param)
    yield cluster
    cluster.close()


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["of the orders", "of the invoices", "of the coordinator"])
def test_exactly_once_holds_while_a_broker_dies(cluster: TxnCluster, dies: str) -> None:
    one, two, three = (cluster.start(name) for name in ("one", "two", "three"))
    orders, invoices = cluster.topic_of(one), cluster.topic_of(two)
    cluster.serve_coordinator(three)
    dying: TxnBroker = {"orders": one, "invoices": two, "coordinator": three}[dies.split()[-1]]
    asked = next(each for each in (one, two, three) if each is not dying)
    pipeline = Pipeline(cluster, cluster.client_at(asked), orders, invoices)
    cluster.call(pipeline.fill())
    cluster.call(pipeline.run(at_half=lambda: cluster.crash(dying)))
    found = cluster.call(cluster.read(asked, invoices))
    assert sorted(found) == sorted(b"invoice %d" % number for number in range(MESSAGES))


def test_a_producer_goes_on_at_the_next_broker_and_nothing_is_lost(cluster: TxnCluster) -> None:
    one, two = cluster.start("one"), cluster.start("two")
    topic = cluster.topic_of(two)
    client = cluster.client_at(one)

    async def publish() -> list[bytes]:
        kept = await client.subscribe(topic, "kept", initial_position=InitialPosition.Earliest)
        producer = await client.create_producer(topic)
        sent = []
        for number in range(20):
            if number == 10:
                cluster.crash(two)
            await producer.send(b"%d" % number)
            sent.append(b"%d" % number)
        received = [(await kept.receive(timeout_millis=20_000)).data() for _ in sent]
        return list(dict.fromkeys(received))

    assert cluster.call(publish()) == [b"%d" % number for number in range(20)]
    assert one.ownership.owns(TopicName.parse(topic))
