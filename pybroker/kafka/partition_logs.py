"""A connection's way to the logs of partitions: by name, permitted, and remembered."""

from typing import Final

from pybroker.base.errors import TopicTerminated
from pybroker.broker.persistent.topic import Topic
from pybroker.kafka.log.partition_log import PartitionLog, partition_log
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.kafka.topics import partition_topic, unknown_partition

_LOGS: Final = "logs"  # the name in Session.kept
_MOST_REMEMBERED: Final = 10_000


async def partition_log_of(
    services: KafkaServices, session: Session, topic: str, partition: int, operation: Operation
) -> PartitionLog:
    """The log, with offsets. A permission is checked each time: it may have been revoked.

    Raises KafkaError, PulsarError, ManagedLedgerError; TopicTerminated only to who writes.
    """
    known: dict[tuple[str, int], PartitionLog] = session.kept.setdefault(_LOGS, {})
    log = known.get((topic, partition))
    if services.authorizer is not None:
        require_topic(services, session, operation, services.names.topic(topic))
    if log is None or log.closed:
        log = await opened_log(services, topic, partition, operation)
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[topic, partition] = log
    return log


async def opened_log(
    services: KafkaServices, topic: str, partition: int, operation: Operation
) -> PartitionLog:
    """As `partition_log_of`, for who is permitted and does not ask again."""
    return await partition_log(await _loaded(services, topic, partition, operation)).opened()


async def _loaded(
    services: KafkaServices, topic: str, partition: int, operation: Operation
) -> Topic:
    """What was made scalable, and read by all, is gone: consumers expect no other code for that."""
    try:
        return await partition_topic(services, topic, partition)
    except TopicTerminated:
        if operation is Operation.WRITE:
            raise
        raise unknown_partition(topic, partition) from None
