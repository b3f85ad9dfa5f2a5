"""The outputs of a foreachBatch: DataFrames for several topics, written by one Spark job.

An output is a DataFrame with a column `value` (string or binary) and, optionally, `__key` (string
or binary), `__eventTime` (timestamp, or ms) and `__messageProperties` (map of strings), or `key`,
`event_time` and `properties`, as for the sink (pybroker.spark.writing.rows): so a source's rows can
be published unchanged. All outputs of a batch become one Spark job: their union, encoded into
batched entries where the rows are (pybroker.spark.writing).

A task with many entries publishes them itself; order is kept within each partition of the
DataFrame, not between them. In driver mode all entries go to the driver, which sends them in the
DataFrame's order, so a sorted DataFrame arrives sorted on a topic without partitions.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from pybroker.base.errors import NotAllowed
from pybroker.client import BatchingType
from pybroker.spark.writing.attempt import Job, Written, write
from pybroker.spark.writing.entries import Destined, EntryEncoder, Partitions
from pybroker.spark.writing.rows import ARROW_TYPES, rows_of

Outputs = Mapping[str, DataFrame]

_RESULT_SCHEMA: Final = "written binary"
_MAP: Final = "map<string,string>"


def publish_outputs(
    outputs: Outputs,
    partitions: Partitions,
    job: Job,
    turn: int,
    batching_type: BatchingType = BatchingType.Default,
) -> Sequence[Written]:
    """Returns the results of the accepted attempts. Raises Spark's error if a task failed.

    `turn` selects the partition where messages without a key begin.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoder = EntryEncoder(partitions, turn, batching_type=batching_type)
        written = write(job, _encode(batches, encoder))
        yield pa.RecordBatch.from_pydict({"written": [pickle.dumps(written)]})

    results = message_columns(outputs).mapInArrow(run, _RESULT_SCHEMA).collect()
    return [pickle.loads(bytes(row.written)) for row in results]


def _encode(batches: Iterable[pa.RecordBatch], encoder: EntryEncoder) -> Iterator[Destined]:
    for batch in batches:
        yield from encoder.encode(_with_all_columns(batch))


def _with_all_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    given = dict(zip(batch.schema.names, batch.columns, strict=True))
    absent = {part: kind for part, kind in ARROW_TYPES.items() if part not in given}
    nulls = {part: pa.nulls(batch.num_rows, kind) for part, kind in absent.items()}
    return pa.RecordBatch.from_pydict(given | nulls)


def message_columns(outputs: Outputs) -> DataFrame:
    """The union of all outputs, with only the columns that some output has: filling others would
    cost Spark work per row."""
    parts = {topic: _parts(topic, frame) for topic, frame in outputs.items()}
    wanted = sorted(set[str]().union(*parts.values()))
    shaped = [_shaped(topic, frame, parts[topic], wanted) for topic, frame in outputs.items()]
    union = reduce(DataFrame.unionAll, shaped)
    # A union has all its parts' tasks, most of them for a few rows each. Spark may coalesce them;
    # the column `part` remembers which output each row is from.
    return union.coalesce(union.sparkSession.sparkContext.defaultParallelism)


def _parts(topic: str, frame: DataFrame) -> Mapping[str, str]:
    """The column of each part of a message. Raises NotAllowed for any other column: ignoring a
    misnamed key silently would lose it."""
    rows = rows_of(frame.schema, topic)
    if not rows.is_raw:
        raise NotAllowed(
            f"The output for {topic} has no string or binary column 'value', only {frame.columns}"
        )
    return {part: name for part, name in rows.parts.items() if part in _COLUMNS}


def _shaped(
    topic: str, frame: DataFrame, parts: Mapping[str, str], wanted: Iterable[str]
) -> DataFrame:
    """The output in the form that EntryEncoder expects."""
    columns = [_COLUMNS[part](frame, parts.get(part)).alias(part) for part in wanted]
    return frame.select(
        F.lit(topic).alias("topic"),
        F.spark_partition_id().alias("part"),
        frame["value"].cast("binary").alias("value"),
        *columns,
    )


def _key(frame: DataFrame, name: str | None) -> Column:
    return _column(frame, name).cast("binary")


def _event_time(frame: DataFrame, name: str | None) -> Column:
    """Numbers are already milliseconds, as for the sink."""
    if name is not None and isinstance(frame.schema[name].dataType, LongType):
        return _column(frame, name)
    return F.unix_millis(_column(frame, name).cast("timestamp"))


def _properties(frame: DataFrame, name: str | None) -> Column:
    """Null becomes an empty map: Spark would count a batch's nulls again for each row of maps."""
    none = F.create_map().cast(_MAP)
    return none if name is None else F.coalesce(_column(frame, name).cast(_MAP), none)


def _column(frame: DataFrame, name: str | None) -> Column:
    return F.lit(None) if name is None else frame[f"`{name}`"]


def _partition(frame: DataFrame, name: str | None) -> Column:
    return _column(frame, name).cast("bigint")


_COLUMNS: Final[Mapping[str, Callable[[DataFrame, str | None], Column]]] = {
    "key": _key,
    "event_time": _event_time,
    "properties": _properties,
    "partition": _partition,
}
