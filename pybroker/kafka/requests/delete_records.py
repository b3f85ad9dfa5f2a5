"""DeleteRecords: partitions begin at a later offset.

Versions: from 2 on flexible. An offset of -1 means everything up to the last stable offset.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pybroker.kafka.configs.kinds import items
from pybroker.kafka.configs.topic_configs import topic_config
from pybroker.kafka.configs.topic_table import CLEANUP_POLICY
from pybroker.kafka.errors import REFUSALS, ErrorCode, KafkaError, error_code
from pybroker.kafka.log.deleting import delete_records
from pybroker.kafka.pacing import answered_by_topic
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_NOWHERE: Final = -1


async def handle(services: KafkaServices, session: Session, request: Request) -> Mapping[str, Any]:
    return await answered_by_topic(request, partial(_deleted, services, session))


async def _deleted(
    services: KafkaServices, session: Session, topic: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    index, code, start = asked["partition_index"], ErrorCode.NONE, _NOWHERE
    try:
        log = await partition_log_of(services, session, topic, index, Operation.DELETE)
        _check_deletes(services, topic)
        start = await delete_records(log, asked["offset"])
    except REFUSALS as error:
        code = error_code(error)
    return {"partition_index": index, "low_watermark": start, "error_code": code}


def _check_deletes(services: KafkaServices, topic: str) -> None:
    """Raises KafkaError for a topic that is only compacted."""
    policy = topic_config(services, services.names.topic(topic), CLEANUP_POLICY)
    if "delete" not in items(policy):
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"cleanup.policy of {topic} is {policy}")
