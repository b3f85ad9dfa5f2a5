"""OffsetForLeaderEpoch: where the log of an epoch of the leader ends, so that clients notice that
they read what was cut off. Nothing is cut off here, and there is one epoch: its log ends where the
log ends.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pybroker.kafka.errors import REFUSALS, error_code
from pybroker.kafka.log.partition_log import LEADER_EPOCH
from pybroker.kafka.pacing import answered_by_topic
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.requests.fetch import check_epoch
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return await answered_by_topic(request, partial(_end, services, session), topic="topic")


async def _end(
    services: KafkaServices, session: Session, topic: str, asked: Mapping[str, Any]
) -> dict[str, Any]:
    index = asked["partition"]
    try:
        check_epoch(asked["current_leader_epoch"])
        log = await partition_log_of(services, session, topic, index, Operation.DESCRIBE)
        if asked["leader_epoch"] > LEADER_EPOCH:
            return {"partition": index, "leader_epoch": -1, "end_offset": -1}
        end = await log.offsets.end()
    except REFUSALS as error:
        code = error_code(error)
        return {"partition": index, "error_code": code, "leader_epoch": -1, "end_offset": -1}
    return {"partition": index, "leader_epoch": LEADER_EPOCH, "end_offset": end}
