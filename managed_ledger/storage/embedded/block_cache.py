"""A cache of recently read blocks of ledger files, limited in bytes and in idle time.

Two generations: a requested block moves to the new one; from time to time the old one is dropped
and the new one becomes old. When there is no room, the least recently used block is dropped.
"""

import asyncio
from typing import Final

from managed_ledger.storage.entry_columns import EntryColumns

MAX_BYTES: Final = 32 * 1024 * 1024
IDLE_S: Final = 10.0  # an unused block stays for one to two times this
ENTRY_OVERHEAD_BYTES: Final = 56  # of Python, for each entry

Key = tuple[int, int]  # ledger id, first entry id


class BlockCache:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._new: dict[Key, EntryColumns] = {}  # least recently used first
        self._old: dict[Key, EntryColumns] = {}
        self._timer: asyncio.TimerHandle | None = None

    def get(self, key: Key) -> EntryColumns | None:
        block = self._new.pop(key, None) or self._old.pop(key, None)
        if block is not None:
            self._new[key] = block
        return block

    def add(self, key: Key, block: EntryColumns) -> None:
        """Cache the block, unless it is larger than the limit."""
        self._drop(key)
        self._new[key] = block
        self.size_bytes += cost_of(block)
        while self.size_bytes > self.max_bytes:
            self._drop(next(iter(self._old or self._new)))
        self._set_timer()

    def ledgers(self) -> int:
        """The number of ledgers with a cached block: roughly the number of readers."""
        return len({ledger_id for ledger_id, _ in (*self._new, *self._old)})

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _drop(self, key: Key) -> None:
        block = self._new.pop(key, None) or self._old.pop(key, None)
        if block is not None:
            self.size_bytes -= cost_of(block)

    def _set_timer(self) -> None:
        if self._timer is None and self.size_bytes:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._age)

    def _age(self) -> None:
        self._timer = None
        self.size_bytes -= sum(map(cost_of, self._old.values()))
        self._old, self._new = self._new, {}
        self._set_timer()


def cost_of(block: EntryColumns) -> int:
    return sum(map(len, block.entries)) + ENTRY_OVERHEAD_BYTES * len(block.entries)
