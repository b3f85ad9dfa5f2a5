"""What Spark itself costs: a source in Python that reads nothing, and hands ready columns over.

They are those of format("pulsar"), of as many rows of as many bytes, in batches as large. No source
in Python can be faster.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from pybroker.spark.columns.shape import default_schema
from pybroker.spark.compat import ReadLimit

FORMAT: Final = "ready"
# What a task of format("pulsar") takes together.
_BATCH_ROWS: Final = 20_000
_ROW_BYTES: Final = 100
_ID_BYTES: Final = 14
_TIME_US: Final = 1_700_000_000_000_000

# The tasks' Python does not find this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    ready = _batch(min(rows, _BATCH_ROWS))
    for left in range(rows, 0, -_BATCH_ROWS):
        yield ready.slice(0, left)


def _batch(rows: int) -> pa.RecordBatch:
    text, time = pa.string(), pa.timestamp("us", "UTC")
    columns = {
        "value": pa.array([bytes(_ROW_BYTES)] * rows, pa.binary()),
        "__key": pa.nulls(rows, pa.binary()),
        "__topic": pa.array(["persistent://public/default/spark-partition-0"] * rows, text),
        "__messageId": pa.array([bytes(_ID_BYTES)] * rows, pa.binary()),
        "__publishTime": pa.array([_TIME_US] * rows, time),
        "__eventTime": pa.nulls(rows, time),
        "__messageProperties": pa.array([[]] * rows, pa.map_(text, text)),
    }
    return pa.RecordBatch.from_pydict(columns)


class Ready(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return default_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ReadyStreamReader(self.options)


class _Ready:
    def __init__(self, options: Any) -> None:
        self._parts = int(options["parts"])
        self._rows = int(options["rows"]) // self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return batches(self._rows)

    def _partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]


class ReadyReader(_Ready, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return self._partitions()


class ReadyStreamReader(_Ready, DataSourceStreamReader):
    """One batch."""

    def initialOffset(self) -> dict[str, Any]:
        return {"batches": 0}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        return {"batches": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._partitions() if start != end else []
