"""Reads Spark's checkpoint for exactly_once, and adds one file to it.

Spark writes offsets/<batch id> before a batch runs: a version, the batch's metadata, and one line
per source. exactly_once adds the id of the transaction that may be open, so that a driver that
takes over the checkpoint can end its predecessor's transaction instead of waiting for its timeout.
Files are read through Hadoop's file systems, because the checkpoint may be on any of them.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pybroker.base.errors import MetadataError, NotAllowed
from pybroker.base.names import TxnId
from pybroker.spark.offsets import CursorName, SourceOffset, Span, is_pulsar_offset
from pybroker.spark.work import Work

log = logging.getLogger("pybroker.spark")

_OFFSET_LOG_VERSION = "v1"
_OPEN_TRANSACTION = "pybroker-open-transaction"


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
        lines = self._sources(batch_id)
        before = self._sources(batch_id - 1) if batch_id > 0 else []
        _require_cursors_of_their_own(lines)
        progress: dict[CursorName, Span] = {}
        for index, line in enumerate(lines):
            unmoved = index < len(before) and before[index] == line
            offset = _ours(line, before[index] if index < len(before) else None)
            if offset is not None and not unmoved:
                progress.update(offset.progress())
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        have_cursors = all(_ours(line) is not None for line in lines)
        return Work(query_id, batch_id, progress, digest, goes_on_at_cursor=have_cursors)

    def open_transaction(self) -> TxnId | None:
        """None also for an incomplete file: its writer died before using the transaction."""
        try:
            text = self._read(_OPEN_TRANSACTION)
            return TxnId(*json.loads(text)) if text else None
        except (Py4JError, TypeError, ValueError) as error:
            log.warning(
                "%s/%s cannot be read, so its transaction stays open until it times out: %s",
                self._location,
                _OPEN_TRANSACTION,
                error,
            )
            return None

    def record_transaction(self, txn_id: TxnId) -> None:
        stream = self._files.create(self._path(_OPEN_TRANSACTION), True)
        try:
            stream.write(bytearray(json.dumps(txn_id).encode()))
        finally:
            stream.close()

    def _sources(self, batch_id: int) -> list[str]:
        """Each source's offset, unparsed."""
        text = self._read(f"offsets/{batch_id}")
        if text is None:
            raise MetadataError(f"{self._location} holds no offsets of batch {batch_id}")
        version, _, *sources = text.splitlines()
        if version != _OFFSET_LOG_VERSION:
            raise MetadataError(
                f"{self._location}/offsets/{batch_id} has version {version}, which this version of "
                f"pybroker cannot read: it supports {_OFFSET_LOG_VERSION}"
            )
        return sources

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
    offset = _parsed(line)
    if not is_pulsar_offset(offset):
        return None
    earlier = _parsed(before) if before is not None else None
    return SourceOffset.from_json(offset, earlier if is_pulsar_offset(earlier) else None)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _require_cursors_of_their_own(lines: Sequence[str]) -> None:
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
