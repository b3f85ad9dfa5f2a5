"""ManagedCursorInfo and PositionInfo: what a subscription has acknowledged, in Apache's format.

A small cursor is stored in its node, with ledger id -1. A large cursor, or a cursor with partly
acknowledged batches, is stored in the last entry of a ledger; the mark-delete position in its node
is then the same or older. Acknowledged entries are ranges (lower bound exclusive) in the node. In
the entry they are bits of 64-bit words, for each ledger, as with Apache's
managedLedgerPersistIndividualAckAsLongArray. Both forms are read. A set bit of a batch's bitset
means that the index is still unacknowledged.

Source: MLDataFormats.proto; org.apache.bookkeeper.mledger.impl.ManagedCursorImpl.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from managed_ledger.ack_set import AckSet, runs_of_ones
from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import CursorRecord
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Kept
from managed_ledger.storage.bookkeeper.formats.messages import (
    a_position,
    natural,
    put_pair,
    put_position,
    read_pair,
    read_position,
)
from managed_ledger.storage.bookkeeper.formats.protobuf import (
    BYTES,
    VARINT,
    Field,
    fields,
    numbers,
    put_bytes,
    put_int,
)

MAX_RANGES: Final = 1000  # in a node: managedLedgerMaxUnackedRangesToPersistInMetadataStore
MAX_ACKED: Final = 1 << 28  # entries; more would fill the memory, and can only be an error
_MAX_WORDS: Final = 1 << 22
_WORD: Final = (1 << 64) - 1

# Kept unchanged: Apache's numeric properties (compaction, deduplication) and unknown fields.
_LONG_PROPERTIES: Final = 5
_UNKNOWN: Final = -1


def belongs_into_ledger(record: CursorRecord) -> bool:
    """Whether the cursor is large or has partly acknowledged batches. Apache's broker reads these
    only from a ledger, although it also writes them to the node.
    """
    if record.batches:
        return True
    ranges = sum(AckSet.decode(each).range_count() for each in record.acked.values())
    return ranges > MAX_RANGES


# --- the node


def encode_node(record: CursorRecord, kept: Kept, ledger_id: int) -> bytes:
    out = Writer()
    put_int(out, 1, ledger_id)
    put_int(out, 2, record.mark_delete_position.ledger_id)
    put_int(out, 3, record.mark_delete_position.entry_id)
    if ledger_id == NO_LEDGER:
        _put_ranges(out, 4, record)
        _put_batches(out, 7, record)
    out.raw(kept.get(_LONG_PROPERTIES, b""))
    for name, value in record.properties.items():
        put_pair(out, 8, name, value)
    out.raw(kept.get(_UNKNOWN, b""))
    return out.getvalue()


def decode_node(message: bytes, what: str) -> tuple[CursorRecord, Kept, int]:
    """The record, the kept data, and the ledger whose last entry has the rest, or NO_LEDGER. Raises
    CorruptStorage.
    """
    found: dict[int, int] = {}
    properties: dict[str, str] = {}
    ranges: list[bytes] = []
    batches: list[bytes] = []
    kept: dict[int, bytes] = {}
    for field in fields(message, what):
        if field.wire == VARINT and field.number in (1, 2, 3):
            found[field.number] = field.value
        elif field.wire == BYTES and field.number == 4:
            ranges.append(field.blob)
        elif field.wire == BYTES and field.number == 7:
            batches.append(field.blob)
        elif field.wire == BYTES and field.number == 8:
            name, value = read_pair(field.blob, what)
            properties[name] = value
        elif field.number != 6:  # the time of the last activity is not kept
            _keep(kept, field)
    acked = _Acked(what)
    acked.add_ranges(ranges)
    sets = _batches(batches, acked, what)
    mark = a_position(found.get(2, -1), found.get(3, -1), what)
    record = CursorRecord(mark, properties, acked.encoded(), sets)
    return record, kept, max(NO_LEDGER, found.get(1, NO_LEDGER))


# --- the entry


def encode_entry(record: CursorRecord, kept: Kept) -> bytes:
    out = Writer()
    put_int(out, 1, record.mark_delete_position.ledger_id)
    put_int(out, 2, record.mark_delete_position.entry_id)
    by_ledger = {ledger: AckSet.decode(each) for ledger, each in record.acked.items()}
    are_words = sum(acks.last >> 6 for acks in by_ledger.values()) <= _MAX_WORDS
    if not are_words:
        _put_ranges(out, 3, record)
    for field in fields(kept.get(_LONG_PROPERTIES, b""), "what is kept of a cursor"):
        put_bytes(out, 4, field.blob)
    _put_batches(out, 5, record)
    if are_words:
        for ledger_id, acks in by_ledger.items():
            put_bytes(out, 6, _words_of(ledger_id, acks))
    return out.getvalue()


def decode_entry(
    entry: bytes, node: CursorRecord, kept: Kept, what: str
) -> tuple[CursorRecord, Kept]:
    """The record in the entry, with the properties of the node. Raises CorruptStorage."""
    mark = {1: -1, 2: -1}
    parts: dict[int, list[bytes]] = {3: [], 4: [], 5: [], 6: []}
    for field in fields(entry, what):
        if field.wire == VARINT and field.number in mark:
            mark[field.number] = field.value
        elif field.wire == BYTES and field.number in parts:
            parts[field.number].append(field.blob)
    acked = _Acked(what)
    acked.add_ranges(parts[3])
    if not parts[3]:
        acked.add_words(parts[6])
    sets = _batches(parts[5], acked, what)
    position = a_position(mark[1], mark[2], what)
    numbered = Writer()
    for each in parts[4]:
        put_bytes(numbered, _LONG_PROPERTIES, each)
    kept = {**kept, _LONG_PROPERTIES: numbered.getvalue()} if parts[4] else kept
    return CursorRecord(position, node.properties, acked.encoded(), sets), kept


# --- parts


def _keep(kept: dict[int, bytes], field: Field) -> None:
    where = _LONG_PROPERTIES if field.number == _LONG_PROPERTIES else _UNKNOWN
    kept[where] = kept.get(where, b"") + field.raw


def _put_ranges(out: Writer, number: int, record: CursorRecord) -> None:
    for ledger_id, acks in record.acked.items():
        known = AckSet.decode(acks)
        for first, last in known.runs(0, known.last):
            inner = Writer()
            put_position(inner, 1, (ledger_id, first - 1))
            put_position(inner, 2, (ledger_id, last))
            put_bytes(out, number, inner.getvalue())


def _put_batches(out: Writer, number: int, record: CursorRecord) -> None:
    for position, bits in record.batches.items():
        inner = Writer()
        put_position(inner, 1, position)
        for word in words(bits):
            put_int(inner, 2, word)
        put_bytes(out, number, inner.getvalue())


def _words_of(ledger_id: int, acks: AckSet) -> bytes:
    inner = Writer()
    put_int(inner, 1, ledger_id)
    for word in acks.words():
        put_int(inner, 2, word)
    return inner.getvalue()


def words(bits: int) -> Iterator[int]:
    """Words of 64 bits, lowest bits first."""
    data = bits.to_bytes((bits.bit_length() + 63) // 64 * 8, "little")
    for at in range(0, len(data), 8):
        yield int.from_bytes(data[at : at + 8], "little")


class _Acked:
    """Acknowledged entries by ledger, at most MAX_ACKED."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._sets: dict[int, AckSet] = {}
        self._count = 0

    def add(self, ledger_id: int, first: int, last: int) -> None:
        if last < first:
            return
        self._count += last - first + 1
        if self._count > MAX_ACKED:
            raise CorruptStorage(
                f"{self._what} acknowledges more than {MAX_ACKED} entries one by one; move the "
                "subscription past them (resetcursor)"
            )
        acks = self._sets.get(natural(ledger_id, self._what))
        if acks is None:
            acks = self._sets[ledger_id] = AckSet()
        acks.add_range(first, last)

    def add_ranges(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            ends = {each.number: each.blob for each in fields(message, self._what)}
            lower = read_position(ends.get(1, b""), self._what)
            upper = read_position(ends.get(2, b""), self._what)
            # A range across ledgers counts only in the upper ledger: the lower ledger ends before
            # it.
            first = lower.entry_id + 1 if lower.ledger_id == upper.ledger_id else 0
            self.add(upper.ledger_id, first, upper.entry_id)

    def add_words(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            ledger_id, at = -1, 0
            for field in fields(message, self._what):
                if field.number == 1:
                    ledger_id = field.value
                    continue
                for word in numbers(field, self._what):
                    for first, last in runs_of_ones(word & _WORD, at):
                        self.add(ledger_id, first, last)
                    at += 64

    def encoded(self) -> dict[int, bytes]:
        return {ledger_id: self._sets[ledger_id].encode() for ledger_id in sorted(self._sets)}


def _batches(messages: Sequence[bytes], acked: _Acked, what: str) -> dict[tuple[int, int], int]:
    """The bitsets by entry. An empty bitset means that the whole entry is acknowledged."""
    found: dict[tuple[int, int], int] = {}
    for message in messages:
        position, data = None, bytearray()
        for field in fields(message, what):
            if field.number == 1:
                position = read_position(field.blob, what)
            elif field.number == 2:
                for word in numbers(field, what):
                    data += (word & _WORD).to_bytes(8, "little")
        if position is None:
            raise CorruptStorage(f"{what} has a batch bitset without a position")
        if bits := int.from_bytes(data, "little"):
            found[position] = bits
        else:
            acked.add(position.ledger_id, position.entry_id, position.entry_id)
    return found
