"""One micro-batch, as Spark's checkpoint has planned it."""

from dataclasses import dataclass

from pybroker.spark.offsets import Progress


@dataclass(frozen=True, slots=True)
class Work:
    """Which batch it is and what it reads; `sources` is a digest of all its sources' offsets."""

    query_id: str
    batch_id: int
    progress: Progress
    sources: str = ""
