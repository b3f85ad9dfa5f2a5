"""Heartbeat: the member is alive, and learns of a rebalance."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_group(services, session, request["group_id"])
    error = await services.groups.heartbeat(
        request["group_id"],
        request["member_id"],
        request["group_instance_id"],
        request["generation_id"],
    )
    return {"error_code": error}
