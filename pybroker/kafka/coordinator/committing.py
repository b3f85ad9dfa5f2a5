"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete, without their bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.base.names import TxnId
from pybroker.base.runtime import do_nothing
from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.coordinator.shard import Shard, non_empty
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.consumer_protocol import subscribed_topics
from pybroker.kafka.offsets.records import (
    CommitRecord,
    Committed,
    Offsets,
    RemoveRecord,
    TopicPartition,
)
from pybroker.kafka.offsets.state import cost_bytes

_GROUPS_A_TURN: Final = 100

Errors = Mapping[TopicPartition, ErrorCode]


class Committer(NamedTuple):
    """Who commits: a member in a generation, or nobody in particular."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1
    user: str = ""  # who owns the group, if it is new


class Wanted(NamedTuple):
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Fetched(NamedTuple):
    place: TopicPartition
    committed: Committed | None  # None: nothing was committed, or the error says why
    error: ErrorCode = ErrorCode.NONE


async def commit(
    coordinator: GroupCoordinator,
    group_id: str,
    committer: Committer,
    wanted: Mapping[TopicPartition, Wanted],
    txn_id: TxnId | None = None,
    still_open: Callable[[], object] = do_nothing,
) -> Errors:
    """Commit what may be committed; durable when this returns. With a transaction, the offsets are
    pending until its end: the group must be its participant already. `still_open` is called in the
    turn of the append, and may raise KafkaError. Raises KafkaError.
    """
    shard = await coordinator.shard_of(group_id)
    member_id, instance_id, generation, user = committer
    in_txn = txn_id is not None
    error = shard.may_commit(group_id, member_id, instance_id, generation, in_txn)
    if error is not ErrorCode.NONE:
        await shard.durable(group_id)
        return dict.fromkeys(wanted, error)
    errors = {place: _error(coordinator, each) for place, each in wanted.items()}
    now_ms, order = coordinator.clock.now_ms(), shard.log.next_order()
    offsets = tuple(
        (place, Committed(each.offset, each.leader_epoch, each.metadata, now_ms, order))
        for place, each in wanted.items()
        if errors[place] is ErrorCode.NONE
    )
    if offsets:
        still_open()
        _check_room(shard, group_id, user, offsets)
        shard.log.append(CommitRecord(group_id, offsets, txn_id))
        shard.log.note_owner(group_id, user)
        if txn_id is not None:
            shard.log.look_after_pending()
    await shard.durable(group_id)
    return errors


def _error(coordinator: GroupCoordinator, wanted: Wanted) -> ErrorCode:
    if len(wanted.metadata.encode()) > coordinator.limits.max_metadata_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _check_room(shard: Shard, group_id: str, user: str, offsets: Offsets) -> None:
    """A log that is full still takes what replaces offsets. Raises KafkaError."""
    known = shard.log.state.of(group_id)
    growth = sum(cost_bytes(place, each) for place, each in offsets)
    growth -= sum(cost_bytes(place, known[place]) for place, _ in offsets if place in known)
    if growth > 0:
        shard.check_room(group_id, user, growth)


async def fetch(
    coordinator: GroupCoordinator,
    group_id: str,
    places: Sequence[TopicPartition] | None,
    require_stable: bool,
) -> list[Fetched]:
    """The offsets of these partitions, or all. With `require_stable`, one that a transaction may
    still change is an error. Raises KafkaError.
    """
    shard = await coordinator.shard_of(group_id)
    await shard.durable(group_id)
    state = shard.log.state
    committed = state.of(group_id)
    asked: Iterable[TopicPartition] = list(committed) if places is None else places
    if not require_stable or not state.has_pending(group_id):
        return [Fetched(place, committed.get(place)) for place in asked]
    return [
        Fetched(place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if state.is_pending(group_id, place)
        else Fetched(place, committed.get(place))
        for place in asked
    ]


async def delete_offsets(
    coordinator: GroupCoordinator, group_id: str, places: Sequence[TopicPartition]
) -> Errors:
    """Delete committed offsets; a consumer group keeps those of topics it subscribes to. Raises
    KafkaError.
    """
    shard = await coordinator.shard_of(group_id)
    if not shard.log.state.knows(group_id):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no group {group_id}")
    subscribed = _subscribed(shard, group_id)
    errors = {
        place: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if place.topic in subscribed else ErrorCode.NONE
        for place in places
    }
    removed = tuple(place for place, error in errors.items() if error is ErrorCode.NONE)
    if removed:
        shard.log.append(RemoveRecord(group_id, removed))
    await shard.durable(group_id)
    return errors


def _subscribed(shard: Shard, group_id: str) -> frozenset[str]:
    """Raises KafkaError: NON_EMPTY_GROUP, if its topics are not known."""
    if (consumers := shard.consumers.groups.get(group_id)) is not None:
        return consumers.topics
    group = shard.groups.get(group_id)
    if group is None or not group.members:
        return frozenset()
    topics = subscribed_topics(group.stored())
    if topics is None:
        raise non_empty(group_id)
    return topics
