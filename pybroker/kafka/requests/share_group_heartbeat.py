"""ShareGroupHeartbeat (KIP-932): a member of a share group joins, stays, or leaves."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.consumer_group import JOINS, LEAVES, Beat, BeatAnswer
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.consumer_group_heartbeat import partition_counts, placed
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_FOLLOWS_AT_ONCE: Final = 1  # the rebalance timeout: nobody waits for a member


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    try:
        require_group(services, session, request["group_id"])
        answer = await _beat(services, session, request)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    assignment = None
    if answer.assignment is not None:
        assignment = {"topic_partitions": placed(services, answer.assignment)}
    return {
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval_ms": services.groups.limits.consumers.heartbeat_interval_ms,
        "assignment": assignment,
    }


async def _beat(services: KafkaServices, session: Session, request: Request) -> BeatAnswer:
    group_id, named = request["group_id"], request["subscribed_topic_names"]
    _check(request)
    shard = await services.groups.shard_of(group_id)
    topics = None if named is None else frozenset(named)
    beat = Beat(
        request["member_id"],
        request["member_epoch"],
        rebalance_timeout_ms=_FOLLOWS_AT_ONCE,
        topics=topics,
        client_id=request.client_id or "",
        client_host=f"/{session.address}",
        rack_id=request["rack_id"],
        named=topics,
        user=session.user,
    )
    if beat.epoch == JOINS:
        shard.check_joins(group_id, GroupKind.SHARE)
    group = shard.shares.for_beat(group_id, beat)
    partitions = None
    if group.looks_again(beat, shard.now_ms()):
        partitions = partition_counts(services, group.topics_with(beat))
    answer = shard.shares.beat(group, beat, partitions)
    await shard.durable(group_id)
    return answer


def _check(request: Request) -> None:
    """Raises KafkaError for a member without an id, or an epoch that does not exist."""
    if not request["group_id"]:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "A group needs an id: set group.id")
    if not request["member_id"]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A member of a share group makes its own id")
    if request["member_epoch"] < LEAVES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Members of share groups are never static")
