"""DescribeAcls: the permissions of the namespace, as ACLs.

- 1: patterns (KIP-290); 2: flexible; 3: users' delegation tokens, of which there are none.
"""

from typing import Any

from pybroker.kafka.acls import all_acls, matches
from pybroker.kafka.permissions import require_acls
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    require_acls(services, session)
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for acl in all_acls(services):
        if matches(acl, request.body):
            resource = found.setdefault((acl.kind, acl.name), acl.resource() | {"acls": []})
            resource["acls"].append(acl.shown())
    return {"error_message": None, "resources": list(found.values())}
