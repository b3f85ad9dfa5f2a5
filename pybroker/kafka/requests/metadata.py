"""Metadata: which brokers there are, and which of them leads which partition.

- 0: an empty list of topics means all; from 1 on null does, and an empty list none.
- 4: the client says whether a topic may be created; before, it may.
- 8: operations that the client may do, as a bitmap (KIP-430).
- 10: topics by id (KIP-516): see `topic_ids`.
- 13: an error for the whole response (KIP-1102), which this broker does not need.

A topic that does not exist is created here, if clients may create topics: as a partitioned topic
with defaultNumPartitions.
"""

from collections.abc import Iterable
from typing import Any, Final

from pybroker.base.errors import PulsarError
from pybroker.base.runtime import Pace
from pybroker.kafka.codec.primitives import ZERO_UUID
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_code
from pybroker.kafka.nodes import LEADER_EPOCH, NO_NODE
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import (
    Operation,
    cluster_operations,
    may_topic,
    require_topic,
    topic_operations,
)
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import existing_partitions, learn_ids, partition_name, shown_topics

_FIRST_WITH_NULL: Final = 1
_PARTITIONS_A_TURN: Final = 200


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port}
            for node in services.nodes.seen_by(session)
        ],
        "cluster_id": services.config.cluster_name,
        "controller_id": services.nodes.own_id,
        "topics": await _topics(services, session, request),
    }
    if request["include_topic_authorized_operations"]:
        async for topic in paced(found["topics"]):
            if not topic.get("error_code"):
                name = services.names.topic(topic["name"])
                operations = topic_operations(services, session, name)
                topic["topic_authorized_operations"] = operations
    if request["include_cluster_authorized_operations"]:
        found["cluster_authorized_operations"] = cluster_operations(services, session)
    return found


async def _topics(
    services: KafkaServices, session: Session, request: Request
) -> list[dict[str, Any]]:
    asked = request["topics"]
    if asked is None or (not asked and request.version < _FIRST_WITH_NULL):
        return [
            await _topic(services, session, name, count)
            async for name, count in shown_topics(services)
            if may_topic(services, session, Operation.DESCRIBE, services.names.topic(name))
        ]
    create = request["allow_auto_topic_creation"]
    ids = [each["topic_id"] for each in asked if each["topic_id"] != ZERO_UUID]
    await learn_ids(services, ids)
    return [await _asked(services, session, each, create) async for each in paced(asked)]


async def _asked(
    services: KafkaServices, session: Session, asked: dict[str, Any], create: bool
) -> dict[str, Any]:
    name = asked["name"]
    if asked["topic_id"] != ZERO_UUID:
        name = services.topic_ids.name_of(asked["topic_id"])
        create = False
    if name is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return {"error_code": code, "name": None, "topic_id": asked["topic_id"]}
    try:
        require_topic(services, session, Operation.DESCRIBE, services.names.topic(name))
        count = await existing_partitions(services, name, create)
    except REFUSALS as error:
        return {"error_code": error_code(error), "name": name}
    if not count:
        return {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name}
    return await _topic(services, session, name, count)


async def _topic(
    services: KafkaServices, session: Session, name: str, count: int
) -> dict[str, Any]:
    partitions = await described_partitions(services, session, name, range(count))
    topic_id = services.topic_ids.of(name)
    return {"name": name, "topic_id": topic_id, "is_internal": False, "partitions": partitions}


async def described_partitions(
    services: KafkaServices, session: Session, topic: str, indexes: Iterable[int]
) -> list[dict[str, Any]]:
    pace, found = Pace(_PARTITIONS_A_TURN), []
    for index in indexes:
        await pace.step()
        found.append(await _partition(services, session, topic, index))
    return found


async def _partition(
    services: KafkaServices, session: Session, topic: str, index: int
) -> dict[str, Any]:
    """Its leader, which is its only replica."""
    code, leader, replicas = ErrorCode.NONE, NO_NODE, []
    try:
        node = await services.nodes.leader_of(partition_name(services, topic, index), session)
        leader, replicas = node.id, [node.id]
    except (KafkaError, PulsarError) as error:
        code = error_code(error)
    return {
        "error_code": code,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": LEADER_EPOCH,
        "replica_nodes": replicas,
        "isr_nodes": replicas,
    }
