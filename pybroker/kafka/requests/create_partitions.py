"""CreatePartitions: a topic gets more partitions; all versions are alike.

- 2: flexible; 3: THROTTLING_QUOTA_EXCEEDED may be returned; it is not.

Which broker takes a new partition is the cluster's choice, whatever the request assigns.
"""

from typing import Any

from pybroker.base.names import TopicName
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import partition_count


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    only_check = request["validate_only"]
    return {
        "results": [
            await _grown(services, session, topic, only_check)
            async for topic in paced(request["topics"])
        ]
    }


async def _grown(
    services: KafkaServices, session: Session, asked: dict[str, Any], only_check: bool
) -> dict[str, Any]:
    name, count = asked["name"], asked["count"]
    try:
        topic = services.names.topic(name)
        require_topic(services, session, Operation.ALTER, topic)
        await services.topics.settled(topic)
        await services.topics.ownership.refreshed()
        _check(services, topic, count)
        if not only_check:
            await services.changes.grow(topic, count)
    except REFUSALS as error:
        return {"name": name} | error_fields(error)
    return {"name": name}


def _check(services: KafkaServices, topic: TopicName, count: int) -> None:
    """Raises KafkaError if the topic does not exist, has no partitions, or cannot have `count`."""
    now = partition_count(services, topic)
    if not now:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.local} does not exist")
    if not services.topics.tenants.partitions(topic):
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{topic.local} was created without partitions by a client of Pulsar's: it has one, "
            "and cannot get more",
        )
    most = services.config.max_num_partitions_per_partitioned_topic
    if not now < count <= most:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {now} partitions, which is higher than the requested {count}."
            if count < now
            else f"Topic already has {count} partition(s)."
            if count == now
            else f"a topic may have at most {most} partitions",
        )
