"""Deduplication's snapshot: the cursor `pulsar.dedup` of the topic's managed ledger.

The mark-delete position is the last entry that the snapshot covers; the named numbers are the
producers' last durable sequence ids. The rest of pybroker's snapshot, such as ids given back by
aborted transactions, is in field 1001, which Apache's brokers drop when they write the cursor. Like
any cursor, a large one is in a ledger.

Source: MLDataFormats.proto; org.apache.pulsar.broker.service.persistent.MessageDeduplication.
"""

from collections.abc import Mapping
from typing import Final

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import cursor_key, ledgers_key
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Kept, Stored
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from managed_ledger.storage.bookkeeper.formats.messages import a_position
from managed_ledger.storage.bookkeeper.formats.protobuf import (
    BYTES,
    VARINT,
    fields,
    put_bytes,
    put_int,
)
from pybroker.broker.deduplication.producer_sequence import ProducerSequence
from pybroker.broker.deduplication.snapshot import (
    SNAPSHOTS,
    durable_ids,
    encode_head,
    encode_producer,
)

CURSOR: Final = "pulsar.dedup"
_OWN: Final = 1001
_NODE_NUMBERS: Final = 5  # LongProperty in ManagedCursorInfo
_ENTRY_NUMBERS: Final = 4  # and in PositionInfo
MAX_NODE_BYTES: Final = 64 * 1024


class DeduplicationCursors:
    """Implements Family. It must come before ManagedLedgers, which would mistake this cursor for a
    subscription.
    """

    is_exact = True

    def __init__(self, ledgers: ManagedLedgers) -> None:
        self.root = ledgers.root
        self._ledgers = ledgers

    def path_of(self, key: str) -> str | None:
        if not key.startswith(SNAPSHOTS):
            return None
        return self._ledgers.path_of(cursor_key(key.removeprefix(SNAPSHOTS), CURSOR))

    def key_of(self, path: str) -> str | None:
        above, _, name = path.rpartition("/")
        key = self._ledgers.key_of(above) if name == CURSOR else None
        if key is None or not key.startswith(_LISTS):
            return None
        return SNAPSHOTS + key.removeprefix(_LISTS)

    def has_children(self, path: str) -> bool:
        return False  # the family of the parent nodes lists the children

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        position, ids = durable_ids(value, key)
        out = Writer()
        put_int(out, 1, ledger_id)
        put_int(out, 2, position.ledger_id)
        put_int(out, 3, max(-1, position.entry_id - 1))
        if ledger_id == NO_LEDGER:
            _put_numbers(out, _NODE_NUMBERS, ids)
            put_bytes(out, _OWN, value)
        return out.getvalue()

    def decode(self, key: str, node: bytes) -> Stored:
        return _decoded(key, node, (2, 3), _NODE_NUMBERS, max(NO_LEDGER, _ledger_id(node, key)))

    def entry(self, key: str, value: bytes, kept: Kept, stays: bool = False) -> bytes | None:
        if len(value) <= MAX_NODE_BYTES:
            return None
        position, ids = durable_ids(value, key)
        out = Writer()
        put_int(out, 1, position.ledger_id)
        put_int(out, 2, max(-1, position.entry_id - 1))
        _put_numbers(out, _ENTRY_NUMBERS, ids)
        put_bytes(out, _OWN, value)
        return out.getvalue()

    def with_entry(self, key: str, stored: Stored, entry: bytes) -> Stored:
        return _decoded(key, entry, (1, 2), _ENTRY_NUMBERS, stored.ledger_id)


_LISTS: Final = ledgers_key("")


def _put_numbers(out: Writer, number: int, ids: Mapping[str, int]) -> None:
    for name, last in ids.items():
        pair = Writer()
        put_bytes(pair, 1, name.encode())
        put_int(pair, 2, last)
        put_bytes(out, number, pair.getvalue())


def _ledger_id(node: bytes, key: str) -> int:
    found = (each.value for each in fields(node, key) if (each.number, each.wire) == (1, VARINT))
    return next(found, NO_LEDGER)


def _decoded(
    key: str, message: bytes, place: tuple[int, int], numbers: int, ledger_id: int
) -> Stored:
    what = f"the cursor {CURSOR} of {key.removeprefix(SNAPSHOTS)!r}"
    found: dict[int, int] = {}
    ids: dict[str, int] = {}
    for field in fields(message, what):
        if field.number == _OWN and field.wire == BYTES:
            durable_ids(field.blob, key)  # check that it can be read
            return Stored(field.blob, ledger_id=ledger_id)
        if field.number in place and field.wire == VARINT:
            found[field.number] = field.value
        elif field.number == numbers and field.wire == BYTES:
            name, last = _number(field.blob, what)
            ids[name] = last
    mark = a_position(found.get(place[0], -1), found.get(place[1], -1), what)
    parts = [encode_head(Position(mark.ledger_id, mark.entry_id + 1))]
    for name, last in ids.items():
        state = ProducerSequence()
        state.top = state.durable = last
        parts.append(encode_producer(name, state))
    return Stored(b"".join(parts), ledger_id=ledger_id)


def _number(pair: bytes, what: str) -> tuple[str, int]:
    """Raises CorruptStorage for a sequence id below -1, and a name that is not UTF-8."""
    name, last = b"", -1
    for field in fields(pair, what):
        if field.number == 1 and field.wire == BYTES:
            name = field.blob
        elif field.number == 2 and field.wire == VARINT:
            last = field.value
    if last < -1:
        raise CorruptStorage(f"{what} has the sequence id {last}")
    try:
        return name.decode(), last
    except UnicodeDecodeError as why:
        raise CorruptStorage(f"{what} names a producer that is not UTF-8: {why}") from None
