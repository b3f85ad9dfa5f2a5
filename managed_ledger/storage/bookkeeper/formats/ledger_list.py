"""ManagedLedgerInfo: a managed ledger's list of ledgers, as Apache Pulsar stores it.

The open ledger has timestamp 0 and no count of entries. Fields 1001 (deletion has begun) and 1002
(removed ledgers that may still exist) are pybroker extensions. They are not properties, because
users can set properties and must not be able to choose ledgers to delete. Apache's broker drops the
two fields when it writes the list; the removed ledgers then remain.

Source: MLDataFormats.proto; org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl.
"""

from typing import Final

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.ledger_metadata import LedgerInfo, LedgerList
from managed_ledger.storage.bookkeeper.formats.family import Kept
from managed_ledger.storage.bookkeeper.formats.messages import natural, put_pair, read_pair
from managed_ledger.storage.bookkeeper.formats.protobuf import (
    BYTES,
    VARINT,
    Field,
    fields,
    numbers,
    put_bytes,
    put_int,
)

_LEDGER: Final = (1, BYTES)
_TERMINATED: Final = (2, BYTES)
_PROPERTY: Final = (3, BYTES)
_DELETED: Final = (1001, VARINT)
_DELETING: Final = 1002
_OFFLOAD_CONTEXT: Final = 5
_GONE_FROM_BOOKKEEPER: Final = 4
_WHOLE: Final = -1  # the key of data kept for the list as a whole; ledgers use their ids
TERMINATED: Final = "terminated"  # a property; Apache Pulsar uses a field


def encode(found: LedgerList, kept: Kept) -> bytes:
    out = Writer()
    for info in found.ledgers:
        put_bytes(out, _LEDGER[0], _ledger(info) + kept.get(info.ledger_id, b""))
    for key, value in found.properties.items():
        put_pair(out, _PROPERTY[0], key, value)
    if found.deleted:
        put_int(out, _DELETED[0], 1)
    for ledger_id in found.deleting:
        put_int(out, _DELETING, ledger_id)
    out.raw(kept.get(_WHOLE, b""))
    return out.getvalue()


def decode(message: bytes, what: str) -> tuple[LedgerList, Kept]:
    """Raises CorruptStorage if `message` is not Apache Pulsar's ManagedLedgerInfo."""
    ledgers: list[LedgerInfo] = []
    properties: dict[str, str] = {}
    deleting: list[int] = []
    deleted = False
    kept: dict[int, bytes] = {}
    for field in fields(message, what):
        kind = (field.number, field.wire)
        if kind == _LEDGER:
            info, rest = _read_ledger(field.blob, what)
            ledgers.append(info)
            if rest:
                kept[info.ledger_id] = rest
        elif kind == _PROPERTY:
            key, value = read_pair(field.blob, what)
            properties[key] = value
        elif kind == _DELETED:
            deleted = bool(field.value)
        elif field.number == _DELETING:
            deleting += [natural(each, what) for each in numbers(field, what)]
        else:
            kept[_WHOLE] = kept.get(_WHOLE, b"") + field.raw
            if kind == _TERMINATED:
                properties[TERMINATED] = "true"
    # A list with ledgers is in use again, even if its deletion had begun.
    still_counted = {info.ledger_id for info in ledgers}
    left = tuple(each for each in deleting if each not in still_counted)
    return LedgerList(tuple(ledgers), properties, left, deleted and not ledgers), kept


def _ledger(info: LedgerInfo) -> bytes:
    out = Writer()
    put_int(out, 1, info.ledger_id)
    if info.closed_at_ms is None:
        put_int(out, 4, 0)
    else:
        put_int(out, 2, info.entries)
        put_int(out, 3, info.size_bytes)
        put_int(out, 4, max(1, info.closed_at_ms))
    return out.getvalue()


def _read_ledger(message: bytes, what: str) -> tuple[LedgerInfo, bytes]:
    """The ledger, and the data to keep."""
    found: dict[int, int] = {}
    rest = b""
    for field in fields(message, what):
        if field.number <= 4 and field.wire == VARINT:
            found[field.number] = natural(field.value, what)
        else:
            rest += field.raw
            if field.number == _OFFLOAD_CONTEXT:
                _check_offloaded(field, what)
    if 1 not in found:
        raise CorruptStorage(f"{what} lists a ledger without a number")
    closed = found.get(4, 0) or None
    if closed is None:
        return LedgerInfo(found[1]), rest
    return LedgerInfo(found[1], found.get(2, 0), found.get(3, 0), closed), rest


def _check_offloaded(context: Field, what: str) -> None:
    for field in fields(context.blob, what):
        if field.number == _GONE_FROM_BOOKKEEPER and field.value:
            raise CorruptStorage(
                f"{what} has ledgers that were offloaded to tiered storage and deleted from "
                "BookKeeper, which is not supported; serve this topic with Apache Pulsar"
            )
