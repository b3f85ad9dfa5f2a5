"""What consumers write about themselves in JoinGroup: which topics they subscribe to.

Source: ConsumerProtocolSubscription, of which every version begins with the topics.
"""

import struct
from collections.abc import Iterable
from typing import Final

from pybroker.kafka.groups.values import StoredGroup

CONSUMERS: Final = "consumer"  # the protocol type
_VERSION_AND_COUNT: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """None if it cannot be read: the group may then subscribe to anything."""
    try:
        _, count = _VERSION_AND_COUNT.unpack_from(metadata)
        at, topics = _VERSION_AND_COUNT.size, set()
        for _ in range(min(count, len(metadata))):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(metadata):
                return None
            topics.add(metadata[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def subscribed_topics(group: StoredGroup) -> frozenset[str] | None:
    """Of all members; None if it is not known."""
    if group.protocol_type != CONSUMERS:
        return None
    return _all(topics_of(each.metadata) for each in group.members)


def _all(of_members: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    topics: frozenset[str] = frozenset()
    for each in of_members:
        if each is None:
            return None
        topics |= each
    return topics
