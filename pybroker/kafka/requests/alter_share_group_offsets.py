"""AlterShareGroupOffsets (KIP-932): a share group without members goes on elsewhere."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import REFUSALS, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets

Body = Mapping[str, Any]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    offsets = GroupOffsets(services, session, request["group_id"])
    require_group(services, session, request["group_id"])
    await offsets.without_members()
    responses = []
    for topic in request["topics"]:
        name = topic["topic_name"]
        partitions = [
            await _moved(offsets, name, each) async for each in paced(topic["partitions"])
        ]
        topic_id = services.topic_ids.of(name)
        responses.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
    return {"responses": responses}


async def _moved(offsets: GroupOffsets, topic: str, asked: Body) -> Body:
    found = {"partition_index": asked["partition_index"]}
    try:
        await offsets.move(topic, asked["partition_index"], asked["start_offset"])
    except REFUSALS as error:
        return found | error_fields(error)
    return found
