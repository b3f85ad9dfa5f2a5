"""ConsumerGroupDescribe: members of KIP-848 groups, what they have and what they should have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import KafkaError, error_fields
from pybroker.kafka.groups.assignors import DEFAULT
from pybroker.kafka.groups.consumer_group import NOTHING, ConsumerGroup, ConsumerMember, GroupState
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.consumer_group_heartbeat import placed
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_MEMBER_OF_CONSUMERS: Final = 1

Body = Mapping[str, Any]
# Raises KafkaError.
Describe = Callable[[KafkaServices, Shard, str], Body]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    return await described_groups(services, session, request, _described)


async def described_groups(
    services: KafkaServices, session: Session, request: Request, describe: Describe
) -> Body:
    """The response, with a group or an error for each id in the request."""
    groups = []
    async for group_id in paced(request["group_ids"]):
        try:
            require_group(services, session, group_id)
            shard = await services.groups.shard_of(group_id)
            await shard.durable(group_id)
            groups.append(describe(services, shard, group_id))
        except KafkaError as error:
            groups.append({"group_id": group_id} | error_fields(error))
    return {"groups": groups}


def _described(services: KafkaServices, shard: Shard, group_id: str) -> Body:
    """Raises KafkaError: GROUP_ID_NOT_FOUND."""
    group = shard.consumers.groups.get(group_id)
    if group is None:
        return without_members(shard, group_id, GroupKind.CONSUMER, DEFAULT)
    members = [_member(services, group, each) for each in group.members.values()]
    return with_members(group, group.assignor, members)


def with_members(group: ConsumerGroup, assignor: str, members: Sequence[Body]) -> Body:
    return {
        "group_id": group.group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": assignor,
        "members": members,
    }


def without_members(shard: Shard, group_id: str, kind: GroupKind, assignor: str) -> Body:
    """What is stored of the group. Raises KafkaError: GROUP_ID_NOT_FOUND."""
    stored = shard.stored(group_id, kind)
    return {
        "group_id": group_id,
        "group_state": GroupState.EMPTY.value,
        "group_epoch": stored.generation,
        "assignment_epoch": stored.generation,
        "assignor_name": assignor,
        "members": [],
    }


def member_fields(services: KafkaServices, member: ConsumerMember) -> dict[str, Any]:
    """What members of all kinds have."""
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.named or member.topics),
        "assignment": {"topic_partitions": placed(services, member.assigned)},
    }


def _member(services: KafkaServices, group: ConsumerGroup, member: ConsumerMember) -> Body:
    target = group.target.get(member.member_id, NOTHING)
    return member_fields(services, member) | {
        "instance_id": member.instance_id,
        "subscribed_topic_regex": member.regex,
        "target_assignment": {"topic_partitions": placed(services, target)},
        "member_type": _MEMBER_OF_CONSUMERS,
    }
