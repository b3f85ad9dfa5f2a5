"""ShareGroupDescribe (KIP-932): the members of share groups, and what they have."""

from pybroker.kafka.coordinator.shard import Shard
from pybroker.kafka.groups.share_group import ASSIGNOR
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.requests.consumer_group_describe import (
    Body,
    described_groups,
    member_fields,
    with_members,
    without_members,
)
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    return await described_groups(services, session, request, _described)


def _described(services: KafkaServices, shard: Shard, group_id: str) -> Body:
    """Raises KafkaError: GROUP_ID_NOT_FOUND."""
    group = shard.shares.groups.get(group_id)
    if group is None:
        return without_members(shard, group_id, GroupKind.SHARE, ASSIGNOR)
    members = [member_fields(services, each) for each in group.members.values()]
    return with_members(group, ASSIGNOR, members)
