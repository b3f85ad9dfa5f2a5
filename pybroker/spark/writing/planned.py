"""The sink's view of the query's checkpoint: what Spark has planned for a batch.

The process of a batch's end runs beside the driver and has no JVM, so it cannot use Hadoop's file
systems. It reads local checkpoints itself and others through Arrow, which knows hdfs, s3, gs and
abfs. If the checkpoint cannot be read, a marker cannot tell what the batch has read.
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Final

from pybroker.base.errors import MetadataError
from pybroker.spark.offset_log import PlannedBatch, Read, parsed

log = logging.getLogger("pybroker.spark")

_LOCAL: Final = "file:"
_ARROWS_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}


def planned(location: str, query_id: str, batch_id: int) -> PlannedBatch | None:
    """`location`: the checkpoint's, as it was given to Spark. None, with a warning, if it cannot be
    read here."""
    try:
        read = _reader(location)
        _require(read, query_id)
        return PlannedBatch.read(read, location, batch_id)
    except (ImportError, MetadataError, OSError, ValueError) as error:
        _warn(location, str(error))
        return None


@lru_cache(maxsize=16)  # once for each query in this process, not for each batch
def _warn(location: str, reason: str) -> None:
    log.warning(
        "The sink cannot read the checkpoint %r (%s), so it does not notice if the checkpoint was "
        "replaced by a copy that is one batch older: never restore an older copy",
        location,
        reason,
    )


def _require(read: Read, query_id: str) -> None:
    """Raises MetadataError if it is not this query's checkpoint."""
    metadata = parsed(read("metadata") or "")
    if not isinstance(metadata, dict) or metadata.get("id") != query_id:
        raise MetadataError(f"it is not that of query {query_id}")


def _reader(location: str) -> Read:
    scheme, separator, path = location.partition("://")
    if not separator or location.startswith(_LOCAL):
        return _from_folder(_local(location))
    return _from_arrow(f"{_ARROWS_SCHEMES.get(scheme, scheme)}://{path}")


def _local(location: str) -> Path:
    """Hadoop's local paths have the form /path, file:/path or file:///path, without escapes."""
    path = location.removeprefix(_LOCAL)
    return Path("/" + path.lstrip("/") if location.startswith(_LOCAL) else path)


def _from_folder(folder: Path) -> Read:
    def read(name: str) -> str | None:
        try:
            return (folder / name).read_text("utf-8")
        except FileNotFoundError:
            return None

    return read


def _from_arrow(uri: str) -> Read:
    from pyarrow.fs import FileSystem

    files, root = FileSystem.from_uri(uri)

    def read(name: str) -> str | None:
        try:
            with files.open_input_stream(f"{root}/{name}") as stream:
                return str(stream.read().decode())
        except FileNotFoundError:
            return None

    return read
