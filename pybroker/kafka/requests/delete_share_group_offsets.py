"""DeleteShareGroupOffsets (KIP-932): a share group without members forgets topics."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets
from pybroker.kafka.shares.progress import refused

Body = Mapping[str, Any]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    offsets = GroupOffsets(services, session, request["group_id"])
    require_group(services, session, request["group_id"])
    await offsets.without_members()
    asked = paced(request["topics"])
    return {"responses": [await _deleted(services, offsets, each) async for each in asked]}


async def _deleted(services: KafkaServices, offsets: GroupOffsets, asked: Body) -> Body:
    topic = asked["topic_name"]
    found = {"topic_name": topic, "topic_id": services.topic_ids.of(topic)}
    for error in refused(await offsets.delete(topic)).values():
        return found | error_fields(error)
    return found
