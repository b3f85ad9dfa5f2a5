"""Which offsets of a group have expired.

Those of a group without members expire some time after it lost the last one, or after their commit;
those of a group with members only if it does not subscribe to their topic any more. A group without
members, offsets and pending offsets is gone, but not a share group that may have positions. Source:
KIP-211.
"""

from itertools import islice
from typing import Final

from pybroker.kafka.groups.consumer_protocol import subscribed_topics
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.offsets.records import GoneRecord, Record, RemoveRecord, TopicPartition
from pybroker.kafka.offsets.state import OffsetsState

_AT_ONCE: Final = 1000


def expired(
    state: OffsetsState,
    group_id: str,
    has_members: bool,
    now_ms: int,
    retention_ms: int,
    read_now: frozenset[str] | None = None,
) -> Record | None:
    """The record that removes what has expired; at most 1,000 offsets. `read_now`: the topics of
    the members, if the stored group does not say them.
    """
    if state.has_pending(group_id):
        return None
    stored = state.groups.get(group_id)
    subscribed: frozenset[str] | None = frozenset()
    since_ms = 0
    if has_members:
        subscribed = read_now
        if subscribed is None and stored is not None:
            subscribed = subscribed_topics(stored)
        if subscribed is None:
            return None
    elif stored is not None:
        since_ms = stored.since_ms
    gone = _removable(state, group_id, subscribed or frozenset(), since_ms, now_ms - retention_ms)
    if gone:
        return RemoveRecord(group_id, gone)
    if stored is not None and stored.kind is GroupKind.SHARE and stored.protocol:
        return None  # its subscriptions are found by what is stored
    is_over = not has_members and not state.of(group_id) and since_ms < now_ms - retention_ms
    return GoneRecord(group_id) if is_over else None


def _removable(
    state: OffsetsState, group_id: str, subscribed: frozenset[str], since_ms: int, before_ms: int
) -> tuple[TopicPartition, ...]:
    found = (
        place
        for place, each in state.of(group_id).items()
        if place.topic not in subscribed and max(each.committed_ms, since_ms) < before_ms
    )
    return tuple(islice(found, _AT_ONCE))
