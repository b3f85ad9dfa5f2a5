"""A segment's topic: an ordinary persistent topic, which begins and ends as the record says.

A child begins with all durable subscriptions of its parents, each at its first message, whether or
not their consumers are there. It serves nobody before that, and remembers that it was done.

Differs: Apache Pulsar gives children only the subscriptions that its controller knows, so a queue
consumer that is away during a split loses what is published meanwhile.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, Position
from pybroker.base.errors import TopicNotFound
from pybroker.base.names import TopicName
from pybroker.broker.persistent.termination import TERMINATED
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.record import SegmentRecord, TopicRecord, of_segment
from pybroker.broker.subscriptions import isolation
from pybroker.broker.subscriptions.beginnings import begin_after
from pybroker.broker.subscriptions.subscription import Subscription

_BEGUN: Final = "segment.begun"  # a property of its ledger


class Records(Protocol):
    def find(self, name: TopicName) -> TopicRecord | None: ...
    def segment(self, name: TopicName) -> SegmentRecord | None: ...


class LoadsTopics(Protocol):
    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...


def has_begun(factory: ManagedLedgerFactory, name: TopicName) -> bool:
    return _BEGUN in factory.properties(name.ledger_name)


def is_in_place(factory: ManagedLedgerFactory, name: TopicName, record: TopicRecord) -> bool:
    """Whether all that the record of the topic `name` says is carried out, except for the end of
    sealed segments.
    """
    children = (of_segment(name, each) for each in record.active if each.parents)
    return all(has_begun(factory, each) for each in children)


def is_over(factory: ManagedLedgerFactory, name: TopicName) -> bool:
    """Whether it takes no more messages."""
    return TERMINATED in factory.properties(name.ledger_name)


async def loaded(topics: LoadsTopics, records: Records, topic: Topic) -> None:
    """Call before the topic serves anybody. Raises TopicNotFound if its segment is gone."""
    segment = records.segment(topic.name)
    if segment is None:
        raise TopicNotFound(f"{topic.name} is no segment: look up its topic again")
    if segment.parents and _BEGUN not in topic.ledger.properties:
        for name, properties in (await _inherited(topics, records, topic.name, segment)).items():
            await _subscribe(topic, name, properties)
        await topic.ledger.set_property(_BEGUN, "true")
    if segment.sealed and not topic.terminated:
        await topic.terminate()


async def _inherited(
    topics: LoadsTopics, records: Records, name: TopicName, segment: SegmentRecord
) -> dict[str, Mapping[str, str]]:
    """The durable subscriptions of the parents, with their properties."""
    found: dict[str, Mapping[str, str]] = {}
    record = records.find(name.scalable_name)
    parents = [] if record is None else [record.segment(number) for number in segment.parents]
    for parent in parents:
        topic = await topics.get(of_segment(name.scalable_name, parent), create=True)
        assert topic is not None
        for each in topic.subscriptions.values():
            if each.durable:
                found.setdefault(each.name, each.cursor.properties)
    return found


async def _subscribe(topic: Topic, name: str, properties: Mapping[str, str]) -> None:
    """No policy limits what is inherited: otherwise the segment could never begin."""
    if name in topic.subscriptions:
        return
    kept = dict(properties)
    start = begin_after(topic, EARLIEST, isolation.kept_in(kept))
    cursor = await topic.ledger.open_cursor(name, start, kept)
    topic.subscriptions[name] = await Subscription.open(topic, cursor)


async def subscribed(
    topics: LoadsTopics,
    factory: ManagedLedgerFactory,
    records: Records,
    topic: Topic,
    subscription: Subscription,
    start: Position | None,
    late: bool,
) -> None:
    """Call when a durable subscription was asked for on a segment: its descendants have it, too,
    before anything else can be published there. `late`: the segment was sealed before, or it had
    the subscription, which nobody has been told if its children do not. Then it begins there as was
    asked for; otherwise it had begun before them.

    The last descendants come first: a segment whose children have it has no others to give it to.
    """
    segment, whole = records.segment(topic.name), topic.name.scalable_name
    record = records.find(whole)
    if segment is None or record is None:
        return
    children = [of_segment(whole, record.segments[number]) for number in segment.children]
    if all(factory.has_cursor(each.ledger_name, subscription.name) for each in children):
        return
    begins = start if late else EARLIEST
    for number in sorted(record.descendants(segment), reverse=True):
        child = await topics.get(of_segment(whole, record.segments[number]), create=True)
        assert child is not None
        properties = dict(subscription.cursor.properties)
        await child.subscription(subscription.name, begins, properties, create=True)
