"""ShareGroupDescribe (KIP-932): the members of share groups, and what they have."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.consumer_group import ConsumerGroup, ConsumerMember, GroupState
from pybroker.kafka.groups.share_group import ASSIGNOR
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.consumer_group_heartbeat import placed
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    asked = paced(request["group_ids"])
    return {"groups": [await _group(services, session, each) async for each in asked]}


async def _group(services: KafkaServices, session: Session, group_id: str) -> Mapping[str, Any]:
    try:
        require_group(services, session, group_id)
        shard = await services.groups.shard_of(group_id)
        await shard.durable(group_id)
        group = shard.shares.groups.get(group_id)
        if group is None:
            return _without_members(shard, group_id)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "group_id": group_id}
    return _described(services, group)


def _described(services: KafkaServices, group: ConsumerGroup) -> Mapping[str, Any]:
    return {
        "group_id": group.group_id,
        "group_state": group.state.value,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "assignor_name": ASSIGNOR,
        "members": [_member(services, each) for each in group.members.values()],
    }


def _without_members(shard: Shard, group_id: str) -> Mapping[str, Any]:
    """Raises KafkaError: GROUP_ID_NOT_FOUND."""
    stored = shard.log.state.groups.get(group_id)
    if stored is None or stored.kind is not GroupKind.SHARE:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}")
    return {
        "group_id": group_id,
        "group_state": GroupState.EMPTY.value,
        "group_epoch": stored.generation,
        "assignment_epoch": stored.generation,
        "assignor_name": ASSIGNOR,
        "members": [],
    }


def _member(services: KafkaServices, member: ConsumerMember) -> Mapping[str, Any]:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topics),
        "assignment": {"topic_partitions": placed(services, member.assigned)},
    }
