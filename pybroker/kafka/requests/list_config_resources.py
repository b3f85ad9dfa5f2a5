"""ListConfigResources: what has configs that clients have set.

- 0 (KIP-714): of clients' metrics, of which there are none.
- 1 (KIP-1142): of every type; an empty list asks for all.
"""

from typing import Any, Final

from pybroker.kafka.configs.kinds import Resource
from pybroker.kafka.permissions import require_admin
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import shown_topics

_FIRST_WITH_TYPES: Final = 1


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    require_admin(services, session, "ListConfigResources")
    if request.version < _FIRST_WITH_TYPES:
        return {"config_resources": []}
    wanted, found = request["resource_types"], []
    if not wanted or Resource.TOPIC in wanted:
        names = [name async for name, _ in shown_topics(services)]
        found += [{"resource_name": name, "resource_type": Resource.TOPIC} for name in names]
    if not wanted or Resource.BROKER in wanted:
        ids = [node.id for node in services.nodes.seen_by(session)]
        found += [{"resource_name": str(i), "resource_type": Resource.BROKER} for i in ids]
    if not wanted or Resource.GROUP in wanted:
        groups = services.group_configs.groups()
        found += [{"resource_name": each, "resource_type": Resource.GROUP} for each in groups]
    return {"config_resources": found}
