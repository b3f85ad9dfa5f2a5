"""How much space the disk has left, and which writes are still allowed.

Entries in the journal must be written again, into the ledgers' files, before the journal can be
removed. So messages are refused while there is no room for that second copy; deletions and metadata
changes continue, and the space that they release is available at once. If other processes fill the
disk almost completely, only operations that make room continue, and a reserve file is removed to
give them space.
"""

from typing import Final

from managed_ledger.storage.embedded.disk import Disk
from managed_ledger.storage.operations import Append, DeleteLedger, Operation, Put, Remove, Sync

SPARE_BYTES: Final = 16 * 1024 * 1024  # in addition to a second copy of the journal
NEXT_TO_NOTHING_BYTES: Final = 1024 * 1024
EARLY_JOURNAL_BYTES: Final = 64 * 1024  # a journal of this size is rotated when room is low
RESERVE_FOLDER: Final = "reserve"
RESERVE: Final = f"{RESERVE_FOLDER}/room"
RESERVE_BYTES: Final = 4 * 1024 * 1024


class Room:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._has_reserve = False
        self.free_bytes: int | None = None  # at the last check
        self.is_low = False
        self.is_out = False

    def look(self, wanted_bytes: int) -> None:
        """Measure the free space. `is_low`: not enough for `wanted_bytes`, the second copy of the
        journal, and some spare; `is_out`: next to nothing is left.
        """
        free_bytes = self.free_bytes = self._disk.free_bytes()
        self.is_low = free_bytes is not None and free_bytes < wanted_bytes + SPARE_BYTES
        self.is_out = free_bytes is not None and free_bytes < NEXT_TO_NOTHING_BYTES

    def must_wait(self, operation: Operation) -> bool:
        return isinstance(operation, Append) or (self.is_out and not makes_room(operation))

    @property
    def lacks_reserve(self) -> bool:
        """Whether the reserve was given up or could not be written yet for lack of room."""
        return self.free_bytes is not None and not self._has_reserve

    def begin(self) -> None:
        """Find the reserve of an earlier process. On a full disk it is given up at once, because a
        broker must start before users can delete anything. Blocks; raises OSError.
        """
        self._has_reserve = self._is_whole()
        self.look(0)
        if self.is_out:
            self.give_up_reserve()

    def _is_whole(self) -> bool:
        """Whether there is a complete reserve; removes one that a crash left incomplete."""
        if RESERVE not in self._disk.names(RESERVE_FOLDER):
            return False
        file = self._disk.open(RESERVE)
        try:
            is_whole = file.size() >= RESERVE_BYTES
        finally:
            file.close()
        if not is_whole:
            self._disk.unlink(RESERVE)
        return is_whole

    def keep_reserve(self) -> None:
        """Write the reserve to disk if there is room. Blocks; raises OSError."""
        free_bytes = self._disk.free_bytes()
        if self._has_reserve or self.is_low or not free_bytes or free_bytes < SPARE_BYTES:
            return
        if RESERVE not in self._disk.names(RESERVE_FOLDER):
            file = self._disk.create(RESERVE)
            try:
                file.pwritev([bytes(RESERVE_BYTES)], 0)
                file.fdatasync()
                self._disk.sync_folder(RESERVE_FOLDER)
            except OSError:
                self._disk.unlink(RESERVE)
                raise
            finally:
                file.close()
        self._has_reserve = True

    def give_up_reserve(self) -> bool:
        """Remove the reserve; False if there was none. Blocks.

        Another thread may be about to write a reserve, so this one counts as existing until it is
        removed.
        """
        if not self._has_reserve:
            return False
        self._disk.unlink(RESERVE)
        self._has_reserve = False
        return True


def makes_room(operation: Operation) -> bool:
    if isinstance(operation, Put):
        return operation.makes_room
    return isinstance(operation, DeleteLedger | Remove | Sync)
