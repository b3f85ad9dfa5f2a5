"""Spark passes Arrow batches to a writer. PySpark 4.0 passes rows to a stream's writer; this module
makes batches of them, at the cost of an object per row."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
else:
    StreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

__all__ = ["StreamArrowWriter", "in_batches"]

_ROWS: Final = 10_000


def in_batches(
    given: Iterator[Row | pa.RecordBatch], columns: StructType
) -> Iterator[pa.RecordBatch]:
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        yield from given
        return
    # The values of a row do not reveal their types: a map looks like a struct, a null like
    # anything.
    from pyspark.sql.conversion import LocalDataToArrowConversion as Conversion

    while some := list(islice(given, _ROWS)):
        yield from Conversion.convert(some, columns, False).combine_chunks().to_batches()
