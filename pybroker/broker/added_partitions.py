"""Adds partitions to a topic, with its subscriptions."""

from typing import Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.namespaces.tenants import Conflict, ImpossibleGrowth, Tenants
from pybroker.broker.namespaces.usable_names import check_last_partition
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.subscription import Subscription

# How the names of other cursors of a topic's ledger begin, which Apache's brokers may have made.
_NO_SUBSCRIPTIONS: Final = ("pulsar.dedup", "pulsar.repl.", "__compaction")
_LOOKS_A_TURN: Final = 500  # checks whether a partition has a subscription


class _Topics(Protocol):
    tenants: Tenants

    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...


def check_growth(tenants: Tenants, config: BrokerConfig, name: TopicName, partitions: int) -> None:
    """Raises Conflict, ImpossibleGrowth."""
    now, most = tenants.partitions(name), config.max_num_partitions_per_partitioned_topic
    if not now:
        raise Conflict(f"{name} is not a partitioned topic")
    if not now <= partitions <= most:
        raise ImpossibleGrowth(
            f"{name} has {now} partitions; the number can only grow, up to {most}"
        )
    check_last_partition(name, partitions)


async def have_all_subscriptions(
    factory: ManagedLedgerFactory, name: TopicName, new: range
) -> bool:
    """Whether the partitions `new` have the durable subscriptions of the first, as far as this
    broker knows the metadata.
    """
    kept = [
        cursor
        for cursor in factory.cursor_names(name.partition_at(0).ledger_name)
        if not cursor.startswith(_NO_SUBSCRIPTIONS)
    ]
    pace = Pace(_LOOKS_A_TURN)
    for index in new:
        ledger = name.partition_at(index).ledger_name
        if not all(factory.has_cursor(ledger, cursor) for cursor in kept):
            return False
        await pace.step(len(kept))
    return True


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
