"""The assignors of KIP-848 on the broker: which member gets which partitions.

Both are pure and keep what they can: `uniform` gives each member as many partitions as the others
and takes as few away as possible; `range` gives the members of a topic consecutive partitions, so
that equally partitioned topics are read side by side.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.kafka.offsets.records import TopicPartition

# Bounds of the work for members with different subscriptions, in one turn of the loop.
_MOST_COMPARISONS: Final = 1_000_000
_MOST_MOVES: Final = 200

Subscriptions = Mapping[str, frozenset[str]]  # topics by member id
Partitions = Mapping[str, int]  # how many a topic has
Assignment = dict[str, frozenset[TopicPartition]]  # by member id
Assignor = Callable[
    [Subscriptions, Partitions, Mapping[str, frozenset[TopicPartition]]], Assignment
]


def uniform(
    subscriptions: Subscriptions,
    partitions: Partitions,
    current: Mapping[str, frozenset[TopicPartition]],
) -> Assignment:
    """Members keep what they have, up to their share; the rest goes to who has least."""
    everything = _all(subscriptions, partitions)
    kept = {
        member: {each for each in current.get(member, ()) if _may(subscriptions, member, each)}
        & everything
        for member in sorted(subscriptions)
    }
    _shed(kept, subscriptions, len(everything))
    taken = {each for some in kept.values() for each in some}
    free = sorted(everything - taken)
    if len(set(subscriptions.values())) == 1:
        _fill(kept, free)
    elif len(free) * len(kept) > _MOST_COMPARISONS:
        return ranges(subscriptions, partitions, current)
    else:
        for place in free:
            able = [member for member in kept if place.topic in subscriptions[member]]
            kept[min(able, key=lambda member: (len(kept[member]), member))].add(place)
        _level(kept, subscriptions)
    return {member: frozenset(some) for member, some in kept.items()}


def _fill(kept: dict[str, set[TopicPartition]], free: list[TopicPartition]) -> None:
    """Each partition goes to a member with the fewest."""
    by_size = [(len(some), member) for member, some in kept.items()]
    heapq.heapify(by_size)
    for place in free:
        size, member = by_size[0]
        kept[member].add(place)
        heapq.heapreplace(by_size, (size + 1, member))


def _may(subscriptions: Subscriptions, member: str, place: TopicPartition) -> bool:
    return place.topic in subscriptions[member]


def _all(subscriptions: Subscriptions, partitions: Partitions) -> set[TopicPartition]:
    return {
        TopicPartition(topic, index)
        for topic in _topics_of(subscriptions)
        for index in range(partitions.get(topic, 0))
    }


def _topics_of(subscriptions: Subscriptions) -> frozenset[str]:
    """Most members subscribe to the same."""
    return frozenset().union(*set(subscriptions.values()))


def _shed(kept: dict[str, set[TopicPartition]], subscriptions: Subscriptions, count: int) -> None:
    """Take from members what exceeds an equal share: some may have one more than others."""
    if not kept or len(set(subscriptions.values())) > 1:
        return  # shares depend on the subscriptions: `_level` evens them out
    share, over = divmod(count, len(kept))
    for member in sorted(kept, key=lambda each: (-len(kept[each]), each)):
        most = share + (1 if over > 0 else 0)
        if len(kept[member]) > share:
            over -= 1
        for place in sorted(kept[member])[most:]:
            kept[member].discard(place)


def _level(kept: dict[str, set[TopicPartition]], subscriptions: Subscriptions) -> None:
    """Move partitions from who has most to who has least, as far as their subscriptions allow."""
    for _ in range(min(_MOST_MOVES, sum(map(len, kept.values())))):
        if not _move_one(kept, subscriptions):
            return


def _move_one(kept: dict[str, set[TopicPartition]], subscriptions: Subscriptions) -> bool:
    by_size = sorted(kept, key=lambda member: (len(kept[member]), member))
    for poor in by_size:
        for rich in reversed(by_size):
            if len(kept[rich]) - len(kept[poor]) < 2:
                break
            movable = [each for each in kept[rich] if each.topic in subscriptions[poor]]
            if movable:
                place = max(movable)
                kept[rich].discard(place)
                kept[poor].add(place)
                return True
    return False


def ranges(
    subscriptions: Subscriptions,
    partitions: Partitions,
    current: Mapping[str, frozenset[TopicPartition]],
) -> Assignment:
    """Consecutive partitions of each topic, the first members having one more."""
    found: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    for topic in sorted(_topics_of(subscriptions)):
        if not partitions.get(topic):
            continue
        members = sorted(member for member in subscriptions if topic in subscriptions[member])
        share, over = divmod(partitions.get(topic, 0), len(members))
        first = 0
        for at, member in enumerate(members):
            size = share + (at < over)
            found[member] |= {TopicPartition(topic, first + each) for each in range(size)}
            first += size
    return {member: frozenset(some) for member, some in found.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}
DEFAULT: Final = "uniform"
