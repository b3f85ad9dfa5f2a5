"""When a sealed segment is no longer needed: it may be deleted with its messages.

It has ended, its children have begun, its retention time is over, nobody is connected, and every
subscription has acknowledged everything. With deduplication it stays for a while, so that producers
whose connection was lost can come back and learn what it has stored. Its ancestors go first: a
subscription that is still there, and has nothing to read here, must know that this segment's
children come later.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.backend import KeyAt
from pybroker.base.errors import PulsarError, TopicNotFound
from pybroker.base.names import SEGMENT, TopicName
from pybroker.base.runtime import Clock, Tasks
from pybroker.broker.deletion.deletions import Doomed
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import (
    SegmentRecord,
    TopicRecord,
    of_segment,
    ordinary_parts,
)
from pybroker.broker.scalable.segments import LoadsTopics, has_begun
from pybroker.broker.scalable.serving import ServesTopics

_PRUNE_EVERY_S: Final = 60.0
_COMEBACK_MS: Final = 60_000  # clients give a message up after 30 s, by default

log = logging.getLogger(__name__)


class Prunes(Protocol):
    async def settled(self, name: TopicName) -> TopicRecord: ...
    async def prune(self, name: TopicName, gone: Iterable[int]) -> TopicRecord: ...


class Pruner:
    """Deletes, from time to time, what is no longer needed of topics with sealed segments."""

    def __init__(
        self, scalable: Prunes, topics: ServesTopics, factory: ManagedLedgerFactory, clock: Clock
    ) -> None:
        self._scalable = scalable
        self._topics = topics
        self._factory = factory
        self._clock = clock
        self._with_sealed: dict[TopicName, None] = {}
        self._pruning = False
        self._tasks = Tasks("pruning")

    def add(self, name: TopicName) -> None:
        """The topic has sealed segments."""
        self._with_sealed[name] = None
        if not self._pruning:
            self._pruning = True
            self._tasks.start(self._prune_again(), "prune")

    def forget(self, name: TopicName) -> None:
        self._with_sealed.pop(name, None)

    async def close(self) -> None:
        await self._tasks.close()

    async def _prune_again(self) -> None:
        """While topics have sealed segments."""
        try:
            while self._with_sealed:
                await asyncio.sleep(_PRUNE_EVERY_S)
                for name in list(self._with_sealed):
                    if name in self._with_sealed:  # not deleted while another one was pruned
                        del self._with_sealed[name]
                        await self._prune_what_can_be(name)
        finally:
            self._pruning = False

    async def _prune_what_can_be(self, name: TopicName) -> None:
        try:
            if self._topics.ownership.owns(name):
                await self.prune_unneeded(name)
        except TopicNotFound:
            return  # deleted meanwhile
        except (PulsarError, ManagedLedgerError) as error:
            log.warning("%s is pruned later: %s", name, error)
            self._with_sealed[name] = None

    async def prune_unneeded(self, name: TopicName) -> list[int]:
        """Deletes the sealed segments that nobody needs any more; returns their numbers."""
        record, now_ms = await self._scalable.settled(name), self._clock.now_ms()
        if gone := await unneeded(self._topics, self._factory, name, record, now_ms):
            record = await self._scalable.prune(name, gone)
        if record.sealed:
            self._with_sealed[name] = None
        return gone


async def unneeded(
    topics: LoadsTopics,
    factory: ManagedLedgerFactory,
    name: TopicName,
    record: TopicRecord,
    now_ms: int,
) -> list[int]:
    """The numbers of the segments that can be pruned now."""
    found: list[int] = []
    for each in sorted(record.sealed):
        if set(each.parents).issubset(found) and _have_begun(factory, name, record, each):
            topic = await topics.get(of_segment(name, each), create=True)
            if topic is not None and _is_unneeded(topic, each, now_ms):
                found.append(each.id)
    return found


def _have_begun(
    factory: ManagedLedgerFactory, name: TopicName, record: TopicRecord, segment: SegmentRecord
) -> bool:
    """Whether no child will ask for this segment's subscriptions any more."""
    children = [record.segments[number] for number in segment.children if number in record.segments]
    return all(has_begun(factory, of_segment(name, each)) for each in children)


def _is_unneeded(topic: Topic, segment: SegmentRecord, now_ms: int) -> bool:
    if not topic.ended or topic.busy or topic.in_use or topic.retention_ms < 0:
        return False
    stays_ms = 0 if topic.deduplication is None else _COMEBACK_MS
    if now_ms < segment.sealed_ms + max(topic.retention_ms, stays_ms):
        return False
    return not any(each.backlog for each in topic.subscriptions.values())


async def delete_pruned(
    topics: ServesTopics,
    factory: ManagedLedgerFactory,
    name: TopicName,
    record: TopicRecord,
    at: KeyAt,
) -> None:
    """What is no longer in the record. What another broker has added to it meanwhile stays: then it
    is no longer `at` its version. Raises BadVersion.
    """
    prefix = name._replace(domain=SEGMENT).ledger_name + "/"
    kept = {of_segment(name, each) for each in record.segments.values()}
    names = map(TopicName.of_ledger, factory.names(prefix))
    gone = [each for each in names if each.partitioned_name == name and each not in kept]
    for each in gone:
        await topics.delete_all_of(Doomed(each), True, at)
    if record.partitions is not None:
        await _delete_ordinary(topics, factory, name, record.partitions, kept, at)


async def _delete_ordinary(
    topics: ServesTopics,
    factory: ManagedLedgerFactory,
    name: TopicName,
    partitions: int,
    kept: set[TopicName],
    at: KeyAt,
) -> None:
    """What is pruned of the topic that it was; the number of partitions goes with the last."""
    ordinary, parts = name._replace(domain="persistent"), ordinary_parts(name, partitions)
    if topics.tenants.partitions(ordinary) and kept.isdisjoint(parts):
        await topics.delete_all_of(Doomed(ordinary, partitions), True, at)
        return
    for each in parts:
        if each not in kept and factory.exists(each.ledger_name):
            await topics.delete_all_of(Doomed(each), True, at)
