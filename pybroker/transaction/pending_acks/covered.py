"""The messages that a cumulative acknowledgement names, by clients that say which: CoveredMessages.

Such an acknowledgement leaves nothing to conclude from what was delivered. Each message that it
names must be free, as if it were acknowledged individually. It spares all others up to its last
message.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.transaction.pending_acks.acks_of_transaction import AcksOfTransaction
from pybroker.transaction.pending_acks.records import (
    ALL_INDEXES,
    HELD_WHOLE,
    AckRecord,
    Conflict,
    Held,
    PendingAck,
    indexes_in_words,
)

# A ledger's id, and its first and last entry.
EntryRun = tuple[int, int, int]
_AGAIN: Final = "abort, ask for redelivery, and acknowledge the messages you then receive"
_ACKNOWLEDGED: Final = f"it is already acknowledged: {_AGAIN}"
HELD_BY_ANOTHER: Final = f"an open transaction has acknowledged it, too: {_AGAIN}"


class Covered:
    """Whole entries, and parts of batches."""

    __slots__ = ("_parts", "_runs", "_whole", "hidden", "unacknowledged")

    def __init__(self, runs: Iterable[EntryRun], parts: Sequence[PendingAck]) -> None:
        self._whole = [part for part in parts if not part.still_unacked]
        self._parts = {part.position: part for part in parts if part.still_unacked}
        whole = ((*part.position, part.position.entry_id) for part in self._whole)
        self._runs = _merged(sorted([*runs, *whole]))
        # The entries up to the last message that may be delivered, in order.
        self.unacknowledged: Iterable[EntryRun] = ()
        # Ranges of aborted messages among the entries of a ledger, see HiddenRanges.
        self.hidden: Callable[[int, int, int], list[tuple[int, int]]] = lambda *_: []

    def __bool__(self) -> bool:
        return bool(self._runs or self._parts)

    @property
    def last(self) -> Position:
        ends = [Position(ledger_id, last) for ledger_id, _, last in self._runs]
        return max([*ends, *self._parts])

    def bits_of(self, position: Position) -> int:
        index = bisect_right(self._runs, tuple(position), key=_begin) - 1
        if index >= 0 and position <= (self._runs[index][0], self._runs[index][2]):
            return ALL_INDEXES
        part = self._parts.get(position)
        return 0 if part is None else part.acked_indexes

    def require_unacknowledged(self, cursor: ManagedCursor) -> None:
        """Raises Conflict if one of the messages is already acknowledged."""
        for ledger_id, first, last in self._runs:
            for start, stop in cursor.deleted_within(ledger_id, first, last):
                hidden = self.hidden(ledger_id, start, stop)  # to readers of uncommitted messages
                if sum(high - low + 1 for low, high in hidden) <= stop - start:
                    raise Conflict(PendingAck(Position(ledger_id, start)), _ACKNOWLEDGED)
        for part in self._whole:
            if cursor.unacked_indexes(part.position) is not None:
                raise Conflict(part, f"a part of the batch is already acknowledged: {_AGAIN}")
        for position, part in self._parts.items():
            if cursor.is_deleted(position):
                raise Conflict(part, _ACKNOWLEDGED)
            unacked = cursor.unacked_indexes(position)
            if unacked is not None and (acked := part.acked_indexes & ~unacked):
                what = f"{indexes_in_words(acked)} of the batch already acknowledged"
                raise Conflict(part, f"{what}: {_AGAIN}")

    def spared(
        self, ack: PendingAck, cursor: ManagedCursor, own: AcksOfTransaction | None, most: int
    ) -> dict[Position, Held]:
        """The messages up to `ack` that it does not name and that its transaction does not hold;
        one entry more than `most` at most.
        """
        before = own.cumulative[-1] if own is not None and own.cumulative else None
        spared: dict[Position, Held] = {}
        for position in self._not_whole(self._left_by(before, cursor)):
            bits, size = self._left_of(position, cursor.unacked_indexes(position))
            if position == ack.position and ack.still_unacked:
                bits, size = bits & ack.acked_indexes, ack.batch_size
            if own is not None and (held := own.held_of(position)) is not None:
                everything = (1 << held.batch_size) - 1 if bits == ALL_INDEXES else bits
                bits, size = everything & ~held.bits, max(size, held.batch_size)
            left = Held(bits, size) if bits else None
            if left is not None and before is not None:
                left = before.left_by(position, left)
            if left is not None:
                spared[position] = left
                if len(spared) > most:
                    break
        return spared

    def _left_of(self, position: Position, unacked: int | None) -> Held:
        if (part := self._parts.get(position)) is None:
            return HELD_WHOLE
        left = (1 << part.batch_size) - 1 if unacked is None else unacked
        return Held(left & ~part.acked_indexes, part.batch_size)

    def _left_by(self, before: AckRecord | None, cursor: ManagedCursor) -> Iterator[EntryRun]:
        """The unacknowledged entries without those that the record covers whole, which may be very
        many.
        """
        if before is None:
            yield from self.unacknowledged
            return
        end = before.last.position
        for position in sorted(before.spared):
            if position < end and not cursor.is_deleted(position):
                yield (*position, position.entry_id)
        for ledger_id, first, last in self.unacknowledged:
            if ledger_id == end.ledger_id:
                first = max(first, end.entry_id)
            if ledger_id >= end.ledger_id and first <= last:
                yield ledger_id, first, last

    def _not_whole(self, entries: Iterable[EntryRun]) -> Iterator[Position]:
        """The entries that it does not name whole."""
        runs = iter(self._runs)
        run = next(runs, None)
        for ledger_id, first, last in entries:
            entry_id = first
            while entry_id <= last:
                while run is not None and (run[0], run[2]) < (ledger_id, entry_id):
                    run = next(runs, None)
                if run is not None and run[0] == ledger_id and run[1] <= entry_id:
                    entry_id = run[2]
                else:
                    yield Position(ledger_id, entry_id)
                entry_id += 1


def _begin(run: EntryRun) -> tuple[int, int]:
    return run[:2]


def _merged(runs: Iterable[EntryRun]) -> list[EntryRun]:
    """The same entries without overlaps; `runs` are sorted, and come from a client."""
    merged: list[EntryRun] = []
    for ledger_id, first, last in runs:
        if merged and merged[-1][0] == ledger_id and first <= merged[-1][2]:
            merged[-1] = ledger_id, merged[-1][1], max(merged[-1][2], last)
        elif first <= last:
            merged.append((ledger_id, first, last))
    return merged
