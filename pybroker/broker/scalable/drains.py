"""Which sealed segments a subscription has drained: its consumers have acknowledged everything.

A stream consumer gets a segment only after all its ancestors are drained: so messages of one key
come in order across splits and merges. A transaction that is still open there keeps its segment.

Differs: Apache Pulsar gives a sealed segment away at once, so that after two splits in a row
messages of a key may overtake each other.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.scalable.layout import Layout, Segment

_A_TURN: Final = 200


class FindsTopics(Protocol):
    async def get(self, name: TopicName | str, create: bool = False) -> Topic | None: ...


def assignable(layout: Layout, drained: Iterable[int]) -> list[Segment]:
    """The segments whose ancestors are all drained."""
    passed, found = set(drained), []
    for each in layout.segments:
        if passed.issuperset(each.parents):
            found.append(each)
        else:
            passed.discard(each.id)  # what comes from it waits for its ancestors, too
    return found


def awaited(layout: Layout, drained: Iterable[int]) -> set[int]:
    """The segments that must be drained before others can be assigned."""
    return {number for each in layout.segments for number in each.parents}.difference(drained)


async def newly_drained(
    topics: FindsTopics, layout: Layout, subscription: str, numbers: Iterable[int]
) -> set[int]:
    """Those of the segments `numbers` that are drained now. A subscription that has not begun on a
    segment has not drained it.
    """
    wanted, found, pace = set(numbers), set(), Pace(_A_TURN)
    for each in layout.segments:
        await pace.step()
        topic = await topics.get(each.topic) if each.id in wanted else None
        if topic is not None and is_drained(topic, subscription):
            found.add(each.id)
    return found


def is_drained(topic: Topic, subscription: str) -> bool:
    found = topic.subscriptions.get(subscription)
    return topic.ended and found is not None and found.durable and not found.backlog
