"""DescribeTopicPartitions (KIP-966): topics in the order of their names, a page at a time.

- 0: without topics, all are described. `cursor` is where the page begins.
"""

from collections.abc import AsyncIterator
from typing import Any, Final

from pybroker.kafka.errors import REFUSALS, ErrorCode, error_code
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, may_topic, require_topic, topic_operations
from pybroker.kafka.requests.metadata import described_partitions
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import existing_partitions, shown_topics

MOST_PARTITIONS: Final = 2000  # in a page, however many the client wants
# Null is legal on the wire; Java's client does not expect it.
_NO_FORMER_LEADERS: Final[dict[str, Any]] = {"eligible_leader_replicas": [], "last_known_elr": []}

Found = tuple[str, int, ErrorCode]  # name, partitions, error


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    cursor = request["cursor"] or {"topic_name": "", "partition_index": 0}
    begin, first = cursor["topic_name"], max(0, cursor["partition_index"])
    room = min(max(1, request["response_partition_limit"]), MOST_PARTITIONS)
    topics: list[dict[str, Any]] = []
    async for name, count, code in _wanted(services, session, request["topics"]):
        if name < begin:
            continue
        if not room:
            return {"topics": topics, "next_cursor": _cursor(name, 0)}
        start = first if name == begin else 0
        end = min(count, start + room)
        topics.append(await _described(services, session, (name, count, code), range(start, end)))
        room -= end - start
        if end < count:
            return {"topics": topics, "next_cursor": _cursor(name, end)}
    return {"topics": topics}


def _cursor(name: str, index: int) -> dict[str, Any]:
    return {"topic_name": name, "partition_index": index}


async def _wanted(
    services: KafkaServices, session: Session, asked: list[dict[str, Any]]
) -> AsyncIterator[Found]:
    if not asked:
        async for name, count in shown_topics(services):
            if may_topic(services, session, Operation.DESCRIBE, services.names.topic(name)):
                yield name, count, ErrorCode.NONE
        return
    async for name in paced(sorted({topic["name"] for topic in asked})):
        yield await _looked_up(services, session, name)


async def _looked_up(services: KafkaServices, session: Session, name: str) -> Found:
    try:
        require_topic(services, session, Operation.DESCRIBE, services.names.topic(name))
        count = await existing_partitions(services, name, create=False)
    except REFUSALS as error:
        return name, 0, error_code(error)
    return name, count, ErrorCode.NONE if count else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _described(
    services: KafkaServices, session: Session, found: Found, indexes: range
) -> dict[str, Any]:
    name, _, code = found
    if code is not ErrorCode.NONE:
        return {"error_code": code, "name": name}
    operations = topic_operations(services, session, services.names.topic(name))
    partitions = await described_partitions(services, session, name, indexes)
    return {
        "name": name,
        "topic_id": services.topic_ids.of(name),
        "partitions": [each | _NO_FORMER_LEADERS for each in partitions],
        "topic_authorized_operations": operations,
    }
