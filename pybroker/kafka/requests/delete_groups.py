"""DeleteGroups: groups without members, with their offsets, or a share group's subscriptions."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.coordinator.describing import delete
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.values import GroupKind
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    results = []
    async for group_id in paced(request["groups_names"]):
        error = await _delete(services, session, group_id)
        results.append({"group_id": group_id, "error_code": error})
    return {"results": results}


async def _delete(services: KafkaServices, session: Session, group_id: str) -> ErrorCode:
    try:
        require_group(services, session, group_id)
        stored = (await services.groups.shard_of(group_id)).log.state.groups.get(group_id)
        if stored is not None and stored.kind is GroupKind.SHARE:
            await GroupOffsets(services, session, group_id).delete_all()
        await delete(services.groups, group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
