"""Adds partitions to a topic, with its subscriptions."""

from typing import Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.subscription import Subscription
from pybroker.broker.tenants import Tenants
from pybroker.broker.topic import Topic

_LOOKS_A_TURN: Final = 500  # checks whether a partition has a subscription


class _Topics(Protocol):
    tenants: Tenants

    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...


async def grow(
    topics: _Topics, factory: ManagedLedgerFactory, name: TopicName, partitions: int
) -> None:
    """The first partition's durable subscriptions are on all partitions when this returns."""
    await topics.tenants.set_partitions(name, partitions)
    first = name.partition_at(0)
    if not factory.exists(first.ledger_name):
        return  # there are no subscriptions yet
    topic = await topics.get(first)
    assert topic is not None
    kept = [each for each in topic.subscriptions.values() if each.durable]
    pace = Pace(_LOOKS_A_TURN)
    for index in range(1, partitions) if kept else ():
        await _subscribe_to_all(topics, factory, name.partition_at(index), kept)
        await pace.step(len(kept))


async def _subscribe_to_all(
    topics: _Topics, factory: ManagedLedgerFactory, name: TopicName, kept: list[Subscription]
) -> None:
    for each in kept:
        if not factory.has_cursor(name.ledger_name, each.name):
            topic = await topics.get(name, create=True)
            assert topic is not None
            await topic.subscription(each.name, EARLIEST, dict(each.cursor.properties), True)
