"""Differences between PySpark versions. 4.1 pushes filters down to spark.read. 4.2 lets a source
limit a trigger; 4.0 and 4.1 lack the names for it, call `latestOffset` without the batch's start,
and report no metrics of a source. With 4.0 and 4.1, a query's first batch after a start reads
everything there is.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader

__all__ = [
    "LIMITS_TRIGGERS",
    "PUSHES_FILTERS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

PUSHES_FILTERS: Final = hasattr(DataSourceReader, "pushFilters")

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    LIMITS_TRIGGERS = True
except ImportError:
    LIMITS_TRIGGERS = False
    if not TYPE_CHECKING:

        class ReadLimit:
            pass

        class ReadAllAvailable(ReadLimit):
            pass

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            max_bytes: int

        class SupportsTriggerAvailableNow:
            pass
