"""The newest confirmed entries of this process's open ledgers, for readers that keep up."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from managed_ledger.storage.entry_columns import EntryColumns

MAX_BYTES: Final = 64 << 20  # in total


class Tails:
    """The tails of ledgers. The least recently written ledger is evicted first, as a whole."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._tails: OrderedDict[int, tuple[EntryColumns, int]] = OrderedDict()
        self.size_bytes = 0

    def get(self, ledger_id: int) -> EntryColumns | None:
        found = self._tails.get(ledger_id)
        return None if found is None else found[0]

    def extend(
        self,
        ledger_id: int,
        first_entry_id: int,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        tag: bytes,
    ) -> None:
        added = sum(map(len, entries))
        tail, size = self._tails.pop(ledger_id, (None, 0))
        if tail is None or tail.next_entry_id != first_entry_id:
            self.size_bytes -= size
            tail, size = EntryColumns(first_entry_id), 0
        tail.extend(entries, message_counts, tag)
        self.size_bytes += added
        size += added
        if size > self._max_bytes:
            half = len(tail.entries) // 2
            dropped = sum(map(len, tail.entries[:half]))
            tail.drop_before(tail.first_entry_id + half)
            size -= dropped
            self.size_bytes -= dropped
        self._tails[ledger_id] = tail, size
        while self.size_bytes > self._max_bytes and len(self._tails) > 1:
            _, (_, size) = self._tails.popitem(last=False)
            self.size_bytes -= size

    def drop(self, ledger_id: int) -> None:
        _, size = self._tails.pop(ledger_id, (None, 0))
        self.size_bytes -= size
