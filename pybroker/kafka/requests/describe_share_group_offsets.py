"""DescribeShareGroupOffsets (KIP-932): where share groups are; without topics, on all of theirs.

- 1 (KIP-1226): with the lag.
"""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.errors import KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import require_group
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.shares.group_offsets import GroupOffsets
from pybroker.kafka.shares.progress import Progress

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
    found = [await _topic(services, offsets, each) async for each in paced(topics)]
    return {"group_id": group_id, "topics": found}


async def _topic(services: KafkaServices, offsets: GroupOffsets, asked: Body) -> Body:
    topic = asked["topic_name"]
    answers = await offsets.progress(topic, asked["partitions"])
    return {
        "topic_name": topic,
        "topic_id": services.topic_ids.of(topic),
        "partitions": [_partition(index, answers[index]) for index in asked["partitions"]],
    }


def _partition(index: int, answer: Progress | Exception) -> Body:
    found = {"partition_index": index, "leader_epoch": 0}
    if isinstance(answer, Exception):
        return found | error_fields(answer) | Progress()._asdict()
    return found | answer._asdict()
