"""The other brokers that serve, or served, parts of an ordinary topic that is made scalable.

    before   each says which of its clients cannot follow
    decided  the record: from now on all parts are in the scalable topic's bundle, and nobody else
             loads one
    leave    each closes what it has still loaded; it has read the record by then

Only after that does the topic's new broker open a part. A broker that is dead by then cannot write:
opening a log fences whoever had it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.shared_task import shared_task
from pybroker.base.names import TopicName
from pybroker.broker.brokers.parts_elsewhere import Attached, Stranger
from pybroker.broker.client_topics import used_by_kafka
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import TopicRecord, ordinary_parts
from pybroker.broker.scalable.segments import is_in_place
from pybroker.broker.scalable.serving import ServesTopics
from pybroker.broker.subscriptions.consumer import Consumer

_V5: Final = "__pulsar.v5.managed"  # a property of the V5 SDK's producers and consumers
_KNOWN: Final = 10_000
GroupsOf = Callable[[TopicName], Iterable[tuple[str, str]]]


def attached(parts: Iterable[Topic], members: Iterable[tuple[str, str]]) -> Attached:
    """`parts`: those that are in memory here. One that was unloaded has no clients."""
    strangers = (each for topic in parts for each in _strangers(topic))
    return Attached(tuple(strangers), tuple(members))


def _strangers(topic: Topic) -> Iterable[Stranger]:
    if used_by_kafka(topic):
        yield Stranger(str(topic.name), "Kafka's clients use or have used it")
    for producer in topic.producers.all():
        if not producer.properties.get(_V5):
            yield _not_v5(topic, f"producer {producer.name}")
    for subscription in topic.subscriptions.values():
        for consumer in subscription.consumers:
            if not consumer.request.properties.get(_V5):
                yield _not_v5(topic, *_called(consumer, subscription.name))


def _called(consumer: Consumer, subscription: str) -> tuple[str, str, str]:
    return f"consumer {consumer.name} of {subscription}", subscription, consumer.name


def _not_v5(topic: Topic, who: str, subscription: str = "", consumer: str = "") -> Stranger:
    said = f"{who} is not one of the V5 SDK"
    return Stranger(str(topic.name), said, subscription, consumer)


def cannot_follow(everywhere: Iterable[Attached]) -> Stranger | None:
    """One of the clients that cannot, if there are any. The SDK's stream consumers have no such
    property on segments that were assigned to them, but the names of their group's members, with
    the number of the segment; the group may be on another broker than the segment.
    """
    everywhere = list(everywhere)
    groups: dict[str, set[str]] = {}
    for each in everywhere:
        for subscription, name in each.members:
            groups.setdefault(subscription, set()).add(name)
    for each in everywhere:
        for stranger in each.strangers:
            name, marked, _ = stranger.consumer.rpartition("-seg-")
            if not (marked and name in groups.get(stranger.subscription, ())):
                return stranger
    return None


class Records(Protocol):
    members_of: GroupsOf

    def find(self, name: TopicName) -> TopicRecord | None: ...


class Parts:
    """The parts of topics that were made scalable, and of those that may be."""

    def __init__(
        self, topics: ServesTopics, scalable: Records, factory: ManagedLedgerFactory
    ) -> None:
        self._topics = topics
        self._scalable = scalable
        self._factory = factory
        self.freed_of: set[TopicName] = set()  # scalable topics whose parts no other broker has
        self._leaving: dict[TopicName, asyncio.Task[None]] = {}

    def attached(self, name: TopicName) -> Attached:
        """The clients that this broker has of the ordinary topic with `name`'s name."""
        ordinary = name._replace(domain="persistent")
        parts = ordinary_parts(name, self._topics.tenants.partitions(ordinary))
        loaded = filter(None, map(self._topics.serving, parts))
        return attached(loaded, self._scalable.members_of(ordinary))

    async def freed(self, name: TopicName) -> None:
        """Call before a part of the scalable topic `name` is loaded, or deleted: when it returns,
        no other broker has one loaded. Raises ServiceNotReady.
        """
        record = self._scalable.find(name)
        others = None if name in self.freed_of else self._topics.others_of_parts
        if others is None or record is None or record.partitions is None:
            return
        if not is_in_place(self._factory, name, record):
            if name not in self._leaving:
                task = self._leaving[name] = shared_task(others.leave(name))
                task.add_done_callback(lambda _: self._leaving.pop(name))
            await asyncio.shield(self._leaving[name])
        if len(self.freed_of) >= _KNOWN:
            self.freed_of.clear()
        self.freed_of.add(name)

    def forget(self, name: TopicName) -> None:
        self.freed_of.discard(name)
