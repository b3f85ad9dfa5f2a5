"""The records of one partition that a member of a share group has acquired, until it decides.

An entry is acquired with all of its messages that nobody has acknowledged. The member accepts,
rejects or releases each record, or lets its lock run out. Whole entries are redelivered, so a
released record comes again when the last one of its batch is decided. Source: KIP-932.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

from managed_ledger.position import Position
from pybroker.kafka.errors import ErrorCode, KafkaError

_ONES: Final = re.compile("1+")


class AckType(IntEnum):
    """Values of AcknowledgeTypes."""

    GAP = 0  # there is no record
    ACCEPT = 1
    RELEASE = 2  # it is delivered again
    REJECT = 3  # it is not delivered again
    RENEW = 4  # the lock begins anew. Source: KIP-1222


_MOST_BITS: Final = 50_000_000  # looked at for one request: each part of a batch costs its size
_TYPES: Final = frozenset(AckType)
# For each type, what turns a column of types into the digits of a bitset.
_DIGITS: Final = {
    each: bytes(ord("1") if number == each else ord("0") for number in range(256))
    for each in AckType
}


class AckBatch(NamedTuple):
    """What a member says of the records from `first` to `last`: one type for all, or one each."""

    first: int
    last: int
    types: Sequence[int]


@dataclass(slots=True, eq=False)
class AcquiredEntry:
    """Bitsets are of indexes in the batch."""

    position: Position
    first_offset: int
    messages: int  # of the whole batch
    unacked: int  # not acknowledged, by anybody
    batch: bytes  # as a RecordBatch; empty when all of it was handed out
    delivery_count: int
    expires_s: float
    chunks: Sequence[Position] = ()  # the entries with the earlier parts of a chunked message
    waiting: int = 0  # the client has not been told of them
    undecided: int = 0  # the client has them
    released: int = 0

    @property
    def is_over(self) -> bool:
        return not (self.waiting or self.undecided)

    def acquire(self, most_records: int) -> int:
        """Hands out at most so many of the waiting records; returns their indexes."""
        taken, left = 0, most_records
        for start, stop in runs(self.waiting):
            if left <= 0:
                break
            stop = min(stop, start + left)
            taken |= mask(start, stop)
            left -= stop - start
        self.waiting &= ~taken
        self.undecided |= taken
        return taken


def mask(start: int, stop: int) -> int:
    """The bits from `start` up to, but without, `stop`."""
    return ((1 << (stop - start)) - 1) << start


def runs(bits: int) -> Iterator[tuple[int, int]]:
    """The runs of set bits, as (start, stop)."""
    for found in _ONES.finditer(bin(bits)[:1:-1]):
        yield found.span()


class AcquiredRecords:
    def __init__(self) -> None:
        self._entries: SortedDict[int, AcquiredEntry] = SortedDict()  # by first offset

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[AcquiredEntry]:
        return list(self._entries.values())

    def add(self, entry: AcquiredEntry) -> None:
        self._entries[entry.first_offset] = entry

    def has(self, entry: AcquiredEntry) -> bool:
        return self._entries.get(entry.first_offset) is entry

    def remove(self, entry: AcquiredEntry) -> None:
        if self.has(entry):
            del self._entries[entry.first_offset]

    def clear(self) -> None:
        self._entries.clear()

    def decide(
        self, batches: Sequence[AckBatch], expires_s: float, may_renew: bool
    ) -> list[AcquiredEntry]:
        """Applies all of them, or none; returns the entries of which something was decided.

        Raises KafkaError: INVALID_REQUEST for batches that make no sense, INVALID_RECORD_STATE for
        a record that the member does not hold, or not any more.
        """
        said: list[tuple[AcquiredEntry, AckType, int]] = []
        last, bits = -1, 0
        for batch in batches:
            _check(batch, last, may_renew)
            last = batch.last
            for each in self._said(batch):
                said.append(each)
                bits += each[0].messages
                if bits > _MOST_BITS:
                    raise _invalid("name neighbouring records of large batches together")
        changed = {}
        for entry, kind, bits in said:
            if kind is AckType.RENEW:
                entry.expires_s = expires_s
                continue
            entry.undecided &= ~bits
            if kind is AckType.RELEASE:
                entry.released |= bits
            else:
                entry.unacked &= ~bits
            changed[entry.first_offset] = entry
        return list(changed.values())

    def _said(self, batch: AckBatch) -> Iterator[tuple[AcquiredEntry, AckType, int]]:
        offset = batch.first
        while offset <= batch.last:
            entry = self._at(offset)
            if entry is None:
                raise _not_held(offset)
            start = offset - entry.first_offset
            stop = min(entry.messages, batch.last + 1 - entry.first_offset)
            for kind, bits in _by_type(batch, offset, start, stop):
                if bits & ~entry.undecided:
                    if kind is not AckType.GAP:
                        raise _not_held(offset)
                    bits &= entry.undecided
                if bits:
                    yield entry, kind, bits
            offset = entry.first_offset + stop

    def _at(self, offset: int) -> AcquiredEntry | None:
        index = self._entries.bisect_right(offset) - 1
        if index < 0:
            return None
        entry: AcquiredEntry = self._entries.peekitem(index)[1]
        return entry if offset < entry.first_offset + entry.messages else None


def _check(batch: AckBatch, before: int, may_renew: bool) -> None:
    first, last, types = batch
    if not before < first <= last:
        raise _invalid(f"records {first} to {last} do not follow those before them")
    if len(types) not in (1, last - first + 1):
        raise _invalid(f"there are {len(types)} types for records {first} to {last}")
    found = set(types)
    if not found <= _TYPES:
        raise _invalid(f"there are no types {sorted(found - _TYPES)[:5]}")
    if AckType.RENEW in found and not may_renew:
        raise _invalid("a request that renews locks must say so")


def _by_type(batch: AckBatch, offset: int, start: int, stop: int) -> Iterator[tuple[AckType, int]]:
    """The indexes from `start` to `stop` of the entry at `offset`, by what is said of them."""
    if len(batch.types) == 1:
        yield AckType(batch.types[0]), mask(start, stop)
        return
    at = offset - batch.first
    column = bytes(batch.types[at : at + stop - start])[::-1]
    for kind in map(AckType, set(column)):
        yield kind, int(column.translate(_DIGITS[kind]), 2) << start


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"Acknowledgements cannot be applied: {why}")


def _not_held(offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD_STATE,
        f"The member does not hold record {offset}: its lock has run out, or it was decided",
    )
