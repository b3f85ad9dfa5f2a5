"""SyncGroup: the leader hands in the assignment, everyone else waits for it.

Versions: from 3 on group.instance.id; from 5 on the protocol, which must be the group's.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.groups.values import SyncRequest
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_group(services, session, request["group_id"])
    assignments = [
        (each["member_id"], bytes(each["assignment"]))
        async for each in paced(request["assignments"])
    ]
    asked = SyncRequest(
        request["member_id"],
        request["generation_id"],
        tuple(assignments),
        request["group_instance_id"],
        request["protocol_type"],
        request["protocol_name"],
    )
    answer = await services.groups.sync(request["group_id"], asked)
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol or None,
        "assignment": answer.assignment,
    }
