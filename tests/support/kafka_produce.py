"""Produce and Fetch byte by byte, for what Kafka's own clients never send."""

from typing import Any, Final

from raw_kafka import Asks

from pybroker.kafka.records.batch import build_batch
from pybroker.kafka.records.record import Record, write_records
from pybroker.kafka.records.steps import at_once

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER_ID = 0, 1, 2, 3, 22
TOPIC: Final = "orders"


def batch(*values: bytes, **fields: Any) -> bytes:
    records = [Record(at, 0, None, value) for at, value in enumerate(values)]
    return build_batch(at_once(write_records(records)), len(values), len(values) - 1, **fields)


def sequenced(
    first: int, *values: bytes, producer_id: int = 7, epoch: int = 0, **fields: Any
) -> bytes:
    return batch(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=first, **fields
    )


def produce_body(topic: str, *batches: bytes, acks: int = -1) -> dict[str, Any]:
    partitions = [{"index": at, "records": each} for at, each in enumerate(batches)]
    data = [{"name": topic, "partition_data": partitions}]
    return {"acks": acks, "timeout_ms": 30_000, "topic_data": data}


def produce(
    raw: Asks, topic: str, records: bytes, version: int = 9, **fields: Any
) -> tuple[int, int]:
    """The error code and the offset."""
    body = raw.ask(PRODUCE, version, produce_body(topic, records) | fields)
    (partition,) = body["responses"][0]["partition_responses"]
    return partition["error_code"], partition["base_offset"]


def fetch_body(
    topic: str,
    offset: int,
    most_bytes: int = 1 << 20,
    min_bytes: int = 1,
    wait_ms: int = 0,
    committed: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": most_bytes}
    partition |= {"current_leader_epoch": -1, **fields}
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 1 << 24,
        "isolation_level": int(committed),
        "topics": [{"topic": topic, "partitions": [partition]}],
    }


def fetched(raw: Asks, topic: str, offset: int, **fields: Any) -> dict[str, Any]:
    body = raw.ask(FETCH, 12, fetch_body(topic, offset, **fields))
    partition: dict[str, Any] = body["responses"][0]["partitions"][0]
    return partition


def create(raw: Asks, topic: str = TOPIC) -> None:
    raw.ask(METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
