"""Reads Spark's checkpoint for exactly_once, and adds one file to it.

Spark writes offsets/<batch id> before a batch runs (pybroker.spark.offset_log). exactly_once adds
the id of the transaction that may be open, so that a driver that takes over the checkpoint can end
its predecessor's transaction instead of waiting for its timeout. Files are read through Hadoop's
file systems, because the checkpoint may be on any of them.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pybroker.base.errors import MetadataError, NotAllowed
from pybroker.base.names import TxnId
from pybroker.spark.offset_log import PlannedBatch, parsed
from pybroker.spark.offsets import CursorName, SourceOffset, Span, is_pulsar_offset
from pybroker.spark.work import Work

log = logging.getLogger("pybroker.spark")

_OPEN_TRANSACTION = "pybroker-open-transaction"


class LeftOpen(NamedTuple):
    """A transaction of the driver's. With a database: the name of its row there, the database's id,
    and the batch that it is for. Earlier versions noted neither of the last two.
    """

    txn_id: TxnId
    row_name: str = ""
    database_id: str = ""
    batch_id: int = -1

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises TypeError or ValueError for other JSON, or none."""
        most, least, *of_database = json.loads(text)
        return cls(TxnId(most, least), *of_database)

    def to_json(self) -> str:
        return json.dumps([*self.txn_id, *(self[1:] if self.row_name else ())])


class Checkpoint:
    def __init__(self, spark: SparkSession, location: str) -> None:
        context = spark.sparkContext
        self._jvm: Any = context._jvm
        self._location = location
        path = self._path("")
        self._files = path.getFileSystem(context._jsc.hadoopConfiguration())

    def require(self, query_id: str) -> None:
        """Raises MetadataError if this is another query's checkpoint or not a checkpoint."""
        text = self._read("metadata")
        if text is None or json.loads(text)["id"] != query_id:
            raise MetadataError(
                f"{self._location} is not the checkpoint of query {query_id}: give exactly_once "
                "the location set in the option checkpointLocation"
            )

    def work(self, query_id: str, batch_id: int) -> Work:
        """What the batch reads from this format's sources; a source that did not move reads
        nothing.

        Raises NotAllowed if two sources share a cursor: it can track the messages of only one.
        """
        planned = self._planned(batch_id)
        before = self._planned(batch_id - 1).sources if batch_id > 0 else {}
        _require_cursors_of_their_own(planned.sources.values())
        progress: dict[CursorName, Span] = {}
        for name, line in planned.sources.items():
            offset = _ours(line, before.get(name))
            if offset is not None and before.get(name) != line:
                progress.update(offset.progress())
        have_cursors = all(_ours(line) is not None for line in planned.sources.values())
        return Work(query_id, batch_id, progress, planned.offsets, planned.files, have_cursors)

    def open_transaction(self) -> LeftOpen | None:
        """None also for an incomplete file: its writer died before using the transaction."""
        try:
            text = self._read(_OPEN_TRANSACTION)
            return LeftOpen.from_json(text) if text else None
        except (Py4JError, TypeError, ValueError) as error:
            log.warning(
                "%s/%s cannot be read, so its transaction stays open until it times out: %s",
                self._location,
                _OPEN_TRANSACTION,
                error,
            )
            return None

    def record_transaction(self, left_open: LeftOpen) -> None:
        stream = self._files.create(self._path(_OPEN_TRANSACTION), True)
        try:
            stream.write(bytearray(left_open.to_json().encode()))
        finally:
            stream.close()

    def _planned(self, batch_id: int) -> PlannedBatch:
        return PlannedBatch.read(self._read, self._location, batch_id)

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        suffix = f"/{name}" if name else ""
        return self._jvm.org.apache.hadoop.fs.Path(self._location + suffix)


def _ours(line: str, before: str | None = None) -> SourceOffset | None:
    """Other sources may write lines that are not JSON; ignore them."""
    offset = parsed(line)
    if not is_pulsar_offset(offset):
        return None
    earlier = parsed(before) if before is not None else None
    return SourceOffset.from_json(offset, earlier if is_pulsar_offset(earlier) else None)


def _require_cursors_of_their_own(lines: Iterable[str]) -> None:
    seen: set[CursorName] = set()
    for offset in filter(None, map(_ours, lines)):
        cursors = {CursorName(topic, offset.subscription) for topic in offset.spans}
        for shared in sorted(seen & cursors):
            raise NotAllowed(
                f"Two sources of this query read {shared}, but its cursor can follow only one of "
                "them: give each source its own subscription (or, for a union, use one DataFrame "
                "twice)"
            )
        seen |= cursors
