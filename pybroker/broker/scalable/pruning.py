"""When a sealed segment is no longer needed: it may be deleted with its messages.

It has ended, its children have begun, its retention time is over, nobody is connected, and every
subscription has acknowledged everything. Its ancestors go first: a subscription that is still
there, and has nothing to read here, must know that this segment's children come later.
"""

from managed_ledger.factory import ManagedLedgerFactory
from pybroker.base.names import TopicName
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import SegmentRecord, TopicRecord, of_segment
from pybroker.broker.scalable.segments import LoadsTopics, has_begun


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
    if now_ms < segment.sealed_ms + topic.retention_ms:
        return False
    return not any(each.backlog for each in topic.subscriptions.values())
