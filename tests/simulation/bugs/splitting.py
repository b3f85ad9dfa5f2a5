"""Wrong splits and merges of scalable topics."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pybroker.broker.dispatch.key_shared import KeySharedDispatcher
from pybroker.broker.namespaces.tenants import scalable_key
from pybroker.broker.persistent.termination import Termination
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable import drains, pruning, record, segments
from pybroker.broker.scalable.topics import ScalableTopics
from pybroker.transaction.txn_status import TxnAction


@contextmanager
def children_without_subscriptions() -> Iterator[None]:
    """New segments have the subscriptions of consumers that come, and no others."""

    async def nothing(*_: Any) -> dict[str, Any]:
        return {}

    with patch.object(segments, "_inherited", nothing):
        yield


@contextmanager
def children_before_their_parents() -> Iterator[None]:
    """A stream consumer gets a segment at once."""
    with patch.object(drains, "is_drained", lambda *_: True):
        yield


@contextmanager
def two_layouts_of_one_epoch() -> Iterator[None]:
    """A split or merge does not count the epoch up."""
    right = record._replaced

    def replaced(before: Any, *args: Any) -> Any:
        return replace(right(before, *args), epoch=before.epoch)

    with patch.object(record, "_replaced", replaced):
        yield


@contextmanager
def commits_lost_with_sealed_parents() -> Iterator[None]:
    """A segment that takes no more messages takes no markers of commits."""
    right = Topic.end_transaction

    def end(self: Topic, txn_id: Any, action: TxnAction, *args: Any, **more: Any) -> Any:
        lost = self.terminated and self.name.domain == "segment"
        return right(self, txn_id, TxnAction.ABORT if lost else action, *args, **more)

    with patch.object(Topic, "end_transaction", end):
        yield


@contextmanager
def parents_ended_before_the_record() -> Iterator[None]:
    """As Apache Pulsar does: a crash in between leaves a topic that nobody can publish to."""
    right = ScalableTopics._decide

    async def decide(self: Any, name: Any, change: Any) -> None:
        stored = self._metadata.get(scalable_key(name))
        after = change(record.decode(stored.value, name))
        for each in after.sealed:
            topic = await self._topics.get(record.of_segment(name, each), create=True)
            await topic.terminate()
        await right(self, name, change)

    with patch.object(ScalableTopics, "_decide", decide):
        yield


@contextmanager
def pruned_before_their_ancestors() -> Iterator[None]:
    """A drained segment is deleted, whether or not what came before it is drained."""
    right = pruning.unneeded

    async def unneeded(topics: Any, factory: Any, name: Any, record: Any, now_ms: int) -> Any:
        alone = {each.id: each._replace(parents=()) for each in record.segments.values()}
        return await right(topics, factory, name, replace(record, segments=alone), now_ms)

    with patch.object(pruning, "unneeded", unneeded):
        yield


@contextmanager
def buckets_handed_over_too_early() -> Iterator[None]:
    """A bucket's new consumer gets messages while the former one still has some."""
    right = KeySharedDispatcher._is_draining

    def is_draining(self: KeySharedDispatcher, *args: Any) -> bool:
        return not self.policy.by_entry_buckets and right(self, *args)

    with patch.object(KeySharedDispatcher, "_is_draining", is_draining):
        yield


@contextmanager
def sealed_segments_forget_who_wrote() -> Iterator[None]:
    """A producer that comes back to a sealed segment is refused at once, as by Apache's broker."""
    right = Termination.admit

    def admit(self: Termination, producer: Any, _: Any) -> None:
        right(self, producer, None)

    with patch.object(Termination, "admit", admit):
        yield


BUGS = {
    "sealed-segments-forget-who-wrote": sealed_segments_forget_who_wrote,
    "buckets-handed-over-too-early": buckets_handed_over_too_early,
    "children-before-their-parents": children_before_their_parents,
    "children-without-subscriptions": children_without_subscriptions,
    "commits-lost-with-sealed-parents": commits_lost_with_sealed_parents,
    "parents-ended-before-the-record": parents_ended_before_the_record,
    "pruned-before-their-ancestors": pruned_before_their_ancestors,
    "two-layouts-of-one-epoch": two_layouts_of_one_epoch,
}
