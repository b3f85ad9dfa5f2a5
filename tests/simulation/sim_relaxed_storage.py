"""Managed ledgers without synced commits, through power cuts.

Acknowledged data may be lost. But nothing is there that was not written, or in another order, or
unreadable; and the next process starts.
"""

import random
from typing import Any

from sim_storage import StorageSimulation, _read_all

from pybroker.simulation.disk import SECTOR, Change, Inode


class PagedInode(Inode):
    """An inode with the writeback of a page cache. At a power cut each sector has its content of
    some moment since the last sync. If each write is synced before the next one, there is usually
    no difference.
    """

    def lose_power(self, rng: random.Random) -> None:
        changes, self.unsynced = self.unsynced, []
        sizes = [len(self.content), *(change.old_size for change in changes)]
        for change in reversed(changes):
            self._undo(change)
        platter = bytes(self.content).ljust(max(sizes), b"\0")
        moments: dict[int, list[bytes]] = {}
        for change in changes:
            self._redo(change)
            for at in _sectors(change):
                moments.setdefault(at, []).append(bytes(self.content[at : at + SECTOR]))
        written_back = rng.choice((0.1, 0.5, 0.9))
        self.content[:] = platter
        for at, contents in moments.items():
            last = rng.random() < written_back
            before = platter[at : at + SECTOR]
            content = contents[-1] if last else rng.choice((before, *contents))
            self._put(at, content.ljust(len(before), b"\0"))
        self._resize(rng.choice(sizes) if rng.random() < 0.5 else max(sizes))

    def _redo(self, change: Change) -> None:
        if change.is_truncation:
            self._resize(change.offset)
        else:
            self._put(change.offset, change.data)


def _sectors(change: Change) -> range:
    """The offsets of the sectors that the change touches."""
    end = max(change.offset + len(change.data), change.old_size if change.is_truncation else 0)
    return range(change.offset - change.offset % SECTOR, end, SECTOR)


class RelaxedStorageSimulation(StorageSimulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.options["durability"] = "relaxed"
        self.disk.new_inode = PagedInode

    async def _verify(self, ledger: Any) -> None:
        promises = self.promises[ledger.name]
        promises.entries = await _read_all(ledger)
        numbers = [promises.sent.get(entry, -1) for entry in promises.entries.values()]
        if -1 in numbers:
            self._violated(ledger.name, "INVENTED: an entry that nobody appended")
        if numbers != sorted(set(numbers)):
            self._violated(ledger.name, f"ORDER or DUPLICATE: {numbers}")
