"""The frames of one journal file, and where they end: torn by a crash, or corrupt.

Only what was written after the last sync can be missing after a crash. A bad frame is torn, and the
journal ends before it, if it is in the last journal and either reaches beyond the end of the file
or has lost a sector (which then reads as zeros, more of them than the header counts), and if no
good frame behind it says that it had been synced. Any other bad frame may have been acknowledged:
that is corruption, and nothing is touched.

What this cannot tell: a file cut off exactly between two frames is a shorter journal; and within
the very last frame, a sector zeroed by something else than a crash.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.embedded.journal_format import (
    END,
    HEADER_BYTES,
    MAGIC,
    SECTOR,
    FrameHeader,
    decode_header,
    zero_sectors,
)


@dataclass(frozen=True, slots=True)
class Torn:
    """The journal ends at `offset`; the bytes behind it are of writes never acknowledged."""

    offset: int
    lost_bytes: int


class JournalScan:
    """Iterate for the bodies of the good frames; `torn` is set afterwards if there was a tail."""

    def __init__(self, name: str, generation: int, data: bytes, is_last: bool) -> None:
        self._name = name
        self._generation = generation
        self._data = data
        self._is_last = is_last
        self.torn: Torn | None = None

    def __iter__(self) -> Iterator[bytes]:
        """Raises CorruptStorage at a bad frame that is not torn."""
        offset = 0
        while offset < len(self._data):
            header = self._header(offset)
            if header is None or not self._is_whole(header):
                self._end_at(offset, header)
                return
            yield self._data[header.body_start : header.body_start + header.body_bytes]
            offset = header.end

    def _header(self, offset: int) -> FrameHeader | None:
        header = decode_header(self._data, offset)
        return header if header and header.generation == self._generation else None

    def _is_whole(self, header: FrameHeader) -> bool:
        body_end = header.body_start + header.body_bytes
        body = memoryview(self._data)[header.body_start : body_end]
        return self._data[body_end : header.end] == END and crc32c(body) == header.body_crc

    def _end_at(self, offset: int, header: FrameHeader | None) -> None:
        was_torn = self._header_is_torn(offset) if header is None else self._body_is_torn(header)
        if not self._is_last or not was_torn or self._was_synced(offset, header):
            raise CorruptStorage(
                f"{self._name} is corrupt at offset {offset}: a write that may have been "
                "acknowledged does not read back. Nothing was changed. Check the disk, and restore "
                "the data directory from a backup; or, giving up all that was written since, cut "
                f"the file off at that offset (truncate -s {offset} {self._name})"
            )
        self.torn = Torn(offset, len(self._data) - offset)

    def _body_is_torn(self, header: FrameHeader) -> bool:
        if header.end > len(self._data):
            return True
        body_and_end = self._data[header.body_start : header.end]
        return zero_sectors([body_and_end], header.body_start) > header.zero_sectors

    def _header_is_torn(self, offset: int) -> bool:
        """A header may lie across two sectors; the first one has its beginning lost if the rest
        of it is zeros.
        """
        end = offset + HEADER_BYTES
        if end > len(self._data):
            return True
        border = offset - offset % SECTOR + SECTOR
        first_is_lost = not any(self._data[offset:border])
        second_is_lost = border < end and not any(self._data[border : border + SECTOR])
        return first_is_lost or second_is_lost

    def _was_synced(self, offset: int, header: FrameHeader | None) -> bool:
        """Does a good frame further on say that the file was synced beyond `offset`?"""
        at = header.end if header else offset + 1
        while (at := self._data.find(MAGIC, at)) >= 0:
            later = self._header(at)
            if later is not None and later.synced_to > offset:
                return True
            at += 1
        return False
