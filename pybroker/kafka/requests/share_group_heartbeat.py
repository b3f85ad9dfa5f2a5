"""ShareGroupHeartbeat (KIP-932): a member of a share group joins, stays, or leaves."""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.consumer_group import LEAVES, Beat
from pybroker.kafka.requests.consumer_group_heartbeat import answered_beat, shard_to_beat
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_FOLLOWS_AT_ONCE: Final = 1  # the rebalance timeout: nobody waits for a member


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    shard = await shard_to_beat(services, session, request)
    _check(request)
    named = request["subscribed_topic_names"]
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
    return await answered_beat(services, shard, shard.shares, request["group_id"], beat)


def _check(request: Request) -> None:
    """Raises KafkaError for a member without an id, or an epoch that does not exist."""
    if not request["member_id"]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A member of a share group makes its own id")
    if request["member_epoch"] < LEAVES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Members of share groups are never static")
