"""AlterShareGroupOffsets (KIP-932): a share group without members goes on elsewhere."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets
from pybroker.kafka.shares.progress import Progress

Body = Mapping[str, Any]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    offsets = GroupOffsets(services, session, request["group_id"])
    require_group(services, session, request["group_id"])
    await offsets.without_members()
    asked = paced(request["topics"])
    return {"responses": [await _topic(services, offsets, each) async for each in asked]}


async def _topic(services: KafkaServices, offsets: GroupOffsets, asked: Body) -> Body:
    topic = asked["topic_name"]
    moves = {each["partition_index"]: each["start_offset"] for each in asked["partitions"]}
    answers = await offsets.move(topic, moves)
    return {
        "topic_name": topic,
        "topic_id": services.topic_ids.of(topic),
        "partitions": [_partition(index, answers[index]) for index in moves],
    }


def _partition(index: int, answer: Progress | Exception) -> Body:
    found = {"partition_index": index}
    return found | error_fields(answer) if isinstance(answer, Exception) else found
