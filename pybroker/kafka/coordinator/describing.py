"""DescribeGroups, ListGroups and DeleteGroups, without their bytes."""

from typing import NamedTuple

from pybroker.kafka.coordinator.group_coordinator import GroupCoordinator
from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.groups.consumer_protocol import subscribed_topics
from pybroker.kafka.groups.states import GroupState
from pybroker.kafka.groups.values import GroupKind, StoredGroup


class Described(NamedTuple):
    state: GroupState
    group: StoredGroup


class Listed(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    kind: str = GroupKind.CLASSIC.shown


async def describe(coordinator: GroupCoordinator, group_id: str) -> Described | None:
    """None if there is no such group. Raises KafkaError."""
    shard = await coordinator.shard_of(group_id)
    await shard.durable(group_id)
    if shard.beating(group_id) is not None:
        return None  # of another kind: ConsumerGroupDescribe, ShareGroupDescribe
    group = shard.group(group_id)
    if group is not None:
        return Described(group.state, group.stored())
    if not shard.log.state.knows(group_id):
        return None
    return Described(GroupState.EMPTY, StoredGroup(-1, "", "", "", (), 0))


async def list_groups(coordinator: GroupCoordinator) -> list[Listed]:
    """The groups that this broker serves. Raises KafkaError."""
    listed = []
    for shard in await coordinator.shards():
        listed += listed_in(shard)
    return listed


def listed_in(shard: Shard) -> list[Listed]:
    ids = dict.fromkeys([*shard.log.state.group_ids(), *shard.groups])
    return [_listed(shard, each) for each in ids]


def members_in(shard: Shard, group_id: str) -> int:
    if (beating := shard.beating(group_id)) is not None:
        return len(beating.members)
    classic = shard.groups.get(group_id)
    return 0 if classic is None else len(classic.members)


def read_by(shard: Shard, group_id: str) -> frozenset[str]:
    """The topics of a group's members, as far as they are known. None of a share group: where that
    is, its subscriptions say.
    """
    beating, stored = shard.beating(group_id), shard.log.state.groups.get(group_id)
    if stored is None or stored.kind is GroupKind.SHARE:
        return frozenset()
    if beating is not None:
        return beating.topics
    return subscribed_topics(stored) or frozenset()


def _listed(shard: Shard, group_id: str) -> Listed:
    if (beating := shard.beating(group_id)) is not None:
        kind = beating.kind.shown
        return Listed(group_id, kind, beating.state.value, kind)
    group = shard.groups.get(group_id)
    if group is not None:
        return Listed(group_id, group.protocol_type, group.state.value)
    stored, empty = shard.log.state.groups.get(group_id), GroupState.EMPTY.value
    if stored is None:
        return Listed(group_id, "", empty)
    return Listed(group_id, stored.protocol_type, empty, stored.kind.shown)


async def delete(coordinator: GroupCoordinator, group_id: str) -> None:
    """Durable when this returns. Raises KafkaError: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
    shard = await coordinator.shard_of(group_id)
    shard.delete(group_id)
    await shard.durable(group_id)
