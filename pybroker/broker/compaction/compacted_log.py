"""The result of a compaction, in its own managed ledger: entries as published, each after its
position in the topic.

    [version u8][ledger u64][entry u64][size of the bitset u32][bitset][entry]

The bitset, little-endian, marks the kept messages of a batch; without one all are kept. A log is
written by one compaction, never changed, and deleted when the next one takes effect.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from managed_ledger.errors import DamagedEntries, ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.wire.message_metadata import last_batch_index

READ_ENTRIES: Final = 500
READ_BYTES: Final = 1 << 20
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BQQI")


class BadRecord(ManagedLedgerError):
    """An entry of a compacted log that does not decode."""


class Kept(NamedTuple):
    position: Position
    entry: bytes
    messages: int  # their number when it was published
    bits: int | None = None  # the kept ones, as bits; None: all


def encode(kept: Kept) -> bytes:
    bits = b"" if kept.bits is None else kept.bits.to_bytes((kept.messages + 7) // 8, "little")
    return _HEAD.pack(_VERSION, *kept.position, len(bits)) + bits + kept.entry


def decode(record: bytes, messages: int) -> Kept:
    """Raises BadRecord if the entry is not one of a compacted log."""
    try:
        version, ledger_id, entry_id, size = _HEAD.unpack_from(record)
    except struct.error:
        version, ledger_id, entry_id, size = -1, 0, 0, 0
    if version != _VERSION or size not in (0, (messages + 7) // 8):
        raise BadRecord(f"An entry of {len(record)} bytes does not belong to a compacted log")
    start = _HEAD.size
    bits = int.from_bytes(record[start : start + size], "little") if size else None
    return Kept(Position(ledger_id, entry_id), record[start + size :], messages, bits)


class CompactedLog:
    def __init__(self, ledger: ManagedLedger) -> None:
        self.ledger = ledger

    async def read(self, at: Position) -> tuple[list[Kept], Position]:
        """Entries from the log's own position `at` on, and the position after them; an empty list
        at the end of the log. Raises ManagedLedgerError.
        """
        end = self.ledger.last_confirmed
        run = await self.ledger.read(at, end, READ_ENTRIES, READ_BYTES)
        if run is None:
            return [], at
        found = list(map(decode, run.entries, run.message_counts))
        return found, Position(run.ledger_id, run.first_entry_id + len(run.entries))

    async def find(self, position: Position) -> Position:
        """The log's own position of the first entry whose topic position is at or after
        `position`, or perhaps is: that of a damaged entry is not known.
        """
        infos = self.ledger.ledgers()
        stops = list(accumulate(info.entries for info in infos))

        def at(index: int) -> Position:
            which = bisect_right(stops, index)
            return Position(infos[which].ledger_id, index - stops[which] + infos[which].entries)

        low, high = 0, stops[-1]
        while low < high:
            middle = whole = (low + high) // 2
            stands: Position | None = None
            while stands is None and whole < high:
                try:
                    stands = await self._stands_at(at(whole))
                except DamagedEntries as damaged:
                    whole += damaged.last + 1 - at(whole).entry_id
            if stands is not None and stands < position:
                low = whole + 1
            else:
                high = middle
        return self.ledger.last_confirmed.after if low == stops[-1] else at(low)

    async def _stands_at(self, at: Position) -> Position:
        run = await self.ledger.read(at, at, 1, 1)
        if run is None:
            raise BadRecord(f"{self.ledger.name} has no entry {at}")
        return decode(run.entries[0], run.message_counts[0]).position

    @property
    def size(self) -> tuple[int, int]:
        """The number of entries, and their bytes."""
        return sum(info.entries for info in self.ledger.ledgers()), self.ledger.total_size_bytes


def last_index(kept: Sequence[Kept]) -> int:
    """The batch index of the last message; -1 if it is not in a batch."""
    last = kept[-1]
    if last.bits is not None:
        return last.bits.bit_length() - 1
    return last_batch_index(last.entry)
