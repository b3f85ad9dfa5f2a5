"""What Spark has planned for a batch, from the files of the query's checkpoint.

Spark writes offsets/<batch id> before the batch runs, and reads the same file when it runs the
batch again: a version, the batch's metadata as JSON, and each source's end offset, in version 1 by
the sources' order, in version 2 after the source's name and a colon. Spark's source of files only
counts its batches there, and writes their files to sources/<source>/<count>.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pybroker.base.errors import MetadataError

_FILES: Final = "logOffset"
# Every tenth file of a source of files repeats all earlier ones, and has this suffix.
_COMPACTED: Final = ".compact"

# Returns the text of a file of the checkpoint, by its path there; None if there is no such file.
Read = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    # Each source's offset, unparsed, by the source's name.
    sources: Mapping[str, str]
    # Digests: of the offsets, and of the files that sources of files read; empty without any.
    offsets: str
    files: str = ""

    @classmethod
    def read(cls, read: Read, location: str, batch_id: int) -> Self:
        """`location` is the checkpoint's, for errors. Raises MetadataError."""
        text = read(f"offsets/{batch_id}")
        if text is None:
            raise MetadataError(f"{location} holds no offsets of batch {batch_id}")
        version, _, rest = text.partition("\n")
        if version not in _NAMED:
            raise MetadataError(
                f"{location}/offsets/{batch_id} has version {version}, which this version of "
                f"pybroker cannot read: it supports {' and '.join(_NAMED)}"
            )
        lines = rest.splitlines()[1:]
        named = _NAMED[version](lines)
        return cls(named, _digest(lines), _digest_of_files(read, named))


def _by_order(lines: Sequence[str]) -> dict[str, str]:
    return {str(index): line for index, line in enumerate(lines)}


def _by_name(lines: Sequence[str]) -> dict[str, str]:
    """A source that has no name has its number."""
    parts = (line.partition(":") for line in lines)
    return {name: offset for name, _, offset in parts}


_NAMED: Final = {"v1": _by_order, "v2": _by_name}


def parsed(offset: str) -> Any:
    """An offset as JSON; None for sources whose offsets are not."""
    try:
        return json.loads(offset)
    except ValueError:
        return None


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _digest_of_files(read: Read, sources: Mapping[str, str]) -> str:
    lines = [
        f"{name} {line}"
        for name, offset in sources.items()
        for line in _files(read, name, parsed(offset))
    ]
    return _digest(lines) if lines else ""


def _files(read: Read, source: str, offset: Any) -> Iterator[str]:
    """A line for each file of the source's newest batch, sorted."""
    if not isinstance(offset, dict) or offset.keys() != {_FILES}:
        return
    count = offset[_FILES]
    place = f"sources/{source}/{count}"
    text = read(place)
    if text is None:
        text = read(place + _COMPACTED)
    for line in sorted((text or "").splitlines()):
        file = parsed(line)
        if isinstance(file, dict) and file.get("batchId") == count:
            yield line
