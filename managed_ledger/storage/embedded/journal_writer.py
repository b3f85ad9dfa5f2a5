"""Writes frames to the end of the journal and syncs them, in the worker thread.

One commit runs at a time, so no two threads use a writer at once.
"""

from typing import Final

from managed_ledger.config import Clock
from managed_ledger.errors import StorageFull
from managed_ledger.histogram import Histogram
from managed_ledger.storage.embedded.disk import Disk, DiskFile, numbered_files
from managed_ledger.storage.embedded.disk_errors import failed, is_full, translated
from managed_ledger.storage.embedded.journal_format import encode_body, encode_frame
from managed_ledger.storage.embedded.room import Room, makes_room
from managed_ledger.storage.group_commit import Group

FOLDER: Final = "journal"


def journal_name(generation: int) -> str:
    return f"{FOLDER}/{generation:010d}"


def generations(disk: Disk) -> list[int]:
    """The generations of existing journals, oldest first; other files are ignored."""
    return numbered_files(disk, FOLDER, journal_name)


def create_journal(disk: Disk, generation: int) -> DiskFile:
    """A new journal. After an OSError there is no such file, so that the caller can retry."""
    file = disk.create(journal_name(generation))
    try:
        disk.sync_folder(FOLDER)
    except OSError:
        file.close()
        disk.unlink(journal_name(generation))
        raise
    return file


class JournalWriter:
    """Appends frames to the journal of the newest generation, whose valid part is `size` long."""

    def __init__(
        self, disk: Disk, generation: int, file: DiskFile, size: int, room: Room | None = None
    ) -> None:
        self._disk = disk
        self.room = room or Room(disk)
        self._file = file
        self._synced_to = size
        self.generation = generation
        self.size = size
        self._clock: Clock | None = None
        self._fsync_seconds: Histogram | None = None

    def time(self, clock: Clock, seconds: Histogram) -> None:
        """Add the duration of each sync to `seconds`."""
        self._clock, self._fsync_seconds = clock, seconds

    @property
    def name(self) -> str:
        return journal_name(self.generation)

    def write(self, group: Group, sync: bool, rotate: bool) -> None:
        """Raises StorageFull with the journal unchanged, or StorageFailed."""
        body = encode_body(group.operations)
        if rotate:
            self._try_to_rotate()
        if body:
            self._write_frame(body, all(map(makes_room, group.operations)))
        if sync:
            self.sync()

    def _try_to_rotate(self) -> None:
        """When room is low, a disk that is too full to rotate does not fail the pending write."""
        try:
            self.rotate()
        except StorageFull:
            if not self.room.is_low:
                raise

    def rotate(self) -> None:
        """Continue in a new journal, after the old one has been synced."""
        self.sync()
        generation = self.generation + 1
        try:
            file = create_journal(self._disk, generation)
        except OSError as error:
            raise translated(error, journal_name(generation)) from error
        self._file.close()
        self._file, self.generation = file, generation
        self.size = self._synced_to = 0

    def sync(self) -> None:
        """Raises StorageFailed if the disk reports an error: what is durable is unknown then."""
        if self._synced_to == self.size:
            return
        began_s = 0.0 if self._clock is None else self._clock.monotonic_s()
        try:
            self._file.fdatasync()
        except OSError as error:
            raise failed(error, self.name) from error
        self._synced_to = self.size
        if self._clock is not None and self._fsync_seconds is not None:
            self._fsync_seconds.add(self._clock.monotonic_s() - began_s)

    def close(self) -> None:
        self._file.close()

    def _write_frame(self, body: list[bytes], makes_room: bool) -> None:
        parts = encode_frame(body, self.generation, self.size, self._synced_to)
        try:
            self._file.pwritev_uncached(parts, self.size)
        except OSError as error:
            may_go_on = is_full(error) and makes_room and self.room.give_up_reserve()
            self._take_back(error)
            if not may_go_on:
                raise translated(error, self.name) from error
            self._write_frame(body, makes_room)
        else:
            self.size += sum(map(len, parts))

    def _take_back(self, error: OSError) -> None:
        """Remove durably what was written of the frame. Otherwise it would mix with the next frame:
        after a power failure a sector might hold the beginning of this frame without its end.
        """
        if is_full(error):
            try:
                self._file.truncate(self.size)
                self._file.fdatasync()
            except OSError as failure:
                raise failed(failure, self.name) from error
