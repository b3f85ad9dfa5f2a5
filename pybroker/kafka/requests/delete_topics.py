"""DeleteTopics: also those that are in use, as in Kafka.

- 4: flexible; 5: a message for each error (KIP-599).
- 6 (KIP-516): topics by name or by id.
"""

from typing import Any, Final

from pybroker.kafka.errors import REFUSALS, ErrorCode, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import learn_ids

_FIRST_WITH_IDS: Final = 6


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    if request.version < _FIRST_WITH_IDS:
        names = paced(dict.fromkeys(request["topic_names"]))
        return {"responses": [await _deleted(services, session, name) async for name in names]}
    await learn_ids(services, [t["topic_id"] for t in request["topics"] if t["name"] is None])
    asked = paced(request["topics"])
    return {"responses": [await _asked(services, session, each) async for each in asked]}


async def _asked(
    services: KafkaServices, session: Session, asked: dict[str, Any]
) -> dict[str, Any]:
    if asked["name"] is not None:
        return await _deleted(services, session, asked["name"])
    topic_id = {"topic_id": asked["topic_id"]}
    name = services.topic_ids.name_of(asked["topic_id"])
    if name is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return topic_id | {
            "name": None,
            "error_code": code,
            "error_message": "no topic has this id",
        }
    return topic_id | await _deleted(services, session, name)


async def _deleted(services: KafkaServices, session: Session, name: str) -> dict[str, Any]:
    try:
        topic = services.names.topic(name)
        require_topic(services, session, Operation.DELETE, topic)
        await services.changes.delete(topic)
    except REFUSALS as error:
        return {"name": name} | error_fields(error)
    return {"name": name}
