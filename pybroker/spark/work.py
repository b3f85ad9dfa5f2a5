"""One micro-batch, as planned in Spark's checkpoint."""

from dataclasses import dataclass

from pybroker.spark.offsets import Progress


@dataclass(frozen=True, slots=True)
class Work:
    """Which batch it is and what it reads; `sources` is a digest of all its sources' offsets.

    `goes_on_at_cursor`: each source of the query has a cursor that its transactions move, so a new
    checkpoint continues there. Otherwise (files, a sink that knows no sources) it does not.
    """

    query_id: str
    batch_id: int
    progress: Progress
    sources: str = ""
    goes_on_at_cursor: bool = False
