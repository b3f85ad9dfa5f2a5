"""Damage that is not noticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from managed_ledger.storage.embedded import ledger_files


@contextmanager
def damaged_blocks_are_shown() -> Iterator[None]:
    """The checksum of a block is not compared."""
    right = ledger_files.decode_header

    def believed(data: bytes, at: int, *where: Any) -> tuple[bytes, int, int, int, int]:
        header = right(data, at, *where)
        start = at + ledger_files.HEADER_BYTES
        body = data[start : start + header[3]]
        return (*header[:4], ledger_files.crc32c(body))

    with patch.object(ledger_files, "decode_header", believed):
        yield


BUGS = {
    "damaged-blocks-are-shown": damaged_blocks_are_shown,
}
