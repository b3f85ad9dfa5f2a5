"""The cost of Spark itself: a Python source that reads nothing and returns prebuilt columns.

The columns, row counts, sizes and batches are those of format("pulsar"). No Python source can be
faster.
"""

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
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
# The batch size of a task of format("pulsar").
_BATCH_ROWS: Final = 20_000
_ROW_BYTES: Final = 100
_ID_BYTES: Final = 14
_TIME_US: Final = 1_700_000_000_000_000

# The Python of the tasks cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    ready = _batch(min(rows, _BATCH_ROWS))
    for left in range(rows, 0, -_BATCH_ROWS):
        yield ready.slice(0, left)


def _batch(rows: int) -> pa.RecordBatch:
    """Built from buffers: for Python values pyarrow would import pandas, for a second of CPU."""
    text, time = pa.string(), pa.timestamp("us", "UTC")

    def repeated(value: bytes, type: pa.DataType) -> pa.Array:
        offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * len(value))
        return pa.Array.from_buffers(type, rows, [None, offsets, pa.py_buffer(value * rows)])

    times = pa.py_buffer(np.full(rows, _TIME_US))
    none = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(bytes(4 * rows + 4))])
    columns = {
        "value": repeated(bytes(_ROW_BYTES), pa.binary()),
        "__key": pa.nulls(rows, pa.binary()),
        "__topic": repeated(b"persistent://public/default/spark-partition-0", text),
        "__messageId": repeated(bytes(_ID_BYTES), pa.binary()),
        "__publishTime": pa.Array.from_buffers(time, rows, [None, times]),
        "__eventTime": pa.nulls(rows, time),
        "__messageProperties": pa.MapArray.from_arrays(none, pa.nulls(0, text), pa.nulls(0, text)),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


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
