"""ShareAcknowledge (KIP-932): what a member of a share group says of its records.

- 2 (KIP-1222): locks may be renewed.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import ErrorCode, KafkaError, error_fields
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.acknowledging import Failures, Said, acknowledge, asked_of
from pybroker.kafka.shares.share_configs import ShareConfigs
from pybroker.kafka.shares.share_sessions import BEGINS, ENDS, SharePlace, ShareSessions, member_of

NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    sessions, epoch = ShareSessions.of(session), request["share_session_epoch"]
    most_chars = services.groups.limits.max_group_id_chars
    member = member_of(request["group_id"], request["member_id"], most_chars)
    require_group(services, session, member.group_id)
    if epoch == BEGINS:
        raise KafkaError(
            ErrorCode.INVALID_SHARE_SESSION_EPOCH, "A session begins with a ShareFetch"
        )
    share = sessions.continued(member, epoch)
    said = await asked_of(request["topics"])
    failures = await acknowledge(share, said, request["is_renew_ack"])
    if epoch == ENDS:
        sessions.end(member)
    configs = ShareConfigs.of(services.group_configs.of(member.group_id))
    return {
        "responses": _responses(said, failures),
        "acquisition_lock_timeout_ms": configs.record_lock_duration_ms,
    }


def _responses(said: Said, failures: Failures) -> list[dict[str, Any]]:
    by_topic: dict[bytes, list[dict[str, Any]]] = {}
    for place in said:
        by_topic.setdefault(place.topic_id, []).append(_partition(place, failures))
    return [{"topic_id": each, "partitions": found} for each, found in by_topic.items()]


def _partition(place: SharePlace, failures: Failures) -> dict[str, Any]:
    found = {"partition_index": place.partition, "current_leader": NO_LEADER}
    if (error := failures.get(place)) is None:
        return found
    return found | error_fields(error)
