"""DeleteAcls: revokes what matches each filter.

- 1: patterns (KIP-290); 2: flexible; 3: users' delegation tokens, of which there are none.
"""

from typing import Any

from pybroker.kafka.acls import Acl, all_acls, matches, revoke
from pybroker.kafka.errors import REFUSALS, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_acls
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return {
        "filter_results": [
            await _deleted(services, session, each) async for each in paced(request["filters"])
        ]
    }


async def _deleted(
    services: KafkaServices, session: Session, wanted: dict[str, Any]
) -> dict[str, Any]:
    try:
        require_acls(services, session)
    except KafkaError as error:
        return error_fields(error)
    matching = [acl for acl in all_acls(services) if matches(acl, wanted)]
    return {
        "error_message": None,
        "matching_acls": [await _revoked(services, acl) for acl in matching],
    }


async def _revoked(services: KafkaServices, acl: Acl) -> dict[str, Any]:
    found = acl.resource() | acl.shown() | {"error_message": None}
    try:
        await revoke(services, acl)
    except REFUSALS as error:
        return found | error_fields(error)
    return found
