"""OffsetDelete: removes committed offsets of topics to which the group does not subscribe."""

from collections.abc import Mapping
from typing import Any

from pybroker.kafka.coordinator.committing import delete_offsets
from pybroker.kafka.offsets.records import TopicPartition
from pybroker.kafka.permissions import require_group
from pybroker.kafka.requests.offset_commit import topics_with_errors
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    require_group(services, session, request["group_id"])
    places = [
        TopicPartition(topic["name"], each["partition_index"])
        for topic in request["topics"]
        for each in topic["partitions"]
    ]
    errors = await delete_offsets(services.groups, request["group_id"], places)
    return {"topics": await topics_with_errors(request, errors)}
