"""A connection's way to the logs of partitions: by name, permitted, and remembered."""

from typing import Final

from pybroker.kafka.log.partition_log import PartitionLog, partition_log
from pybroker.kafka.permissions import Operation, require_topic
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.kafka.topics import partition_topic

_LOGS: Final = "logs"  # the name in Session.kept
_MOST_REMEMBERED: Final = 10_000


async def partition_log_of(
    services: KafkaServices, session: Session, topic: str, partition: int, operation: Operation
) -> PartitionLog:
    """The log, with offsets. A permission is checked each time: it may have been revoked.

    Raises KafkaError, PulsarError, ManagedLedgerError.
    """
    known: dict[tuple[str, int], PartitionLog] = session.kept.setdefault(_LOGS, {})
    log = known.get((topic, partition))
    if services.authorizer is not None:
        require_topic(services, session, operation, services.names.topic(topic))
    if log is None or log.closed:
        loaded = await partition_topic(services, topic, partition)
        log = await partition_log(loaded).opened()
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[topic, partition] = log
    return log
