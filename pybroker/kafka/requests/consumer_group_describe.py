"""ConsumerGroupDescribe: members of KIP-848 groups, what they have and what they should have."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.assignors import DEFAULT
from pybroker.kafka.groups.consumer_group import (
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    GroupState,
)
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.consumer_group_heartbeat import placed
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_MEMBER_OF_CONSUMERS: Final = 1


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    asked = paced(request["group_ids"])
    return {"groups": [await _group(services, session, each) async for each in asked]}


async def _group(services: KafkaServices, session: Session, group_id: str) -> Mapping[str, Any]:
    try:
        require_group(services, session, group_id)
        shard = await services.groups.shard_of(group_id)
        await shard.durable(group_id)
        return _described(services, shard, group_id)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "group_id": group_id}


def _described(services: KafkaServices, shard: Shard, group_id: str) -> Mapping[str, Any]:
    """Raises KafkaError: GROUP_ID_NOT_FOUND."""
    group = shard.consumers.groups.get(group_id)
    if group is not None:
        return {
            "group_id": group_id,
            "group_state": group.state.value,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "assignor_name": group.assignor,
            "members": [_member(services, group, each) for each in group.members.values()],
        }
    stored = shard.log.state.groups.get(group_id)
    if stored is None or stored.kind is not GroupKind.CONSUMER:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id} of KIP-848"
        )
    return {
        "group_id": group_id,
        "group_state": GroupState.EMPTY.value,
        "group_epoch": stored.generation,
        "assignment_epoch": stored.generation,
        "assignor_name": DEFAULT,
        "members": [],
    }


def _member(
    services: KafkaServices, group: ConsumerGroup, member: ConsumerMember
) -> Mapping[str, Any]:
    target = group.target.get(member.member_id, NOTHING)
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.named or member.topics),
        "subscribed_topic_regex": member.regex,
        "assignment": {"topic_partitions": placed(services, member.assigned)},
        "target_assignment": {"topic_partitions": placed(services, target)},
        "member_type": _MEMBER_OF_CONSUMERS,
    }
