"""Offsets <-> positions of one log. Nothing is kept per entry: an offset is found by its entry's
index, in a binary search over ledgers and then over entries.

Consumers read on from where they were, so the places behind the last reads are remembered. Old
entries (see offset_table.py) are counted from the beginning of their ledger, or from a mark every
few hundred entries.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from managed_ledger.empty_ledgers import has_all_after
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.base.runtime import Pace
from pybroker.broker.persistent.entry_metadata import STAMPED
from pybroker.kafka.log.offset_table import OffsetTable
from pybroker.wire.message_metadata import broker_index_of

LOG_START: Final = "kafka-log-start"  # a property: DeleteRecords has deleted what is before it
_REMEMBERED: Final = 1000  # places
_MARK_EVERY: Final = 500  # entries
_MARK_BYTES: Final = 4 * 1024 * 1024
_READS_A_TURN: Final = 20
_LAST_ENTRY: Final = 1 << 62


class TrimmedMeanwhile(ManagedLedgerError):
    """An entry that was just there: look again."""


class Place(NamedTuple):
    """An entry, and the offset of its first message."""

    position: Position
    offset: int


class Placed(NamedTuple):
    """An entry that was read. `next_offset` is that of the message after it."""

    entry_id: int
    entry: bytes
    messages: int
    first_offset: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.messages


class Offsets:
    def __init__(self, ledger: ManagedLedger, table: OffsetTable) -> None:
        self._ledger = ledger
        self._table = table
        self._places: OrderedDict[int, Position] = OrderedDict()
        self._firsts: dict[int, int] = {}  # the first offset of ledgers, by id
        self._marks: dict[int, list[Place]] = {}  # in ledgers with old entries
        self._end = (Position(-1, -1), 0)

    # -- entries of a run

    def placed(self, run: EntryRun, offset: int) -> Iterator[Placed]:
        """The entries of a run, the first of which has `offset` if it is an old one."""
        entry_id = run.first_entry_id
        for entry, messages in zip(run.entries, run.message_counts, strict=True):
            index = self._index(run.ledger_id, entry)
            first = offset if index is None else index - messages + 1
            yield Placed(entry_id, entry, messages, first)
            offset, entry_id = first + messages, entry_id + 1

    def _index(self, ledger_id: int, entry: bytes) -> int | None:
        index = broker_index_of(entry)
        is_old = index is None or (index < self._table.base and ledger_id in self._table.ledgers)
        return None if is_old else index

    async def offset_of(self, position: Position, entry: bytes, messages: int) -> int:
        """The offset of the entry's first message. Raises ManagedLedgerError."""
        index = self._index(position.ledger_id, entry)
        if index is not None:
            return index - messages + 1
        return await self.end_after(self._ledger.previous_position(position))

    # -- the two ends

    async def start(self) -> int:
        """The first offset that was not deleted, by retention or by DeleteRecords."""
        return max(await self._first_kept(), int(self._ledger.properties.get(LOG_START, "0")))

    async def _first_kept(self) -> int:
        """The first offset in the ledgers that are there. There need not be a message: a failed
        write at the beginning of the log is a gap, and a consumer that waited for it is within the
        log.
        """
        if self._is_whole:
            return min(self._table.ledgers.values())
        first = self._ledger.next_position(self._ledger.first_position.before)
        if not self._ledger.has_entry(first):
            return await self.end()
        return await self._first_of(first.ledger_id)

    @property
    def _is_whole(self) -> bool:
        """Whether no message was deleted since there are offsets."""
        if not self._table.ledgers:  # as before tables named the ledger that there was
            return False
        oldest = Position(min(self._table.ledgers), -1)
        return has_all_after(oldest, self._ledger.ledgers(), self._ledger.properties)

    async def end(self) -> int:
        """The offset after the last durable message."""
        return await self.end_after(self._ledger.last_confirmed)

    async def end_after(self, position: Position) -> int:
        """The offset after all entries up to `position`."""
        if self._end[0] == position:
            return self._end[1]
        offset = await self._found_end_after(position)
        if position >= self._end[0]:
            self._end = position, offset
        return offset

    async def _found_end_after(self, position: Position) -> int:
        if not self._ledger.has_entry(position):
            after = self._ledger.next_position(position)
            if self._ledger.has_entry(after):
                return await self._first_of(after.ledger_id)
            return max(self._end[1], int(self._ledger.properties[STAMPED]) + 1, self._table.base)
        run = await self._read(position, 1)
        index = self._index(run.ledger_id, run.entries[0])
        if index is not None:
            return index + 1
        place = await self._walk(position.ledger_id, position, None)
        return place.offset + run.message_counts[0]

    # -- look-up

    async def find(self, offset: int) -> Place:
        """The entry with the message at `offset`, or else the first one after it, which may not be
        there yet. Raises ManagedLedgerError.
        """
        known = self._places.get(offset)
        if known is not None and known >= self._ledger.first_position:
            self._places.move_to_end(offset)
            return Place(known, offset)
        ledger_id = await self._ledger_of(offset)
        if ledger_id is None:
            return Place(self._ledger.next_position(self._ledger.first_position.before), offset)
        if offset < self._table.base:
            return await self._walk(ledger_id, None, offset)
        return await self._searched(ledger_id, offset)

    def remember(self, place: Place) -> None:
        self._places[place.offset] = place.position
        self._places.move_to_end(place.offset)
        if len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    async def _ledger_of(self, offset: int) -> int | None:
        """The last ledger that begins at `offset` or before; None if the log begins after it."""
        infos = self._filled()
        low, high = 0, len(infos)
        while low < high:
            middle = (low + high) // 2
            if await self._first_of(infos[middle].ledger_id) <= offset:
                low = middle + 1
            else:
                high = middle
        return infos[low - 1].ledger_id if low else None

    async def _searched(self, ledger_id: int, offset: int) -> Place:
        """The first entry whose last message is at `offset` or behind it."""
        low, high = 0, next(i.entries for i in self._filled() if i.ledger_id == ledger_id)
        pace = Pace(_READS_A_TURN)
        while low < high:
            middle = (low + high) // 2
            run = await self._read(Position(ledger_id, middle), 1)
            index = broker_index_of(run.entries[0])
            if index is None or index < offset:
                low = middle + 1
            else:
                high = middle
            await pace.step()
        return Place(self._ledger.next_position(Position(ledger_id, low - 1)), offset)

    async def _walk(self, ledger_id: int, to: Position | None, offset: int | None) -> Place:
        """The entry at `to`, or the one with `offset`, in a ledger that has old entries."""
        marks = self._marks.setdefault(
            ledger_id, [Place(Position(ledger_id, 0), await self._first_of(ledger_id))]
        )
        place, pace = _before(marks, to, offset), Pace(1)
        last = Position(ledger_id, _LAST_ENTRY)
        while run := await self._ledger.read(place.position, last, _MARK_EVERY, _MARK_BYTES):
            for found in self.placed(run, place.offset):
                at = Position(ledger_id, found.entry_id)
                if at == to or (offset is not None and found.next_offset > offset):
                    return Place(at, found.first_offset)
            place = Place(at.after, found.next_offset)
            if place.position > marks[-1].position:
                marks.append(place)
            await pace.step()
        return Place(self._ledger.next_position(place.position.before), place.offset)

    # -- ledgers

    def _filled(self) -> list[LedgerInfo]:
        return [info for info in self._ledger.ledgers() if info.entries]

    async def _first_of(self, ledger_id: int) -> int:
        """The offset of the ledger's first message."""
        found = self._table.ledgers.get(ledger_id, self._firsts.get(ledger_id))
        if found is None:
            run = await self._read(Position(ledger_id, 0), 1)
            index = self._index(ledger_id, run.entries[0])
            if index is None:  # it was on its way when the table was made
                found = await self.end_after(self._ledger.previous_position(Position(ledger_id, 0)))
            else:
                found = index - run.message_counts[0] + 1
            self._remember_first(ledger_id, found)
        return found

    def _remember_first(self, ledger_id: int, offset: int) -> None:
        there = {info.ledger_id for info in self._ledger.ledgers()}
        self._firsts = {each: first for each, first in self._firsts.items() if each in there}
        self._marks = {each: marks for each, marks in self._marks.items() if each in there}
        self._firsts[ledger_id] = offset

    async def _read(self, position: Position, entries: int) -> EntryRun:
        run = self._ledger.read_cached(position, position, entries, 1)
        run = run or await self._ledger.read(position, position, entries, 1)
        if run is None:
            raise TrimmedMeanwhile(f"{self._ledger.name} has no entry {position} any more")
        return run


def _before(marks: Sequence[Place], to: Position | None, offset: int | None) -> Place:
    if to is not None:
        return marks[bisect_right(marks, to, key=lambda mark: mark.position) - 1]
    assert offset is not None
    return marks[max(0, bisect_right(marks, offset, key=lambda mark: mark.offset) - 1)]
