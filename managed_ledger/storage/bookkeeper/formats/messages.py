"""Parts common to several of Apache Pulsar's stored messages."""

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.formats.protobuf import fields, put_bytes, put_int


def put_pair(out: Writer, number: int, key: str, value: str) -> None:
    """Append a KeyValue or a StringProperty."""
    pair = Writer()
    put_bytes(pair, 1, key.encode())
    put_bytes(pair, 2, value.encode())
    put_bytes(out, number, pair.getvalue())


def read_pair(message: bytes, what: str) -> tuple[str, str]:
    """Raises CorruptStorage if the name or the value is not UTF-8."""
    found = {field.number: field.blob for field in fields(message, what)}
    try:
        return found.get(1, b"").decode(), found.get(2, b"").decode()
    except UnicodeDecodeError as why:
        raise CorruptStorage(f"{what} has a property that is not UTF-8: {why}") from None


def put_position(out: Writer, number: int, position: tuple[int, int]) -> None:
    """Append a NestedPositionInfo."""
    inner = Writer()
    put_int(inner, 1, position[0])
    put_int(inner, 2, position[1])
    put_bytes(out, number, inner.getvalue())


def read_position(message: bytes, what: str) -> Position:
    """Raises CorruptStorage if the ids are not those of a position."""
    found = {field.number: field.value for field in fields(message, what)}
    return a_position(found.get(1, -1), found.get(2, -1), what)


def a_position(ledger_id: int, entry_id: int, what: str) -> Position:
    """Check that both numbers are at least -1. Raises CorruptStorage."""
    return Position(natural(ledger_id + 1, what) - 1, natural(entry_id + 1, what) - 1)


def natural(value: int, what: str) -> int:
    """Raises CorruptStorage for a negative number."""
    if value < 0:
        raise CorruptStorage(f"{what} has the negative number {value}")
    return value
