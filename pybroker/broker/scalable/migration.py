"""Makes an ordinary topic a scalable one, while clients of the V5 SDK use it.

    the record   the decision: the topic, or each of its partitions, is a sealed segment over all
                 hashes; new segments come after all of them
    carried out  like a split: the new ones begin with all subscriptions, clients hear of the
                 layout, and the ordinary topics are terminated

Clients of 4.x cannot follow: with `force` their producers are told that the topic was terminated,
and their consumers get what is stored. Source: PIP-475.
"""

from collections.abc import Iterable
from typing import Final

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.base.names import TopicName, any_topic
from pybroker.base.runtime import Clock
from pybroker.broker.brokers.ownership import ALONE
from pybroker.broker.client_topics import used_by_kafka
from pybroker.broker.namespaces.tenants import Conflict, partitions_key, scalable_key
from pybroker.broker.namespaces.usable_names import refuse_internal
from pybroker.broker.scalable.record import TopicRecord, migrated, ordinary_parts
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.scalable.topics import ScalableTopics
from pybroker.broker.subscriptions.consumer import Consumer

_V5: Final = "__pulsar.v5.managed"  # a property of the V5 SDK's producers and consumers


class Migration:
    def __init__(
        self, topics: ServesTopics, scalable: ScalableTopics, metadata: MetadataStore, clock: Clock
    ) -> None:
        self._topics = topics
        self._scalable = scalable
        self._metadata = metadata
        self._clock = clock

    async def migrate(self, name: TopicName, force: bool = False) -> TopicRecord:
        """`name` is that of the new scalable topic. Raises TopicNotFound, NotAllowed, BadSegments;
        Conflict if the topic is scalable already, or in use by other clients without `force`.
        """
        any_topic(str(name))  # its segments' names are longer than the topic's
        refuse_internal(name)
        if self._topics.ownership is not ALONE:
            raise NotAllowed(
                f"{name}: with several brokers, topics cannot be made scalable: the partitions are "
                "served by several of them, and segments by one"
            )
        ordinary = name._replace(domain="persistent")
        await self._topics.settled(ordinary)
        partitions = self._topics.tenants.partitions(ordinary)
        for part in ordinary_parts(name, partitions):
            if await self._topics.get(part, create=partitions > 0) is None:
                raise TopicNotFound(f"{ordinary} does not exist")
        async with self._topics.room.for_more(name, 0):
            with self._scalable.noting(name, "migrate", "manual", ()):
                deciding = self._decide(name, partitions, force)
                await self._topics.change(ordinary, deciding)
                await self._scalable.settled(name)
        return await self._scalable.sealed(name)

    async def _decide(self, name: TopicName, partitions: int, force: bool) -> None:
        ordinary, tenants = name._replace(domain="persistent"), self._topics.tenants
        if self._topics.deletions.concerns(ordinary) or tenants.partitions(ordinary) != partitions:
            raise Conflict(f"{ordinary} was changed meanwhile", "try again")
        if self._scalable.find(name) is not None:
            raise Conflict(f"{name} exists already", "delete it first, or use another name")
        if not force:
            self._check_clients(name, partitions)
        properties = tenants.partitioned_properties(ordinary) if partitions else {}
        limits = self._scalable.bucket_limits
        record = migrated(name, partitions, self._clock.now_ms(), properties, limits)
        stored = self._metadata.get(partitions_key(ordinary)) if partitions else None
        only_while = None if stored is None else KeyAt(partitions_key(ordinary), stored.version)
        try:
            key, value = scalable_key(name), record.encode()
            await self._metadata.put(key, value, -1, only_while=only_while)
        except BadVersion:
            raise Conflict(f"{ordinary} was changed meanwhile", "try again") from None

    def _check_clients(self, name: TopicName, partitions: int) -> None:
        """Raises Conflict if there are clients that cannot follow."""
        for part in ordinary_parts(name, partitions):
            topic = self._topics.serving(part)
            if topic is None:
                continue  # it was unloaded, with all its clients
            if used_by_kafka(topic):
                raise _in_use(part, "Kafka's clients use or have used it")
            for producer in topic.producers.all():
                if not producer.properties.get(_V5):
                    raise _in_use(part, f"producer {producer.name} is not one of the V5 SDK")
            for subscription in topic.subscriptions.values():
                members = list(self._scalable.members(part.partitioned_name, subscription.name))
                for consumer in subscription.consumers:
                    if not _can_follow(consumer, members):
                        what = f"consumer {consumer.name} of {subscription.name}"
                        raise _in_use(part, f"{what} is not one of the V5 SDK")


def _can_follow(consumer: Consumer, members: Iterable[str]) -> bool:
    """The SDK's stream consumers have no such property on segments that were assigned to them, but
    the names of their group's members, with the number of the segment.
    """
    is_member = any(consumer.name.startswith(f"{each}-seg-") for each in members)
    return is_member or bool(consumer.request.properties.get(_V5))


def _in_use(part: TopicName, why: str) -> Conflict:
    return Conflict(
        f"{part} cannot be made scalable now: {why}",
        "close it, or use force: then its producers are told that the topic was terminated, and "
        "its consumers get nothing that is published from now on",
    )
