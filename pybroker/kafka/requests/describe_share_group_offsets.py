"""DescribeShareGroupOffsets (KIP-932): where share groups are; without topics, on all of theirs.

- 1 (KIP-1226): with the lag.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import REFUSALS, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets, Progress

Body = Mapping[str, Any]


async def handle(services: KafkaServices, session: Session, request: Request) -> Body:
    asked = paced(request["groups"])
    return {"groups": [await _group(services, session, each) async for each in asked]}


async def _group(services: KafkaServices, session: Session, asked: Body) -> Body:
    group_id, topics = asked["group_id"], asked["topics"]
    offsets = GroupOffsets(services, session, group_id)
    try:
        require_group(services, session, group_id)
        if topics is None:
            names = await offsets.topics()
            topics = [{"topic_name": x, "partitions": offsets.partitions(x)} for x in names]
        else:
            await offsets.shard()
    except KafkaError as error:
        return {"group_id": group_id} | error_fields(error)
    found = [
        {
            "topic_name": each["topic_name"],
            "topic_id": services.topic_ids.of(each["topic_name"]),
            "partitions": [
                await _partition(offsets, each["topic_name"], index)
                async for index in paced(each["partitions"])
            ],
        }
        for each in topics
    ]
    return {"group_id": group_id, "topics": found}


async def _partition(offsets: GroupOffsets, topic: str, index: int) -> Body:
    found = {"partition_index": index, "leader_epoch": 0}
    try:
        progress = await offsets.progress(topic, index)
    except REFUSALS as error:
        return found | error_fields(error) | Progress()._asdict()
    return found | progress._asdict()
