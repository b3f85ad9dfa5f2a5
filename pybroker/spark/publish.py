"""From DataFrames to entries: executors encode, and the driver (or the executors) publish.

An output is a DataFrame with a column `value` (string or binary) and, if wanted, `key` (string),
`event_time` (timestamp) and `properties` (map of strings). All outputs of a batch become one Spark
job: their union, encoded into batched entries where the rows are. A null value is published as one
(`has_null_value`), and an empty key is a key. Messages without a key take turns over the partitions
of their topic.

Driver mode: the encoded entries come to the driver, which sends them. What failed, slow or doubled
tasks did does not matter, because tasks send nothing; and rows are published in the DataFrame's
order, so a sorted one arrives sorted on a topic without partitions.

Executor mode: tasks attach to the transaction and send. A task that runs twice would publish twice,
so the rows are fixed first (a local checkpoint: no task reads a shuffle, none is repeated for
another's sake), and a second attempt refuses to work, which fails the job and with it the
transaction. Order is kept within each of the DataFrame's partitions, not between them, for tasks
send side by side.
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
# The DataFrame's partition that the rows are of, where they go, the entry.
Destined = tuple[int, str, EncodedBatch]

# What a message's metadata takes beside its texts, and more.
_MESSAGE_OVERHEAD_BYTES = 64

_ENCODED_SCHEMA = "part int, topic string, messages int, uncompressed_size int, payload binary"
_SENT_SCHEMA = "messages long"


def publish_from_driver(
    outputs: Outputs, partitions: Partitions, session: Session, txn: Transaction, turn: int
) -> int:
    """Returns the number of messages. A send that fails makes the commit fail.

    `turn` says with which partition messages without a key begin.
    """
    count = 0
    rows = _rows(outputs).mapInArrow(
        lambda batches: map(_to_arrow, _encode(batches, partitions, turn)), _ENCODED_SCHEMA
    )
    for row in sorted(rows.collect(), key=lambda row: int(row.part)):
        batch = EncodedBatch(bytes(row.payload), row.messages, row.uncompressed_size)
        session.producer(row.topic).send_batch_async(batch, _ignore, txn=txn)
        count += row.messages
    return count


def publish_from_executors(
    outputs: Outputs, partitions: Partitions, service_url: str, txn_id: TxnId, turn: int
) -> int:
    """Returns the number of messages. Raises what Spark raises when a task failed."""
    rows = _rows(outputs).localCheckpoint(eager=True)
    sent = rows.mapInArrow(
        lambda batches: _send(_encode(batches, partitions, turn), service_url, txn_id),
        _SENT_SCHEMA,
    )
    return sum(row.messages for row in sent.collect())


def _ignore(result: object, message_id: object) -> None:
    """The transaction remembers the failure of any of its operations."""


def _rows(outputs: Outputs) -> DataFrame:
    shaped = [_shaped(topic, frame) for topic, frame in outputs.items()]
    union = reduce(DataFrame.unionAll, shaped)
    # A union has all its parts' tasks, most of them for a few rows each. Spark may put any of them
    # together; the column `part` remembers which they were.
    return union.coalesce(union.sparkSession.sparkContext.defaultParallelism)


def _shaped(topic: str, frame: DataFrame) -> DataFrame:
    def optional(name: str, kind: str) -> Column:
        column = F.col(name) if name in frame.columns else F.lit(None)
        return column.cast(kind).alias(name)

    if "value" not in frame.columns:
        raise NotAllowed(f"The output for {topic} has no column 'value'; it has {frame.columns}")
    return frame.select(
        F.lit(topic).alias("topic"),
        F.spark_partition_id().alias("part"),
        F.col("value").cast("binary").alias("value"),
        optional("key", "string"),
        F.unix_millis(optional("event_time", "timestamp")).alias("event_time"),
        optional("properties", "map<string,string>"),
    )


# --- on executors -------------------------------------------------------------------------------


class _OpenEntry:
    """The messages of one part that will leave together for one partition."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._messages: list[Outgoing] = []
        self._size_bytes = 0

    def takes(self, part: int, size_bytes: int) -> bool:
        """A message that is larger than an entry should be has one of its own."""
        return (
            part == self._part
            and len(self._messages) < MAX_ENTRY_MESSAGES
            and self._size_bytes + size_bytes <= MAX_ENTRY_BYTES
        )

    def add(self, message: Outgoing, size_bytes: int) -> None:
        self._messages.append(message)
        self._size_bytes += size_bytes

    def destined(self, partition: str) -> Destined:
        return self._part, partition, encode_batch(self._messages)


def _encode(
    batches: Iterable[pa.RecordBatch], partitions: Partitions, turn: int
) -> Iterator[Destined]:
    turns = dict.fromkeys(partitions, turn)
    entries: dict[str, _OpenEntry] = {}
    for batch in batches:
        columns = (batch.column(index).to_pylist() for index in range(batch.num_columns))
        for topic, part, *content in zip(*columns, strict=True):
            message = _outgoing(*content)
            size_bytes = _size_bytes(message)
            partition = _partition(message, partitions[topic], part + turns[topic])
            while partition in entries and not entries[partition].takes(part, size_bytes):
                yield entries.pop(partition).destined(partition)
                turns[topic] += message.partition_key is None
                partition = _partition(message, partitions[topic], part + turns[topic])
            entries.setdefault(partition, _OpenEntry(part)).add(message, size_bytes)
    for partition, entry in entries.items():
        yield entry.destined(partition)


def _partition(message: Outgoing, names: Sequence[str], turn: int) -> str:
    if message.partition_key is not None:
        return names[partition_for_key(message.partition_key, len(names))]
    return names[turn % len(names)]


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
        null_value=value is None,
    )


def _size_bytes(message: Outgoing) -> int:
    """No less than it will take, where its texts are ASCII."""
    size = _MESSAGE_OVERHEAD_BYTES + len(message.content) + len(message.partition_key or "")
    if message.properties:
        size += sum(len(name) + len(text) + 16 for name, text in message.properties.items())
    return size


def _to_arrow(destined: Destined) -> pa.RecordBatch:
    part, partition, batch = destined
    return pa.RecordBatch.from_arrays(
        [
            pa.array([part], pa.int32()),
            pa.array([partition], pa.string()),
            pa.array([batch.message_count], pa.int32()),
            pa.array([batch.uncompressed_size], pa.int32()),
            pa.array([batch.payload], pa.binary()),
        ],
        names=["part", "topic", "messages", "uncompressed_size", "payload"],
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
    for _, partition, batch in entries:
        if partition not in producers:
            name = f"spark-{txn_id.most}-{txn_id.least}-{task}"
            producers[partition] = client.create_producer(partition, producer_name=name)
        producers[partition].send_batch(batch, txn=txn)
        sent += batch.message_count
    return sent
