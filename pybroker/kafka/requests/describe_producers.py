"""DescribeProducers: the idempotent producers that have written to a partition (KIP-664)."""

from typing import Any

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import PulsarError
from pybroker.kafka.errors import KafkaError, error_code, error_message
from pybroker.kafka.pacing import paced
from pybroker.kafka.partition_logs import partition_log_of
from pybroker.kafka.permissions import Operation
from pybroker.kafka.producers.sequences import ProducerSequences
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic["name"],
                "partitions": [
                    await _producers(services, session, topic["name"], index)
                    async for index in paced(topic["partition_indexes"])
                ],
            }
            async for topic in paced(request["topics"])
        ]
    }


async def _producers(
    services: KafkaServices, session: Session, topic: str, index: int
) -> dict[str, Any]:
    try:
        log = await partition_log_of(services, session, topic, index, Operation.READ)
        producers = await log.producers()
    except (KafkaError, PulsarError, ManagedLedgerError) as error:
        why = error_message(error)
        return {"partition_index": index, "error_code": error_code(error), "error_message": why}
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
