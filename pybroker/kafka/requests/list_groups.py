"""ListGroups: the groups that this broker coordinates; from version 4 on by state, 5 by type."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.coordinator.describing import list_groups
from pybroker.kafka.permissions import may_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    states = {each.lower() for each in request["states_filter"] or ()}
    kinds = {each.lower() for each in request["types_filter"] or ()}
    return {
        "groups": [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type,
                "group_state": each.state,
                "group_type": each.kind,
            }
            for each in await list_groups(services.groups)
            if may_group(services, session, each.group_id)
            and (not states or each.state.lower() in states)
            and (not kinds or each.kind.lower() in kinds)
        ]
    }
