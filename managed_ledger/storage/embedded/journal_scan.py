"""The frames of one journal file; tells an end torn by a crash from corruption.

After a crash, only bytes written since the last sync can be missing. A bad frame is torn, and the
journal ends before it, if all of this holds: it is in the last journal; it extends beyond the end
of the file or has lost a sector (more sectors read as zeros than the header counts); and no later
good frame says that it had been synced. Any other bad frame may have been acknowledged: that is
corruption, and nothing is changed.

Two kinds of damage go undetected: a file cut exactly between two frames looks like a shorter
journal, and a sector of the very last frame that something else zeroed looks like a crash.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from managed_ledger.checksum import crc32c
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
    """The journal ends at `offset`; the bytes after it belong to writes that were never
    acknowledged.
    """

    offset: int
    lost_bytes: int


class JournalScan:
    """Iterates over the bodies of the good frames; afterwards `torn` is set if the end was torn."""

    def __init__(self, name: str, generation: int, data: bytes, is_last: bool) -> None:
        self.name = name
        self.generation = generation
        self._data = data
        self._is_last = is_last
        self.torn: Torn | None = None
        self.at = 0  # where the next frame begins

    def __iter__(self) -> Iterator[bytes]:
        """Raises CorruptStorage at a bad frame that is not torn."""
        while self.at < len(self._data):
            header = self._header(self.at)
            if header is None or not self._is_whole(header):
                self._end_at(self.at, header)
                return
            yield self._data[header.body_start : header.body_start + header.body_bytes]
            self.at = header.end

    def good_frames_behind(self) -> int:
        """The number of whole frames after the bad one."""
        found, at = 0, self.at + 1
        while (at := self._data.find(MAGIC, at)) >= 0:
            header = self._header(at)
            whole = header is not None and self._is_whole(header)
            found, at = found + whole, header.end if header is not None and whole else at + 1
        return found

    def _header(self, offset: int) -> FrameHeader | None:
        header = decode_header(self._data, offset)
        return header if header and header.generation == self.generation else None

    def _is_whole(self, header: FrameHeader) -> bool:
        body_end = header.body_start + header.body_bytes
        body = memoryview(self._data)[header.body_start : body_end]
        return self._data[body_end : header.end] == END and crc32c(body) == header.body_crc

    def _end_at(self, offset: int, header: FrameHeader | None) -> None:
        was_torn = self._header_is_torn(offset) if header is None else self._body_is_torn(header)
        if not self._is_last or not was_torn or self._was_synced(offset, header):
            raise CorruptStorage(
                f"{self.name} is corrupt at offset {offset}: a write that may have been "
                "acknowledged cannot be read back. Nothing was changed. Check the disk, and "
                "restore the data directory from a backup. To keep only what was written before "
                "that offset, run `pybroker check DIR --repair`"
            )
        self.torn = Torn(offset, len(self._data) - offset)

    def _body_is_torn(self, header: FrameHeader) -> bool:
        if header.end > len(self._data):
            return True
        body_and_end = self._data[header.body_start : header.end]
        return zero_sectors([body_and_end], header.body_start) > header.zero_sectors

    def _header_is_torn(self, offset: int) -> bool:
        """Whether a sector of the header was lost. A header may span two sectors; a lost first part
        reads as zeros up to the end of its sector.
        """
        end = offset + HEADER_BYTES
        if end > len(self._data):
            return True
        border = offset - offset % SECTOR + SECTOR
        first_is_lost = not any(self._data[offset:border])
        second_is_lost = border < end and not any(self._data[border : border + SECTOR])
        return first_is_lost or second_is_lost

    def _was_synced(self, offset: int, header: FrameHeader | None) -> bool:
        """Whether a later frame's header says that the file was synced beyond `offset`."""
        at = header.end if header else offset + 1
        while (at := self._data.find(MAGIC, at)) >= 0:
            later = self._header(at)
            if later is not None and later.synced_to > offset:
                return True
            at += 1
        return False
