"""DescribeGroups: the members of classic groups.

Versions: to 5 a group that does not exist is Dead; from 6 on it is an error (KIP-1043).
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.coordinator.describing import Described, describe
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.groups.states import GroupState
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_NOT_FOUND: Final = 6


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    asked = paced(request["groups"])
    groups = [await _group(services, session, each, request.version) async for each in asked]
    return {"groups": groups}


async def _group(
    services: KafkaServices, session: Session, group_id: str, version: int
) -> Mapping[str, Any]:
    try:
        require_group(services, session, group_id)
        described = await describe(services.groups, group_id)
    except KafkaError as error:
        return _failed(group_id, error.code, error.message)
    if described is not None:
        return _described(group_id, described)
    code = ErrorCode.GROUP_ID_NOT_FOUND if version >= _NOT_FOUND else ErrorCode.NONE
    return _failed(group_id, code, f"Group {group_id} not found.")


def _failed(group_id: str, code: ErrorCode, why: str | None) -> Mapping[str, Any]:
    dead = GroupState.DEAD.value
    return {"error_code": code, "error_message": why, "group_id": group_id, "group_state": dead}


def _described(group_id: str, described: Described) -> Mapping[str, Any]:
    state, group = described
    return {
        "group_id": group_id,
        "group_state": state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
    }
