"""DescribeProducers: the idempotent producers that have written to a partition (KIP-664)."""

from functools import partial
from typing import Any

from pybroker.kafka.errors import REFUSALS, error_fields
from pybroker.kafka.pacing import answered_by_topic
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.producers.sequences import ProducerSequences
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    answer = partial(_producers, services, session)
    return await answered_by_topic(request, answer, partitions="partition_indexes")


async def _producers(
    services: KafkaServices, session: Session, topic: str, index: int
) -> dict[str, Any]:
    try:
        log = await partition_log_of(services, session, topic, index, Operation.READ)
        producers = await log.producers()
    except REFUSALS as error:
        return {"partition_index": index} | error_fields(error)
    return {"partition_index": index, "active_producers": [_shown(each) for each in producers]}


def _shown(producer: ProducerSequences) -> dict[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.durable_last,
        "last_timestamp": producer.time_ms,
        "coordinator_epoch": -1,
        "current_txn_start_offset": -1,
    }
