"""Makes an ordinary topic a scalable one, while clients of the V5 SDK use it.

    announced    with several brokers: a key; see below
    the record   the decision: the topic, or each of its partitions, is a sealed segment over all
                 hashes; new segments come after all of them
    carried out  like a split: the new ones begin with all subscriptions, clients hear of the
                 layout, and the ordinary topics are terminated

With several brokers, the record also moves all parts to the broker of the scalable topic: see
parts.py. Another one may delete the topic, or change its partitions, at the same time. The record
is written only while the announcement is there, and those decisions only while it is not: so one of
the two comes first, and the other is refused. Whoever finds an announcement without a record, which
a dead broker may have left, removes it and goes on (`Topics.unless_migrated`).

Clients of 4.x cannot follow: with `force` their producers are told that the topic was terminated,
and their consumers get what is stored. Source: PIP-475.
"""

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt, MetadataStore
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName, any_topic
from pybroker.base.runtime import Clock
from pybroker.broker.brokers.ownership import ALONE, check_owned
from pybroker.broker.brokers.parts_elsewhere import Attached, Stranger
from pybroker.broker.namespaces.tenants import (
    Conflict,
    migration_key,
    partitions_key,
    scalable_key,
)
from pybroker.broker.namespaces.usable_names import refuse_internal
from pybroker.broker.scalable.parts import cannot_follow
from pybroker.broker.scalable.record import TopicRecord, migrated, ordinary_parts
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.scalable.topics import ScalableTopics


class Migration:
    def __init__(
        self, topics: ServesTopics, scalable: ScalableTopics, metadata: MetadataStore, clock: Clock
    ) -> None:
        self._topics = topics
        self._scalable = scalable
        self._metadata = metadata
        self._clock = clock

    async def migrate(self, name: TopicName, force: bool = False) -> TopicRecord:
        """`name` is that of the new scalable topic. Raises TopicNotFound, NotAllowed, BadSegments,
        NotServedHere; Conflict if the topic is scalable already, or in use by other clients without
        `force`; ServiceNotReady if another broker does not answer: if it was decided by then, the
        topic's next use carries it out, also the next call.
        """
        any_topic(str(name))  # its segments' names are longer than the topic's
        refuse_internal(name)
        ordinary = name._replace(domain="persistent")
        partitions = await self._found(name, ordinary)
        if self._scalable.is_begun(name):
            await self._scalable.settled(name)
            return await self._scalable.sealed(name)
        others = self._topics.others_of_parts
        elsewhere = [] if others is None else await others.attached(name)
        async with self._topics.room.for_more(name, 0):
            with self._scalable.noting(name, "migrate", "manual", ()):
                self._check_there(ordinary, partitions)
                await self._topics.settled(ordinary)  # it may be unloaded just now
                deciding = self._decide(name, partitions, force, elsewhere)
                await self._topics.change(ordinary, deciding)
                await self._scalable.settled(name)
        return await self._scalable.sealed(name)

    async def _found(self, name: TopicName, ordinary: TopicName) -> int:
        """The number of partitions; 0 of a topic that has none. Raises TopicNotFound."""
        topics = self._topics
        if topics.ownership is ALONE:
            await topics.settled(ordinary)
            partitions = topics.tenants.partitions(ordinary)
            for part in ordinary_parts(name, partitions):
                if await topics.get(part, create=partitions > 0) is None:
                    raise TopicNotFound(f"{ordinary} does not exist")
            return partitions
        check_owned(topics.ownership, name)
        await topics.ownership.refreshed()  # another broker may have just created or deleted it
        partitions = topics.tenants.partitions(ordinary)
        if not partitions and not topics.exists(ordinary):
            raise TopicNotFound(f"{ordinary} does not exist")
        return partitions

    def _check_there(self, ordinary: TopicName, partitions: int) -> None:
        """Raises Conflict if the ordinary topic is not what it was found to be."""
        topics = self._topics
        is_there = bool(partitions) or topics.exists(ordinary)
        found = topics.tenants.partitions(ordinary)
        if topics.deletions.concerns(ordinary) or found != partitions or not is_there:
            raise _changed(ordinary)

    async def _decide(
        self, name: TopicName, partitions: int, force: bool, elsewhere: list[Attached]
    ) -> None:
        ordinary, tenants = name._replace(domain="persistent"), self._topics.tenants
        only_while = await self._announced(ordinary, partitions)
        check_owned(self._topics.ownership, name)
        tenants.check_takes_topics(name.namespace_name)
        if self._scalable.find(name) is not None:
            raise Conflict(f"{name} exists already", "delete it first, or use another name")
        self._check_there(ordinary, partitions)
        here = self._scalable.parts.attached(name)
        if not force and (found := cannot_follow([here, *elsewhere])) is not None:
            raise _in_use(found)
        properties = tenants.partitioned_properties(ordinary) if partitions else {}
        limits = self._scalable.bucket_limits
        record = migrated(name, partitions, self._clock.now_ms(), properties, limits)
        try:
            key, value = scalable_key(name), record.encode()
            await self._metadata.put(key, value, -1, only_while=only_while)
        except BadVersion:
            raise _changed(ordinary) from None

    async def _announced(self, ordinary: TopicName, partitions: int) -> KeyAt | None:
        """The condition that nothing else is decided about the topic until the record is written.
        What was decided before is known when it returns. Raises Conflict, ServiceNotReady.
        """
        topics = self._topics
        if topics.others_of_parts is None:
            key = partitions_key(ordinary)
            stored = self._metadata.get(key) if partitions else None
            return None if stored is None else KeyAt(key, stored.version)
        key = migration_key(ordinary)
        try:
            announced = KeyAt(key, await self._metadata.put(key, b"{}"))
        except BadVersion:
            raise _changed(ordinary) from None
        await topics.ownership.refreshed()
        return announced


def _changed(ordinary: TopicName) -> Conflict:
    return Conflict(f"{ordinary} was changed meanwhile", "try again")


def _in_use(found: Stranger) -> Conflict:
    return Conflict(
        f"{found.topic} cannot be made scalable now: {found.what}",
        "close it, or use force: then its producers are told that the topic was terminated, and "
        "its consumers get nothing that is published from now on",
    )
