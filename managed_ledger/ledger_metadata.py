"""A managed ledger in the metadata store: its list of ledgers, and each cursor.

Keys: `managed-ledgers/<name>` and `cursors/<quoted name>/<quoted cursor>`. Both values are written
as a whole and begin with a format byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from managed_ledger.codec import Reader, Writer
from managed_ledger.position import Position

LEDGERS_PREFIX: Final = "managed-ledgers/"
CURSORS_PREFIX: Final = "cursors/"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """`closed_at_ms` is None for the current ledger; lists give its entries and size as 0."""

    ledger_id: int
    entries: int = 0
    size_bytes: int = 0
    closed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerList:
    """The ledgers of a managed ledger, oldest first; the last one is the current one.

    `deleting` are ledgers that no longer belong to the log but whose data may still exist.
    `deleted` means that the deletion of the managed ledger has begun; the next process that opens
    the managed ledger finishes it.
    """

    ledgers: tuple[LedgerInfo, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    deleting: tuple[int, ...] = ()
    deleted: bool = False

    def encode(self) -> bytes:
        out = Writer()
        out.number(FORMAT)
        out.number(self.deleted)
        out.number(len(self.ledgers))
        for info in self.ledgers:
            out.number(info.ledger_id)
            out.number(info.entries)
            out.number(info.size_bytes)
            out.number(0 if info.closed_at_ms is None else info.closed_at_ms + 1)
        out.number(len(self.deleting))
        for ledger_id in self.deleting:
            out.number(ledger_id)
        write_properties(out, self.properties)
        return out.getvalue()

    @classmethod
    def decode(cls, value: bytes, key: str) -> "LedgerList":
        data = Reader(value, f"the ledger list {key!r}")
        data.version(FORMAT)
        deleted = bool(data.number())
        ledgers = tuple(read_ledger_info(data) for _ in range(data.number()))
        deleting = tuple(data.number() for _ in range(data.number()))
        return cls(ledgers, read_properties(data), deleting, deleted)


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """`acked` maps a ledger to its encoded AckSet, `batches` an entry to its unacknowledged batch
    indexes, as bits.
    """

    mark_delete_position: Position
    properties: Mapping[str, str]
    acked: Mapping[int, bytes]
    batches: Mapping[tuple[int, int], int]

    def encode(self) -> bytes:
        out = Writer()
        out.number(FORMAT)
        write_position(out, self.mark_delete_position)
        write_properties(out, self.properties)
        out.number(len(self.acked))
        for ledger_id, acks in self.acked.items():
            out.number(ledger_id)
            out.blob(acks)
        out.number(len(self.batches))
        for position, bits in self.batches.items():
            write_position(out, Position(*position))
            out.blob(bits.to_bytes((bits.bit_length() + 7) // 8, "little"))
        return out.getvalue()

    @classmethod
    def decode(cls, value: bytes, key: str) -> "CursorRecord":
        data = Reader(value, f"the cursor {key!r}")
        data.version(FORMAT)
        mark = read_position(data)
        properties = read_properties(data)
        acked = {data.number(): data.blob() for _ in range(data.number())}
        batches: dict[tuple[int, int], int] = {
            read_position(data): int.from_bytes(data.blob(), "little") for _ in range(data.number())
        }
        return cls(mark, properties, acked, batches)


def ledgers_key(name: str) -> str:
    return LEDGERS_PREFIX + name


@lru_cache(4096)
def cursors_prefix(name: str) -> str:
    return f"{CURSORS_PREFIX}{quote(name, safe='')}/"


def cursor_key(name: str, cursor: str) -> str:
    return cursors_prefix(name) + quote(cursor, safe="")


def cursor_name(key: str) -> str:
    return unquote(key.rpartition("/")[2])


def read_ledger_info(data: Reader) -> LedgerInfo:
    ledger_id, entries, size_bytes, closed = (data.number() for _ in range(4))
    return LedgerInfo(ledger_id, entries, size_bytes, closed - 1 if closed else None)


def write_properties(out: Writer, properties: Mapping[str, str]) -> None:
    out.number(len(properties))
    for key, value in properties.items():
        out.text(key)
        out.text(value)


def read_properties(data: Reader) -> dict[str, str]:
    return {data.text(): data.text() for _ in range(data.number())}


def write_position(out: Writer, position: Position) -> None:
    out.number(position.ledger_id + 1)
    out.number(position.entry_id + 1)


def read_position(data: Reader) -> Position:
    return Position(data.number() - 1, data.number() - 1)
