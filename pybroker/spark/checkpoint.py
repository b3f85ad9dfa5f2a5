"""What the sink reads from Spark's checkpoint, and the one file that it adds to it.

Spark writes offsets/<batch id> before a batch runs: a version, the batch's metadata, one line for
each source. We add the id of the transaction that may be open, so that a driver which takes over
the checkpoint can end its predecessor's transaction instead of waiting for it to time out. Files go
through Hadoop's file systems, because the checkpoint may be on any of them.
"""

import json
from typing import Any

from pyspark.sql import SparkSession

from pybroker.errors import MetadataError
from pybroker.names import TxnId
from pybroker.spark.offsets import CursorName, SourceOffset, Span, is_pulsar_offset

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
        """Raises MetadataError if this is another query's checkpoint, or none."""
        text = self._read("metadata")
        if text is None or json.loads(text)["id"] != query_id:
            raise MetadataError(
                f"{self._location} is not the checkpoint of query {query_id}: give exactly_once "
                "the same location as the option checkpointLocation"
            )

    def progress(self, batch_id: int) -> dict[CursorName, Span]:
        """What the batch reads from our sources; a source that did not move reads nothing."""
        before = self._sources(batch_id - 1) if batch_id > 0 else []
        progress: dict[CursorName, Span] = {}
        for index, source in enumerate(self._sources(batch_id)):
            unmoved = index < len(before) and before[index] == source
            if is_pulsar_offset(source) and not unmoved:
                progress.update(SourceOffset.from_json(source).progress())
        return progress

    def open_transaction(self) -> TxnId | None:
        text = self._read(_OPEN_TRANSACTION)
        return TxnId(*json.loads(text)) if text else None

    def record_transaction(self, txn_id: TxnId) -> None:
        stream = self._files.create(self._path(_OPEN_TRANSACTION), True)
        try:
            stream.write(bytearray(json.dumps(txn_id).encode()))
        finally:
            stream.close()

    def _sources(self, batch_id: int) -> list[Any]:
        text = self._read(f"offsets/{batch_id}")
        if text is None:
            raise MetadataError(f"{self._location} holds no offsets of batch {batch_id}")
        version, _, *sources = text.splitlines()
        if version != _OFFSET_LOG_VERSION:
            raise MetadataError(
                f"{self._location}/offsets/{batch_id} has version {version}, which this pybroker "
                f"cannot read: it knows {_OFFSET_LOG_VERSION}"
            )
        return [_parsed(line) for line in sources]

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


def _parsed(line: str) -> object:
    """Other sources may write what is no JSON; such a line is none of ours."""
    try:
        return json.loads(line)
    except ValueError:
        return line
