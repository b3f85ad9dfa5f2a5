"""Changes of partitioned topics: more partitions, subscribed like the first one; properties."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST
from managed_ledger.storage.backend import KeyAt
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.brokers.ownership import Ownership, take_all
from pybroker.broker.namespaces.tenants import Conflict, ImpossibleGrowth, Tenants, first
from pybroker.broker.namespaces.usable_names import check_last_partition
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.subscription import Subscription

# How the names of other cursors of a topic's ledger begin, which Apache's brokers may have made.
_NO_SUBSCRIPTIONS: Final = ("pulsar.dedup", "pulsar.repl.", "__compaction")
_LOOKS_A_TURN: Final = 500  # checks whether a partition has a subscription


class _Topics(Protocol):
    tenants: Tenants
    ownership: Ownership

    def check_not_migrated(self, name: TopicName) -> None: ...
    async def refuse_migration(self, name: TopicName) -> None: ...
    async def unless_migrated(
        self, name: TopicName, decide: Callable[[KeyAt | None], Awaitable[None]]
    ) -> None: ...
    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...
    async def settled(self, name: TopicName) -> None: ...
    async def change(self, name: TopicName, work: Coroutine[Any, Any, None]) -> None: ...


Change = Callable[[Mapping[str, str]], Mapping[str, str]]
# Decides about the record of a topic as it is then; the condition must hold when that is written.
Work = Callable[[KeyAt | None], Coroutine[Any, Any, None]]


class PartitionedTopics:
    """Part of `Topics`, which creates and deletes them."""

    def __init__(
        self, topics: _Topics, factory: ManagedLedgerFactory, config: BrokerConfig
    ) -> None:
        self._topics = topics
        self._factory = factory
        self._config = config

    async def grow(self, name: TopicName, partitions: int) -> None:
        """When this returns, all partitions have the first partition's subscriptions. On new
        partitions they begin at the first message, so that messages published before consumers
        notice the partition are not lost. Requests for the number of partitions wait meanwhile. May
        be repeated.
        """
        await self._check_growth(name, partitions)
        await take_all(self._topics.ownership, map(name.partition_at, range(partitions)))
        await self._check_growth(name, partitions)  # it may have changed meanwhile

        async def work(only_while: KeyAt | None) -> None:
            await self._grown_record(name, partitions, only_while)
            await _subscribe(self._topics, self._factory, name, partitions)

        await self._change(name, work)

    async def declare(self, name: TopicName, partitions: int) -> None:
        """Sets the number only: other brokers create the subscriptions on their partitions."""
        await self._check_growth(name, partitions)
        await self._change(name, partial(self._grown_record, name, partitions))

    async def _check_growth(self, name: TopicName, partitions: int) -> None:
        await self._topics.settled(name)
        self._topics.check_not_migrated(name)
        _check_growth(self._topics.tenants, self._config, name, partitions)

    async def _grown_record(
        self, name: TopicName, partitions: int, only_while: KeyAt | None
    ) -> None:
        tenants = self._topics.tenants
        _check_growth(tenants, self._config, name, partitions)
        await tenants.set_partitions(name, partitions, only_while=only_while)

    async def are_subscribed(self, name: TopicName, new: range) -> bool:
        """Whether the partitions `new` have the durable subscriptions of the first, wherever they
        are served, as far as this broker knows the metadata.
        """
        kept = [
            cursor
            for cursor in self._factory.cursor_names(name.partition_at(0).ledger_name)
            if not cursor.startswith(_NO_SUBSCRIPTIONS)
        ]
        pace = Pace(_LOOKS_A_TURN)
        for index in new:
            ledger = name.partition_at(index).ledger_name
            if not all(self._factory.has_cursor(ledger, cursor) for cursor in kept):
                return False
            await pace.step(len(kept))
        return True

    async def doom(self, name: TopicName, only_while: KeyAt | None = None) -> None:
        """Lets no broker recreate a partition that is to be deleted. Raises TopicNotFound;
        MadeScalable for a part of a scalable topic, which is deleted with that.
        """
        tenants = self._topics.tenants
        await self._topics.settled(name)
        self._topics.check_not_migrated(name)
        if not tenants.partitions(name) and not tenants.doomed_partitions(name):
            raise TopicNotFound(f"{name} is not a partitioned topic")
        if only_while is None:
            await self._topics.unless_migrated(
                name, lambda at: self._topics.change(name, tenants.doom_partitions(name, at))
            )
        else:
            await self._topics.refuse_migration(name)
            await self._topics.change(name, tenants.doom_partitions(name, only_while))

    async def change_properties(self, name: TopicName, change: Change) -> None:
        """Raises Conflict if the topic is not partitioned."""
        tenants = self._topics.tenants

        async def work(only_while: KeyAt | None) -> None:
            if not (partitions := tenants.partitions(name)):
                raise Conflict(f"{name} is not a partitioned topic")
            properties = change(tenants.partitioned_properties(name))
            await tenants.set_partitions(name, partitions, properties, only_while)

        await self._topics.settled(name)
        await self._change(name, work)

    async def create(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        """Raises Conflict if the topic has partitions."""
        tenants = self._topics.tenants

        async def work(only_while: KeyAt | None) -> None:
            if tenants.partitions(name):
                raise Conflict(f"{name} exists already")
            await tenants.set_partitions(name, partitions, properties, only_while)

        check_last_partition(name, partitions)
        await self._change(name, work)

    async def _change(self, name: TopicName, work: Work) -> None:
        """`work` begins again, on what is there by then, if it raises BadVersion."""
        with first(str(name)):
            await self._topics.unless_migrated(name, lambda at: self._topics.change(name, work(at)))


def _check_growth(tenants: Tenants, config: BrokerConfig, name: TopicName, partitions: int) -> None:
    """Raises Conflict if the topic has no partitions, ImpossibleGrowth for fewer than it has or too
    many.
    """
    now, most = tenants.partitions(name), config.max_num_partitions_per_partitioned_topic
    if not now:
        raise Conflict(f"{name} is not a partitioned topic")
    if not now <= partitions <= most:
        raise ImpossibleGrowth(
            f"{name} has {now} partitions; the number can only grow, up to {most}"
        )
    check_last_partition(name, partitions)


async def _subscribe(
    topics: _Topics, factory: ManagedLedgerFactory, name: TopicName, partitions: int
) -> None:
    """The first partition's durable subscriptions are on all partitions when this returns."""
    first_part = name.partition_at(0)
    if not factory.exists(first_part.ledger_name):
        return  # there are no subscriptions yet
    topic = await topics.get(first_part)
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
