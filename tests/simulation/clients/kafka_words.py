"""Requests of Kafka's protocol, in a word each, for the simulation's clients."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kafka_batches import split_batches

from clients.kafka_peer import Body, KafkaClient
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.records.batch import TRANSACTIONAL, build_batch, checked
from pybroker.kafka.records.record import Record, read_records, write_records
from pybroker.kafka.records.steps import at_once

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 22, 24, 26
PRODUCE_VERSION: Final = 11  # the last one that does not add partitions to transactions
_HEADER_BYTES: Final = 61
_TIMEOUT_MS: Final = 5000
_EARLIEST: Final = -2
_MOST_BYTES: Final = 1 << 20
# What a client answers by asking again, on whatever connection.
AGAIN: Final = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a Pulsar client will create it
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
)


class Place(NamedTuple):
    """A partition, as Kafka's clients name it."""

    topic: str
    partition: int = 0


class Key(NamedTuple):
    """The id and epoch of a producer."""

    producer_id: int
    epoch: int


class Shown(NamedTuple):
    """A record that a reader was handed."""

    offset: int
    value: str


class Answer(NamedTuple):
    """Of one partition."""

    code: ErrorCode
    offset: int = -1


def batch_of(
    values: Sequence[bytes], keys: Sequence[str], key: Key, first: int, in_txn: bool = False
) -> bytes:
    """A RecordBatch whose first sequence is `first`."""
    records = [
        Record(at, 0, name.encode(), value)
        for at, (name, value) in enumerate(zip(keys, values, strict=True))
    ]
    return build_batch(
        at_once(write_records(records)),
        len(records),
        len(records) - 1,
        attributes=TRANSACTIONAL if in_txn else 0,
        producer_id=key.producer_id,
        producer_epoch=key.epoch,
        base_sequence=first,
    )


def produce_body(place: Place, batch: bytes, transactional_id: str | None = None) -> Body:
    data = {"index": place.partition, "records": batch}
    return {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout_ms": _TIMEOUT_MS,
        "topic_data": [{"name": place.topic, "partition_data": [data]}],
    }


def answer_to_produce(body: Body) -> Answer:
    (found,) = body["responses"][0]["partition_responses"]
    return Answer(ErrorCode(found["error_code"]), found["base_offset"])


async def new_producer_id(client: KafkaClient) -> Key | ErrorCode:
    """Without a transactional id."""
    asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    body = await client.ask(INIT_PRODUCER_ID, 4, asked)
    code = ErrorCode(body["error_code"])
    return code or Key(body["producer_id"], body["producer_epoch"])


class Fetched(NamedTuple):
    code: ErrorCode
    shown: list[Shown]
    next_offset: int
    stable: int  # the last stable offset
    end: int


async def fetch(
    client: KafkaClient,
    place: Place,
    offset: int,
    committed: bool = True,
    wait_ms: int = 500,
    most_bytes: int = _MOST_BYTES,
) -> Fetched:
    """The records from `offset` on. Raises KafkaGone."""
    asked = {
        "partition": place.partition,
        "fetch_offset": offset,
        "partition_max_bytes": most_bytes,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
    }
    body = await client.ask(
        FETCH,
        12,
        {
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_bytes": _MOST_BYTES,
            "isolation_level": int(committed),
            "topics": [{"topic": place.topic, "partitions": [asked]}],
        },
    )
    found = body["responses"][0]["partitions"][0]
    shown, next_offset = _records(found["records"] or b"", offset)
    return Fetched(
        ErrorCode(found["error_code"]),
        shown,
        next_offset,
        found["last_stable_offset"],
        found["high_watermark"],
    )


def _records(data: bytes, offset: int) -> tuple[list[Shown], int]:
    """The records from `offset` on, and the offset after the last batch, whatever it contains."""
    shown, next_offset = [], offset
    for batch in split_batches(data):
        header = checked(batch)
        assert header.last_offset >= next_offset, "batches come in the order of their offsets"
        next_offset = header.last_offset + 1
        if header.is_control:
            continue
        for record in read_records(batch[_HEADER_BYTES:], header.record_count):
            at = header.base_offset + record.offset_delta
            if at >= offset:
                shown.append(Shown(at, value_of(record.value)))
    return shown, next_offset


def records_in(data: bytes) -> list[Shown]:
    """All records, wherever they are in the log."""
    return [each for batch in split_batches(data) for each in _records(batch, 0)[0]]


def value_of(data: bytes | None) -> str:
    return (data or b"").partition(b"|")[0].decode()


async def first_offset(client: KafkaClient, place: Place) -> Answer:
    """Where the log begins."""
    asked = {"partition_index": place.partition, "timestamp": _EARLIEST}
    topics = [{"name": place.topic, "partitions": [asked]}]
    body = await client.ask(LIST_OFFSETS, 7, {"replica_id": -1, "topics": topics})
    found = body["topics"][0]["partitions"][0]
    return Answer(ErrorCode(found["error_code"]), found["offset"])


# -- transactions


class Owner(NamedTuple):
    """A transactional producer, as its requests name it. `newer`: transaction.version 2."""

    transactional_id: str
    key: Key
    newer: bool

    @property
    def fields(self) -> Body:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.key.producer_id,
            "producer_epoch": self.key.epoch,
        }


async def init_transactional(
    client: KafkaClient, transactional_id: str, timeout_ms: int, former: Key | None = None
) -> Key | ErrorCode:
    """`former`: the producer goes on after an error (KIP-360)."""
    asked: Body = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    if former is not None:
        asked |= {"producer_id": former.producer_id, "producer_epoch": former.epoch}
    body = await client.ask(INIT_PRODUCER_ID, 4, asked)
    code = ErrorCode(body["error_code"])
    return code or Key(body["producer_id"], body["producer_epoch"])


async def add_partition(client: KafkaClient, owner: Owner, place: Place) -> ErrorCode:
    asked = {f"v3_and_below_{name}": value for name, value in owner.fields.items()}
    asked["v3_and_below_topics"] = [{"name": place.topic, "partitions": [place.partition]}]
    body = await client.ask(ADD_PARTITIONS, 3, asked)
    (found,) = body["results_by_topic_v3_and_below"][0]["results_by_partition"]
    return ErrorCode(found["partition_error_code"])


async def produce_in(client: KafkaClient, owner: Owner, place: Place, batch: bytes) -> Answer:
    version = PRODUCE_VERSION + owner.newer
    body = produce_body(place, batch, owner.transactional_id)
    return answer_to_produce(await client.ask(PRODUCE, version, body))


async def end(client: KafkaClient, owner: Owner, committed: bool) -> tuple[ErrorCode, Key]:
    """The key is the next one, with `newer`."""
    version = 5 if owner.newer else 3
    body = await client.ask(END_TXN, version, {**owner.fields, "committed": committed})
    code = ErrorCode(body["error_code"])
    if code is ErrorCode.NONE and owner.newer:
        return code, Key(body["producer_id"], body["producer_epoch"])
    return code, owner.key
