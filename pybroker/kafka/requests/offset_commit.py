"""OffsetCommit: a group's offsets, durable when they are answered.

Versions: from 6 on leader epochs; from 7 on group.instance.id; from 10 on topics by their ids. The
retention of versions 2 to 4 is ignored, as Kafka does: the broker's applies.
"""

from collections.abc import Mapping
from typing import Any, Final

from pybroker.kafka.codec.primitives import ZERO_UUID
from pybroker.kafka.coordinator.committing import Committer, Errors, Wanted, commit
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_group, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import found_partition, named

_FIRST_WITH_IDS: Final = 10


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    nameless = await _give_names(services, request)
    wanted = await wanted_offsets(request)
    unknown = await unknown_partitions(services, session, wanted)
    committer = Committer(
        request["member_id"],
        request["group_instance_id"],
        request["generation_id_or_member_epoch"],
        session.user,
    )
    known = {place: each for place, each in wanted.items() if place not in unknown}
    try:
        require_group(services, session, request["group_id"])
        errors = await commit(services.groups, request["group_id"], committer, known)
    except KafkaError as error:
        errors = dict.fromkeys(known, error.code)
    return {"topics": [*await topics_with_errors(request, {**errors, **unknown}), *nameless]}


async def _give_names(services: KafkaServices, request: Request) -> list[dict[str, Any]]:
    """Give the topics their names instead of their ids; returns the answers for unknown ids."""
    if request.version < _FIRST_WITH_IDS:
        return []
    with_names, nameless = [], []
    async for name, topic in named(services, request["topics"]):
        if name is None:
            nameless.append(
                {
                    "topic_id": topic["topic_id"],
                    "partitions": [
                        {
                            "partition_index": each["partition_index"],
                            "error_code": ErrorCode.UNKNOWN_TOPIC_ID,
                        }
                        for each in topic["partitions"]
                    ],
                }
            )
        else:
            with_names.append({**topic, "name": name})
    request.body["topics"] = with_names
    return nameless


async def wanted_offsets(request: Request) -> dict[TopicPartition, Wanted]:
    return {
        TopicPartition(topic["name"], each["partition_index"]): Wanted(
            each["committed_offset"],
            each["committed_leader_epoch"],
            each["committed_metadata"] or "",
        )
        async for topic in paced(request["topics"])
        async for each in paced(topic["partitions"])
    }


async def unknown_partitions(
    services: KafkaServices, session: Session, places: Mapping[TopicPartition, Any]
) -> Errors:
    """Those that do not exist or that the client may not read, with their errors."""
    unknown = {}
    async for place in paced(places):
        try:
            require_topic(services, session, Operation.READ, services.names.topic(place.topic))
            await found_partition(services, place.topic, place.partition)
        except KafkaError as error:
            unknown[place] = error.code
    return unknown


async def topics_with_errors(request: Request, errors: Errors) -> list[dict[str, Any]]:
    """The topics of the request, with an error for each partition."""
    return [
        {
            "name": topic["name"],
            "topic_id": topic.get("topic_id", ZERO_UUID),
            "partitions": [
                {
                    "partition_index": each["partition_index"],
                    "error_code": errors.get(
                        TopicPartition(topic["name"], each["partition_index"]), ErrorCode.NONE
                    ),
                }
                async for each in paced(topic["partitions"])
            ],
        }
        async for topic in paced(request["topics"])
    ]
