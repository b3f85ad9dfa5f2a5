"""What Spark hands to a writer: Arrow batches. PySpark 4.0 hands rows to a stream's, which are put
together to batches here, at the price of an object a row."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Row, datasource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    StreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

__all__ = ["StreamArrowWriter", "in_batches"]

_ROWS: Final = 10_000


def in_batches(given: Iterator[Row | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        yield from given
        return
    while some := list(islice(given, _ROWS)):
        yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in some])
