"""The embedded engine's durable data as kept in memory: ledgers with their tails, and keys."""

from managed_ledger.storage.backend import LedgerSummary, Span
from managed_ledger.storage.embedded.ledger_files import (
    NO_BLOCKS,
    NOTHING_FLUSHED,
    BlockIndex,
    FlushedPart,
    FlushJob,
    FlushResult,
)
from managed_ledger.storage.embedded.snapshot import Snapshot
from managed_ledger.storage.entry_columns import EntryColumns
from managed_ledger.storage.metadata_table import MetadataTable
from managed_ledger.storage.operations import Append, DeleteLedger, Operation, Put, Remove

MAX_ENTRIES_PER_FLUSH = 65_536


class LedgerState:
    """A ledger: the part in its file, and the tail in memory; the two may overlap."""

    __slots__ = (
        "_evictable_entries",
        "damaged",
        "deleted",
        "fenced",
        "flushed",
        "index",
        "ledger_id",
        "queued_entries",
        "tail",
    )

    def __init__(self, ledger_id: int, flushed: FlushedPart | None = None) -> None:
        self.ledger_id = ledger_id
        self.flushed = flushed or NOTHING_FLUSHED
        self.tail = EntryColumns(self.flushed.entries)
        self.queued_entries = self.flushed.entries  # durable or queued
        self.index = None if self.flushed.entries else NO_BLOCKS  # None: not loaded yet
        self.fenced = False
        self.deleted = False
        self.damaged: tuple[Span, ...] = ()  # known to be unreadable, in order
        self._evictable_entries = 0

    @property
    def unflushed_entries(self) -> int:
        return self.tail.next_entry_id - self.flushed.entries

    @property
    def unflushed_bytes(self) -> int:
        start = self.flushed.entries - self.tail.first_entry_id
        return sum(map(len, self.tail.entries[start:]))

    def note_damage(self, first: int, last: int) -> None:
        """Merge spans that overlap or touch: a repeated read may report a known span."""
        apart = [span for span in self.damaged if span[1] < first - 1 or span[0] > last + 1]
        for known in set(self.damaged).difference(apart):
            first, last = min(first, known[0]), max(last, known[1])
        self.damaged = tuple(sorted([*apart, (first, last)]))

    def summary(self) -> LedgerSummary:
        start = self.flushed.entries - self.tail.first_entry_id
        message_count = sum(self.tail.message_counts[start:])
        return LedgerSummary(
            self.tail.next_entry_id - 1,
            self.flushed.size_bytes + self.unflushed_bytes,
            self.flushed.message_count + message_count,
        )

    def flush_job(self, max_bytes: int) -> FlushJob:
        start = self.flushed.entries - self.tail.first_entry_id
        entries = self.tail.leading_from(start, MAX_ENTRIES_PER_FLUSH, max_bytes)
        message_counts = self.tail.message_counts[start : start + len(entries)]
        first, count = self.flushed.entries, len(entries)
        tags = self.tail.tags.within(first, first + count - 1)
        return FlushJob(self.ledger_id, self.flushed, entries, message_counts, tags)

    def note_flushed(self, result: FlushResult) -> None:
        self.flushed = result.flushed
        if self.index is NO_BLOCKS:
            self.index = BlockIndex()
        if self.index is not None and self.index.damage is not None:
            self.index = None  # placeholders may now stand for the damaged part of the file
        if self.index is not None:
            for first_entry_id, offset in result.blocks:
                self.index.add(first_entry_id, offset)

    def evict(self) -> None:
        """Drop entries that had been flushed before the last call; keep newer ones for readers."""
        self.tail.drop_before(self._evictable_entries)
        self._evictable_entries = self.flushed.entries


class EngineState:
    """`apply` makes a durable operation take effect."""

    def __init__(self, table: MetadataTable) -> None:
        self.table = table
        self.ledgers: dict[int, LedgerState] = {}
        self.next_ledger_id = 0
        self.doomed: list[int] = []  # deleted ledgers whose files are still to be unlinked

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Append):
            state = self.ledgers.get(operation.ledger_id)
            if state is not None:  # otherwise the ledger was deleted while the append was queued
                state.tail.extend(operation.entries, operation.message_counts, operation.tag)
        elif isinstance(operation, Put):
            if (ledger_id := operation.new_ledger_id) is not None:
                self.ledgers[ledger_id] = LedgerState(ledger_id)
                # This engine need not have assigned the number: a move keeps those of another
                # storage.
                self.next_ledger_id = max(self.next_ledger_id, ledger_id + 1)
            self.table.apply(operation)
        elif isinstance(operation, Remove):
            self.table.apply(operation)
        elif isinstance(operation, DeleteLedger):
            self._delete(operation.ledger_id)

    def withdraw(self, operation: Operation) -> None:
        """The operation failed, as did all operations queued after it."""
        if isinstance(operation, Append):
            state = self.ledgers.get(operation.ledger_id)
            if state is not None:
                state.queued_entries = state.tail.next_entry_id
        elif isinstance(operation, Put | Remove):
            self.table.withdraw(operation)

    def lose_queued(self) -> None:
        """The process died: no queued operation takes effect, and none calls back."""
        for state in self.ledgers.values():
            state.queued_entries = state.tail.next_entry_id
        self.table.lose_queued()

    def snapshot(self, first_generation: int) -> Snapshot:
        ledgers = [(state.ledger_id, state.flushed) for state in self.ledgers.values()]
        return Snapshot(first_generation, self.next_ledger_id, ledgers, self.table.items())

    def _delete(self, ledger_id: int) -> None:
        state = self.ledgers.pop(ledger_id, None)
        if state is not None:
            state.deleted = True
            self.doomed.append(ledger_id)
