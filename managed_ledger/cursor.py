"""A cursor: what one subscription has acknowledged.

Everything up to the mark-delete position is acknowledged; after it there are individually
acknowledged entries (an AckSet per ledger; never the entry right after it) and partly acknowledged
batches (a bitset of the unacknowledged indexes, per entry). Acknowledgements take effect at once
and make the cursor dirty; dirty cursors are written once a second and at close, so a crash may
cause redelivery but never loss.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from managed_ledger.ack_set import AckSet
from managed_ledger.config import ANY_BATCH
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import CursorRecord
from managed_ledger.position import EARLIEST, LATEST, Position

# Queues the write of a cursor's record; takes the cursor's name and the encoded record.
Store = Callable[[str, bytes], "asyncio.Future[int]"]
FORGET_EVERY: Final = 512  # entries
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
OnDirty = Callable[["ManagedCursor"], object]


class ManagedCursor:
    """Created by ManagedLedger. `durable` cursors hold back trimming and outlive a restart."""

    __slots__ = (
        "_acked",
        "_batches",
        "_dirty",
        "_forgotten_up_to",
        "_index",
        "_last_write",
        "_on_dirty",
        "_removed",
        "_store",
        "durable",
        "mark_delete_position",
        "name",
        "properties",
        "retired",
    )

    def __init__(
        self,
        name: str,
        index: LedgerIndex,
        mark_delete_position: Position,
        properties: Mapping[str, str],
        store: Store | None = None,
        on_dirty: OnDirty | None = None,
    ) -> None:
        """Without `store` the cursor is not durable; `on_dirty` is called when there is something
        to write.
        """
        self.name = name
        self.durable = store is not None
        self.mark_delete_position = mark_delete_position
        self.properties = dict(properties) if properties else NO_PROPERTIES
        self.retired = False  # deleted, or its managed ledger closed: nothing more is written
        self._index = index
        self._store = store
        self._on_dirty = on_dirty
        self._dirty = False
        self._last_write: asyncio.Future[int] | None = None
        self._acked: dict[int, AckSet] = {}  # may still contain entries that the mark has passed
        self._forgotten_up_to = -1
        self._batches: dict[tuple[int, int], int] = {}
        # Set when the mark-delete position moved because earlier ledgers were deleted: the
        # position, and where it would be without the deletions.
        self._removed: tuple[Position, Position] | None = None

    # what is acknowledged

    @property
    def reached(self) -> Position:
        """The mark-delete position before any adjustment for deleted ledgers."""
        removed, mark = self._removed, self.mark_delete_position
        return removed[1] if removed is not None and removed[0] == mark else mark

    def is_deleted(self, position: tuple[int, int]) -> bool:
        return position <= self.mark_delete_position or self._is_acked(position)

    @property
    def last_acknowledged(self) -> Position:
        """The last acknowledged entry, whether or not its ledger still exists."""
        behind = (Position(ledger, acks.last) for ledger, acks in self._acked.items() if acks)
        return max(self.mark_delete_position, max(behind, default=EARLIEST))

    def deleted_within(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """Closed ranges of acknowledged entries among `first` to `last`, in order."""
        mark = self.mark_delete_position
        acks = self._acked.get(ledger_id)
        if mark < (ledger_id, first):
            return acks.runs(first, last) if acks else []
        if mark >= (ledger_id, last):
            return [(first, last)]
        behind = acks.runs(mark.entry_id + 1, last) if acks else []
        return [(first, mark.entry_id), *behind]

    def unacked_indexes(self, position: tuple[int, int]) -> int | None:
        """The batch indexes still unacknowledged, as bits; None if no index was acknowledged."""
        return self._batches.get(position) if self._batches else None

    @property
    def partial_batches(self) -> Mapping[tuple[int, int], int]:
        """The bits of every entry with an acknowledged batch index."""
        return self._batches

    def backlog(self, up_to: Position) -> int:
        """The number of unacknowledged entries after the mark-delete position, up to `up_to`."""
        if self.mark_delete_position >= up_to:
            return 0
        self._forget_acks()
        acked = 0
        for ledger_id, acks in self._acked.items():
            if ledger_id < up_to.ledger_id:
                acked += len(acks)
            elif ledger_id == up_to.ledger_id:
                acked += acks.count_up_to(up_to.entry_id)
        return self._index.count_between(self.mark_delete_position, up_to) - acked

    @property
    def unacked_ranges_count(self) -> int:
        """The number of separate acknowledged ranges after the mark-delete position."""
        self._forget_acks()
        return sum(acks.range_count() for acks in self._acked.values())

    @property
    def unacked_ranges_size(self) -> int:
        """The encoded size of those ranges in bytes."""
        return sum(acks.encoded_size for acks in self._acked.values())

    # acknowledging

    def delete(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledge one entry; False if it does not exist or was already acknowledged."""
        position = (ledger_id, entry_id)
        mark = self.mark_delete_position
        if position <= mark or position not in self._index:
            return False
        if entry_id == mark.entry_id + 1 and ledger_id == mark.ledger_id:
            self._move_mark(Position(ledger_id, entry_id))
            return True
        if not self._acks(ledger_id).add(entry_id):
            return False
        if self._batches:
            self._batches.pop(position, None)
        if entry_id == 0:  # it may be the first after a mark at the end of the previous ledger
            self._move_mark(mark)
        self._touch()
        return True

    def delete_range(self, ledger_id: int, first: int, last: int) -> None:
        """Acknowledge the entries `first` to `last`, as far as they exist."""
        span = self._index.span(Position(ledger_id, first), Position(ledger_id, last))
        if span is None or (ledger_id, last) <= self.mark_delete_position:
            return
        _, first, last = span
        self._forget_batches(Position(ledger_id, first - 1), Position(ledger_id, last))
        self._acks(ledger_id).add_range(first, last)
        self._move_mark(self.mark_delete_position)

    def delete_batch_indexes(
        self, position: tuple[int, int], still_unacked: int, batch_size: int
    ) -> bool:
        """Acknowledge the batch indexes that are not set in `still_unacked`.

        True if these were the entry's last ones and it is now deleted.
        """
        if position not in self._index or self.is_deleted(position):
            return False
        known = self._batches.get(position, (1 << batch_size) - 1)
        remaining = known & still_unacked
        if not remaining:
            return self.delete(*position)
        if remaining != known:
            self._batches[position] = remaining
            self._touch()
        return False

    def mark_delete(
        self, position: Position, still_unacked: int | None = None, batch_size: int = 0
    ) -> bool:
        """Acknowledge everything up to `position`; False if nothing changed.

        With `still_unacked` the entry itself is only partly acknowledged.
        """
        whole = position.before if still_unacked else position
        position = self._index.previous_position(position.after)
        changed = False
        if still_unacked:
            known = self.unacked_indexes(position)
            deleted = self.delete_batch_indexes(position, still_unacked, batch_size)
            changed = deleted or known != self.unacked_indexes(position)
            position = self._index.previous_position(position)
        if position <= self.mark_delete_position:
            return self._reach(whole) or changed
        self._move_mark(position)
        return True

    def mark_delete_around(
        self,
        position: Position,
        spared: Mapping[Position, tuple[int, int]],
        still_unacked: int | None = None,
        batch_size: int = 0,
        after: Position = EARLIEST,
    ) -> None:
        """As `mark_delete`, but leave `spared` entries and everything up to `after` unchanged. A
        spared entry maps to the bits of the spared batch indexes (-1: the whole entry) and to the
        batch size.
        """
        left = {at: each for at, each in spared.items() if after < at <= position}
        if still_unacked and after < position:
            bits, size = left.get(position, (0, 0))
            left[position] = bits | still_unacked, max(size, batch_size)
        for at in sorted(left):
            self._delete_between(after, at.before)
            bits, size = left[at]
            if bits >= 0:  # -1: the whole entry is spared
                self.delete_batch_indexes(at, bits, size)
            after = at
        self._delete_between(after, position)

    def _delete_between(self, after: Position, up_to: Position) -> None:
        after = max(after, self.mark_delete_position)
        while (span := self._index.span(after.after, up_to)) is not None:
            self.delete_range(*span)
            after = Position(span[0], span[2])

    def _reach(self, position: Position) -> bool:
        """Note that everything up to `position` is acknowledged, even if its ledger is deleted."""
        if not self.reached < position or position >= self.mark_delete_position:
            return False
        self.begin_after(position)
        self._touch()
        return True

    def begin_after(self, position: Position) -> None:
        """Record `position` as the mark-delete position to write, even if its ledger is deleted."""
        mark = self.mark_delete_position
        asked = max(EARLIEST, Position(position.ledger_id, _in_bounds(position.entry_id)))
        self._removed = (mark, asked) if asked < mark else None

    def reset(self, position: Position, still_unacked: int = 0, batch_size: int = 0) -> None:
        """Seek: the first entry at or after `position` is the next one to read.

        With `still_unacked` the batch at `position` is acknowledged except for these indexes.
        """
        limit = min(position, self._index.last_confirmed.after)
        self.mark_delete_position = self._index.previous_position(limit)
        self.begin_after(limit.before)
        self._acked.clear()
        self._forgotten_up_to = -1
        self._batches.clear()
        if still_unacked:
            self.delete_batch_indexes(position, still_unacked, batch_size)
        self._touch()

    def skip_removed(self) -> None:
        """Move a mark-delete position before the first remaining ledger to the start of that
        ledger.

        This needs no write: the record contains the position without this adjustment.
        """
        border = self._index.first_position.before
        if self.mark_delete_position < border:
            reached = self.reached
            self._pass(self._over_acked(border))
            self.begin_after(reached)

    # writing

    def write(self) -> "asyncio.Future[int] | None":
        """Queue a write if dirty; returns the newest write still in flight, or None."""
        if self._dirty and self._store is not None and not self.retired:
            self._dirty = False
            self._last_write = self._store(self.name, self._record().encode())
            self._last_write.add_done_callback(self._written)
        return self._last_write

    def _written(self, write: "asyncio.Future[int]") -> None:
        """Runs even if the caller was cancelled. After a failure the cursor is dirty again."""
        if self._last_write is write:
            self._last_write = None
        if write.cancelled() or isinstance(write.exception(), ManagedLedgerError):
            self._touch()

    async def flush(self) -> None:
        """Every acknowledgement so far is durable when this returns."""
        write = self.write()
        if write is not None:
            try:
                await asyncio.shield(write)
            finally:
                del write  # the failure's traceback keeps this frame, which must not keep it

    async def replace_properties(self, properties: Mapping[str, str]) -> None:
        """Durable when it returns."""
        self.properties = dict(properties) if properties else NO_PROPERTIES
        self._touch()
        await self.flush()

    def retire(self) -> None:
        """The managed ledger is closed or deleted: stop writing and calling back."""
        self.retired = True
        self._store = self._on_dirty = None

    def mark_new(self) -> None:
        """The cursor has never been written: the first flush writes it in any case."""
        self._dirty = True

    def restore(self, record: CursorRecord) -> None:
        """Restore what was written."""
        self._acked = {ledger: AckSet.decode(value) for ledger, value in record.acked.items()}
        self._batches = {
            position: indexes
            for position, bits in record.batches.items()
            if position in self._index and (indexes := bits & ANY_BATCH)
        }
        self.skip_removed()

    def _record(self) -> CursorRecord:
        self._forget_acks()
        acked = {ledger_id: acks.encode() for ledger_id, acks in self._acked.items()}
        if self.reached < self.mark_delete_position:
            acked |= self._acked_behind_removed()
        return CursorRecord(self.reached, self.properties, acked, self._batches)

    def _acked_behind_removed(self) -> dict[int, bytes]:
        """The ranges that the mark passed when deleted ledgers moved it. A restart begins at the
        recorded mark, which is before these ranges, and must pass them again.
        """
        passed: dict[int, AckSet] = {}
        position, mark = self._index.first_position, self.mark_delete_position
        while (span := self._index.span(position, mark)) is not None:
            ledger_id, first, last = span
            known = self._acked.get(ledger_id)
            acks = passed[ledger_id] = AckSet() if known is None else AckSet.decode(known.encode())
            acks.add_range(first, last)
            position = Position(ledger_id, last + 1)
        return {ledger_id: acks.encode() for ledger_id, acks in passed.items()}

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            if self._on_dirty is not None:
                self._on_dirty(self)

    # internals

    def _acks(self, ledger_id: int) -> AckSet:
        acks = self._acked.get(ledger_id)
        if acks is None:
            acks = self._acked[ledger_id] = AckSet()
        return acks

    def _move_mark(self, position: Position) -> None:
        """Everything up to `position` is acknowledged: move the mark-delete position there, and
        past the acknowledged entries that follow.
        """
        self._pass(self._over_acked(position) if self._acked else position)
        self._touch()

    def _over_acked(self, position: Position) -> Position:
        while self._acked:
            if (acks := self._acked.get(position.ledger_id)) is not None:
                end = acks.first_missing(position.entry_id + 1) - 1
                position = Position(position.ledger_id, end)
            following = self._index.next_position(position)
            if following.ledger_id == position.ledger_id or not self._is_acked(following):
                break
            position = following
        return position

    def _is_acked(self, position: tuple[int, int]) -> bool:
        acks = self._acked.get(position[0])
        return acks is not None and position[1] in acks

    def _pass(self, position: Position) -> None:
        before, self.mark_delete_position = self.mark_delete_position, position
        if self._acked and (
            before.ledger_id != position.ledger_id
            or position.entry_id - self._forgotten_up_to > FORGET_EVERY
        ):
            self._forget_acks()
        if self._batches:
            self._forget_batches(before, position)

    def _forget_acks(self) -> None:
        """Drop what the mark-delete position has passed; too costly to do on every step."""
        mark = self.mark_delete_position
        self._forgotten_up_to = mark.entry_id
        for ledger_id in [known for known in self._acked if known < mark.ledger_id]:
            del self._acked[ledger_id]
        if (acks := self._acked.get(mark.ledger_id)) is not None:
            acks.discard_up_to(mark.entry_id)
            if not acks:
                del self._acked[mark.ledger_id]

    def _forget_batches(self, after: Position, up_to: Position) -> None:
        """Forget the bitsets after `after`, up to `up_to`; walks the entries or the bitsets,
        whichever are fewer.
        """
        within = up_to.entry_id - after.entry_id
        if after.ledger_id == up_to.ledger_id and within < len(self._batches):
            for entry_id in range(after.entry_id + 1, up_to.entry_id + 1):
                self._batches.pop((up_to.ledger_id, entry_id), None)
        else:
            for position in [known for known in self._batches if after < known <= up_to]:
                del self._batches[position]


def _in_bounds(entry_id: int) -> int:
    """The entry id, limited to values that a record can express."""
    return min(max(entry_id, -1), LATEST.entry_id)
