"""CreateTopics: partitioned topics with configs.

- 4: -1 partitions or replicas stand for the default (KIP-464).
- 5: the response has the number of partitions and the configs (KIP-525).
- 6: THROTTLING_QUOTA_EXCEEDED may be returned; it is not.
- 7: the response has the topic's id (KIP-516).

A replication factor is accepted, whatever it is: how often messages are stored is the business of
the storage, and it is shown as 1.
"""

from collections import Counter
from typing import Any, Final

from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict
from pybroker.kafka.configs.topic_configs import shown_configs
from pybroker.kafka.configs.topic_table import checked_configs
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_fields
from pybroker.kafka.pacing import paced
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.requests.describe_configs import shown_config
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session
from pybroker.kafka.topics import create_topic, default_partitions, partition_count

_DEFAULT: Final = -1


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    counts = Counter(topic["name"] for topic in request["topics"])
    asked = {topic["name"]: topic for topic in request["topics"]}
    only_check = request["validate_only"]
    return {
        "topics": [
            await _created(services, session, topic, only_check)
            if counts[name] == 1
            else {
                "name": name,
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "the request names this topic twice",
            }
            async for name, topic in paced(asked.items())
        ]
    }


async def _created(
    services: KafkaServices, session: Session, asked: dict[str, Any], only_check: bool
) -> dict[str, Any]:
    name = asked["name"]
    try:
        topic = services.names.topic(name)
        require_topic(services, session, Operation.CREATE, topic)
        configs = checked_configs({each["name"]: each["value"] for each in asked["configs"]})
        count = _partitions(services, asked)
        await _check_free(services, topic)
        if not only_check:
            await create_topic(services, topic, count, configs)
    except REFUSALS as error:
        return {"name": name} | error_fields(error)
    shown = None if only_check else [shown_config(each) for each in shown_configs(services, topic)]
    found = {"name": name, "topic_id": services.topic_ids.of(name), "configs": shown}
    return found | {"num_partitions": count, "replication_factor": 1}


def _partitions(services: KafkaServices, asked: dict[str, Any]) -> int:
    """Raises KafkaError for a number of partitions or replicas, or assignments, that are not
    possible.
    """
    count: int = asked["num_partitions"]
    if assignments := asked["assignments"]:
        indexes = sorted(each["partition_index"] for each in assignments)
        if count != _DEFAULT or indexes != list(range(len(indexes))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "with assignments, the number of partitions is -1, and they begin with 0",
            )
        return len(indexes)
    if asked["replication_factor"] in (0, *range(-(2**15), _DEFAULT)):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor is 1 or more, or -1"
        )
    most = services.config.max_num_partitions_per_partitioned_topic
    if count != _DEFAULT and not 1 <= count <= most:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"the number of partitions is 1 to {most}, or -1"
        )
    return default_partitions(services) if count == _DEFAULT else count


async def _check_free(services: KafkaServices, topic: TopicName) -> None:
    """Raises Conflict if the topic exists, NotFound if its namespace does not."""
    services.topics.tenants.check_namespace(topic.namespace_name)
    await services.topics.settled(topic)
    if partition_count(services, topic):
        raise Conflict("This topic already exists", f"choose a name other than {topic.local}")
