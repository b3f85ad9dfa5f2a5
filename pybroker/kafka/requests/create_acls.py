"""CreateAcls: grants what permissions can say, and refuses the rest.

- 1: patterns (KIP-290); 2: flexible; 3: users' delegation tokens, of which there are none.

Operations that follow from others are looked at last: `kafka-acls --producer` grants DESCRIBE and
CREATE together with WRITE, in any order.
"""

from typing import Any

from pybroker.kafka.acls import AclOperation, acl_of, grant
from pybroker.kafka.errors import REFUSALS, ErrorCode, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_acls
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    creations = request["creations"]
    results: list[dict[str, Any]] = [{} for _ in creations]
    in_order = sorted(range(len(creations)), key=lambda i: _is_implied(creations[i]))
    async for index in paced(in_order):
        results[index] = await _created(services, session, creations[index])
    return {"results": results}


def _is_implied(creation: dict[str, Any]) -> bool:
    return bool(creation["operation"] > AclOperation.WRITE)


async def _created(
    services: KafkaServices, session: Session, creation: dict[str, Any]
) -> dict[str, Any]:
    try:
        require_acls(services, session)
        await grant(services, acl_of(creation))
    except REFUSALS as error:
        return error_fields(error)
    return {"error_code": ErrorCode.NONE, "error_message": None}
