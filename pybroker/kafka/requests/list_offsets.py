"""ListOffsets: the first and the last offset, and those of a time.

- 1: one offset, with its time; 2: isolation levels: for read_committed the log ends at the last
  stable offset; 4: leader epochs.
- 7: the offset of the largest time (-3, KIP-734); 8: of what is stored locally (-4, KIP-405), which
  is everything; 9: of what is stored elsewhere (-5, KIP-1005), which is nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pybroker.kafka.errors import REFUSALS, error_code
from pybroker.kafka.log.partition_log import LEADER_EPOCH, PartitionLog
from pybroker.kafka.log.times import TimedOffset, first_at, latest_time
from pybroker.kafka.pacing import answered_by_topic
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.requests.fetch import check_epoch
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_READ_COMMITTED: Final = 1
_NOWHERE: Final = TimedOffset(-1, -1)


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    committed = request["isolation_level"] == _READ_COMMITTED
    return await answered_by_topic(request, partial(_offset, services, session, committed))


async def _offset(
    services: KafkaServices,
    session: Session,
    committed: bool,
    topic: str,
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    index = asked["partition_index"]
    try:
        check_epoch(asked["current_leader_epoch"])
        log = await partition_log_of(services, session, topic, index, Operation.DESCRIBE)
        found = await _found(log, asked["timestamp"], committed)
    except REFUSALS as error:
        code = error_code(error)
        return {"partition_index": index, "error_code": code, "timestamp": -1, "offset": -1}
    return {
        "partition_index": index,
        "timestamp": found.time_ms,
        "offset": found.offset,
        "leader_epoch": LEADER_EPOCH,
    }


async def _found(log: PartitionLog, timestamp: int, committed: bool) -> TimedOffset:
    """Raises KafkaError or ManagedLedgerError if the log cannot be read."""
    if timestamp == _LATEST:
        return TimedOffset(await log.end_offset(committed), -1)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return TimedOffset(await log.offsets.start(), -1)
    if timestamp == _MAX_TIMESTAMP:
        return await latest_time(log, committed) or _NOWHERE
    if timestamp < 0:
        return _NOWHERE
    return await first_at(log, timestamp, committed) or _NOWHERE
