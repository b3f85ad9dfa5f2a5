"""The outputs of a foreachBatch: DataFrames for several topics, written by one Spark job.

An output is a DataFrame with a column `value` (string or binary) and, if wanted, `__key` (string or
binary), `__eventTime` (timestamp, or ms) and `__messageProperties` (map of strings), or `key`,
`event_time` and `properties`: as for the sink (pybroker.spark.writing.rows), so that what a source
hands out can be published as it is. All outputs of a batch become one Spark job: their union,
encoded into batched entries where the rows are (pybroker.spark.writing).

A task that has many entries publishes them itself; order is kept within each of the DataFrame's
partitions, not between them. In driver mode all entries come to the driver, which sends them in the
DataFrame's order, so a sorted one arrives sorted on a topic without partitions.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from pybroker.errors import NotAllowed
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.entries import Destined, EntryEncoder, Partitions
from pybroker.spark.writing.rows import rows_of

Outputs = Mapping[str, DataFrame]

_RESULT_SCHEMA: Final = "written binary"


def publish_outputs(
    outputs: Outputs, partitions: Partitions, job: Job, turn: int
) -> Sequence[Written]:
    """What the accepted attempts did. Raises what Spark raises when a task failed.

    `turn` says with which partition messages without a key begin.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = write(job, _encode(batches, partitions, turn))
        yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})

    results = _rows(outputs).mapInArrow(run, _RESULT_SCHEMA).collect()
    return [pickle.loads(bytes(row.written)) for row in results]


def _encode(
    batches: Iterable[pa.RecordBatch], partitions: Partitions, turn: int
) -> Iterator[Destined]:
    encoder = EntryEncoder(partitions, turn)
    for batch in batches:
        yield from encoder.encode(batch)


def _rows(outputs: Outputs) -> DataFrame:
    shaped = [_shaped(topic, frame) for topic, frame in outputs.items()]
    union = reduce(DataFrame.unionAll, shaped)
    # A union has all its parts' tasks, most of them for a few rows each. Spark may put any of them
    # together; the column `part` remembers which they were.
    return union.coalesce(union.sparkSession.sparkContext.defaultParallelism)


def _shaped(topic: str, frame: DataFrame) -> DataFrame:
    """As EntryEncoder takes it. Raises NotAllowed for a column that is no part of a message: to
    leave it out in silence would lose a key by another name."""
    rows = rows_of(frame.schema, topic)
    if not rows.is_raw:
        raise NotAllowed(
            f"The output for {topic} has no column 'value' of text or bytes; it has {frame.columns}"
        )

    def column(part: str) -> Column:
        return frame[f"`{rows.parts[part]}`"] if part in rows.parts else F.lit(None)

    return frame.select(
        F.lit(topic).alias("topic"),
        F.spark_partition_id().alias("part"),
        frame["value"].cast("binary").alias("value"),
        column("key").cast("binary").alias("key"),
        _in_ms(frame, column("event_time"), rows.parts.get("event_time")).alias("event_time"),
        column("properties").cast("map<string,string>").alias("properties"),
    )


def _in_ms(frame: DataFrame, column: Column, name: str | None) -> Column:
    """Numbers are milliseconds already, as for the sink."""
    if name is not None and isinstance(frame.schema[name].dataType, LongType):
        return column
    return F.unix_millis(column.cast("timestamp"))
