"""One micro-batch, as planned in Spark's checkpoint."""

from dataclasses import dataclass

from pybroker.spark.offsets import Progress


@dataclass(frozen=True, slots=True)
class Work:
    """A batch and what it reads.

    `sources` is a digest of the offsets of all its sources, empty if they are unknown; `files` is
    one of the files that it reads, empty without any (pybroker.spark.offset_log).
    `goes_on_at_cursor`: each source of the query has a cursor that the query's transactions move,
    so a new checkpoint continues there. False for files, and for a sink that knows no sources.
    """

    query_id: str
    batch_id: int
    progress: Progress
    sources: str = ""
    files: str = ""
    goes_on_at_cursor: bool = False
