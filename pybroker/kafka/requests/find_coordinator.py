"""FindCoordinator: the broker that has a group, a transactional id or a share group.

- 1: the key's type; before, it is a group.
- 4 (KIP-699): many keys at once, and an answer for each.
- 5: TRANSACTION_ABORTABLE may be returned (KIP-890); it is not.
- 6 (KIP-932): share groups.
"""

from enum import IntEnum
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.nodes import NO_NODE
from pybroker.kafka.offsets.logs import topic_of_group
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_FIRST_WITH_MANY: Final = 4


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    key_type = request["key_type"]
    if request.version >= _FIRST_WITH_MANY:
        keys = paced(request["coordinator_keys"])
        found_all = [await _found(services, session, key_type, key) async for key in keys]
        return {"coordinators": found_all}
    found = await _found(services, session, key_type, request["key"])
    del found["key"]
    return found


async def _found(
    services: KafkaServices, session: Session, key_type: int, key: str
) -> dict[str, Any]:
    try:
        _check(services, session, key_type, key)
    except KafkaError as error:
        return _none(key, error.code, error.message)
    try:
        node = await services.nodes.leader_of(topic_of_group(key), session)
    except KafkaError as error:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    found = {"error_code": ErrorCode.NONE, "error_message": None}
    return found | {"key": key, "node_id": node.id, "host": node.host, "port": node.port}


def _none(key: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    found = {"error_code": code, "error_message": message}
    return found | {"key": key, "node_id": NO_NODE, "host": "", "port": NO_NODE}


def _check(services: KafkaServices, session: Session, key_type: int, key: str) -> None:
    """Raises KafkaError for an unknown type, an empty key, and a group that it may not use."""
    if key_type not in list(KeyType):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no key type {key_type}")
    if not key:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the key is empty: name a group")
    if key_type != KeyType.TRANSACTION:
        require_group(services, session, key)
