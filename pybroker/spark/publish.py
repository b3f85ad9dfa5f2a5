"""From DataFrames to entries: executors encode, and the driver (or the executors) publish.

An output is a DataFrame with a column `value` (string or binary) and, if wanted, `key` (string),
`event_time` (timestamp) and `properties` (map of strings). All outputs of a batch become one Spark
job: their union, encoded into batched entries where the rows are.

Driver mode: the encoded entries come to the driver, which sends them. What failed, slow or doubled
tasks did does not matter, because tasks send nothing. Executor mode: tasks attach to the
transaction and send. A task that runs twice would publish twice, so the rows are fixed first
(a local checkpoint: no task reads a shuffle, none is repeated for another's sake), and a second
attempt refuses to work, which fails the job and with it the transaction.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pybroker.client import (
    Client,
    EncodedBatch,
    Outgoing,
    Transaction,
    encode_batch,
    partition_for_key,
)
from pybroker.errors import NotAllowed
from pybroker.names import TxnId
from pybroker.spark.session import Session, connect

MAX_ENTRY_MESSAGES = 1000
MAX_ENTRY_BYTES = 256 * 1024

Outputs = Mapping[str, DataFrame]
# Topic -> its partitions' names; a topic without partitions has itself.
Partitions = Mapping[str, Sequence[str]]
Destined = tuple[str, EncodedBatch]

_ENCODED_SCHEMA = "topic string, messages int, uncompressed_size int, payload binary"
_SENT_SCHEMA = "messages long"


def publish_from_driver(
    outputs: Outputs, partitions: Partitions, session: Session, txn: Transaction
) -> int:
    """Returns the number of messages. A send that fails makes the commit fail."""
    count = 0
    rows = _rows(outputs).mapInArrow(
        lambda batches: map(_to_arrow, _encode(batches, partitions)), _ENCODED_SCHEMA
    )
    for row in rows.collect():
        batch = EncodedBatch(bytes(row.payload), row.messages, row.uncompressed_size)
        session.producer(row.topic).send_batch_async(batch, _ignore, txn=txn)
        count += row.messages
    return count


def publish_from_executors(
    outputs: Outputs, partitions: Partitions, service_url: str, txn_id: TxnId
) -> int:
    """Returns the number of messages. Raises what Spark raises when a task failed."""
    rows = _rows(outputs).localCheckpoint(eager=True)
    sent = rows.mapInArrow(
        lambda batches: _send(_encode(batches, partitions), service_url, txn_id), _SENT_SCHEMA
    )
    return sum(row.messages for row in sent.collect())


def _ignore(result: object, message_id: object) -> None:
    """The transaction remembers the failure of any of its operations."""


def _rows(outputs: Outputs) -> DataFrame:
    shaped = [_shaped(topic, frame) for topic, frame in outputs.items()]
    union = reduce(DataFrame.unionAll, shaped)
    # A union has all its parts' tasks, most of them for a few rows each.
    return union.coalesce(union.sparkSession.sparkContext.defaultParallelism)


def _shaped(topic: str, frame: DataFrame) -> DataFrame:
    def optional(name: str, kind: str) -> Column:
        column = F.col(name) if name in frame.columns else F.lit(None)
        return column.cast(kind).alias(name)

    if "value" not in frame.columns:
        raise NotAllowed(f"The output for {topic} has no column 'value'; it has {frame.columns}")
    return frame.select(
        F.lit(topic).alias("topic"),
        F.col("value").cast("binary").alias("value"),
        optional("key", "string"),
        F.unix_millis(optional("event_time", "timestamp")).alias("event_time"),
        optional("properties", "map<string,string>"),
    )


# --- on executors -------------------------------------------------------------------------------


class _OpenEntry:
    """The messages that will leave together for one partition."""

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []
        self.size_bytes = 0

    def add(self, message: Outgoing) -> bool:
        """True when the entry is full."""
        self.messages.append(message)
        self.size_bytes += len(message.content)
        return len(self.messages) >= MAX_ENTRY_MESSAGES or self.size_bytes >= MAX_ENTRY_BYTES


def _encode(batches: Iterable[pa.RecordBatch], partitions: Partitions) -> Iterator[Destined]:
    turns = dict.fromkeys(partitions, 0)
    entries: dict[str, _OpenEntry] = {}
    for batch in batches:
        columns = (batch.column(index).to_pylist() for index in range(batch.num_columns))
        for topic, value, key, event_time, properties in zip(*columns, strict=True):
            names = partitions[topic]
            index = partition_for_key(key, len(names)) if key is not None else turns[topic]
            partition = names[index % len(names)]
            entry = entries.setdefault(partition, _OpenEntry())
            if entry.add(_outgoing(value, key, event_time, properties)):
                turns[topic] += 1
                yield partition, encode_batch(entries.pop(partition).messages)
    for partition, entry in entries.items():
        yield partition, encode_batch(entry.messages)


def _outgoing(
    value: bytes | None,
    key: str | None,
    event_time: int | None,
    properties: Sequence[tuple[str, str]] | None,
) -> Outgoing:
    return Outgoing(
        value or b"",
        partition_key=key,
        event_timestamp=event_time,
        properties=dict(properties) if properties else None,
    )


def _to_arrow(destined: Destined) -> pa.RecordBatch:
    partition, batch = destined
    return pa.RecordBatch.from_arrays(
        [
            pa.array([partition], pa.string()),
            pa.array([batch.message_count], pa.int32()),
            pa.array([batch.uncompressed_size], pa.int32()),
            pa.array([batch.payload], pa.binary()),
        ],
        names=["topic", "messages", "uncompressed_size", "payload"],
    )


def _send(entries: Iterable[Destined], service_url: str, txn_id: TxnId) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    assert task is not None
    if task.attemptNumber() > 0:
        raise NotAllowed(
            f"Task {task.partitionId()} runs again, and its first attempt may have published to "
            f"transaction {txn_id}: the whole batch has to run again in a new transaction"
        )
    client = connect(service_url)
    try:
        sent = _send_all(client, entries, txn_id, task.partitionId())
    finally:
        client.close()
    yield pa.RecordBatch.from_arrays([pa.array([sent], pa.int64())], names=["messages"])


def _send_all(client: Client, entries: Iterable[Destined], txn_id: TxnId, task: int) -> int:
    """Each producer's name holds the TxnID: deduplication by name and sequence id must not drop
    a batch's messages because an aborted transaction sent the same numbers."""
    txn = client.attach_transaction(txn_id)
    producers = {}
    sent = 0
    for partition, batch in entries:
        if partition not in producers:
            name = f"spark-{txn_id.most}-{txn_id.least}-{task}"
            producers[partition] = client.create_producer(partition, producer_name=name)
        producers[partition].send_batch(batch, txn=txn)
        sent += batch.message_count
    return sent
