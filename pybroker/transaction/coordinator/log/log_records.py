"""A coordinator's records as bytes, in the broker's own format.

An entry is a format byte, the number of records, and the records: each an operation and its data.
"""

import enum
from collections.abc import Sequence
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from pybroker.transaction.coordinator.log.group_records import (
    GroupMembers,
    Promise,
    decode_members,
    decode_promise,
    encode_members,
    encode_promise,
)
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    BindSession,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Prepare,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef, TransactionalId
from pybroker.transaction.txn_status import TxnStatus

_FORMAT: Final = 1
# The format of an entry with newer kinds of records. Older versions would misread such an entry, so
# they must refuse it.
_FORMAT_WITH_LATER_KINDS: Final = 2
_OWN_FORMATS: Final = bytes((_FORMAT,)), bytes((_FORMAT_WITH_LATER_KINDS,))
_LATER_KINDS: Final = frozenset((BindSession, SpanNamespace, Promise, GroupMembers, Prepare))


class _Operation(enum.IntEnum):
    NEW = 0
    PARTITIONS = 1
    SUBSCRIPTIONS = 2
    STATUS = 3
    IDS = 4
    MARK = 5
    STATUS_BECAUSE = 20
    NAMESPACE = 30
    PROMISE = 31
    GROUP = 32
    SESSION = 40
    PREPARE = 50


def encode_entry(records: Sequence[Record]) -> bytes:
    out = Writer()
    has_later = not _LATER_KINDS.isdisjoint(map(type, records))
    for record in records:
        if type(record) is ChangeStatus and record.reason:
            has_later = True
    out.numbers((_FORMAT_WITH_LATER_KINDS if has_later else _FORMAT, len(records)))
    for record in records:
        encode_record(record, out)
    return out.getvalue()


def is_own_format(entry: bytes) -> bool:
    """Whether `decode_entry` can read the entry. No Protocol Buffers message begins with these
    bytes.
    """
    return entry[:1] in _OWN_FORMATS


def encode_record(record: Record, out: Writer) -> None:
    match record:  # the frequent ones first
        case NewTransaction():
            owner, owned = record.owner or "", record.owner is not None
            new = _Operation.NEW, record.local_id, record.timeout_ms, record.opened_at_ms, owned
            out.numbers(new)
            out.text(owner)
        case AddPartitions(local_id, topics):
            out.numbers((_Operation.PARTITIONS, local_id, len(topics)))
            for topic in topics:
                out.text(topic)
        case AddSubscriptions(local_id, subscriptions):
            out.numbers((_Operation.SUBSCRIPTIONS, local_id, len(subscriptions)))
            for topic, subscription in subscriptions:
                out.text(topic)
                out.text(subscription)
        case ChangeStatus(local_id, status, at_ms, reason):
            operation = _Operation.STATUS_BECAUSE if reason else _Operation.STATUS
            out.numbers((operation, local_id, status, at_ms))
            if reason:
                out.text(reason)
        case SpanNamespace(local_id, namespace):
            out.numbers((_Operation.NAMESPACE, local_id))
            out.text(namespace)
        case Promise():
            out.number(_Operation.PROMISE)
            encode_promise(record, out)
        case GroupMembers():
            out.number(_Operation.GROUP)
            encode_members(record, out)
        case IdsUsed(highest_id, low_watermark):  # both may be -1
            out.numbers((_Operation.IDS, highest_id + 1, low_watermark + 1))
        case OutcomeMark(at_ms, watermark):
            out.numbers((_Operation.MARK, at_ms, watermark + 1))
        case BindSession(local_id, ((owner, name), epoch)):
            out.numbers((_Operation.SESSION, local_id, epoch, owner is not None))
            out.text(owner or "")
            out.text(name)
        case Prepare(local_id, at_ms, name):
            out.numbers((_Operation.PREPARE, local_id, at_ms))
            out.text(name)


def decode_entry(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage for a cut entry or an unknown format."""
    data = Reader(entry, source)
    has_later = entry[:1] == _OWN_FORMATS[1]
    data.version(_FORMAT_WITH_LATER_KINDS if has_later else _FORMAT)
    return [decode_record(data, source) for _ in range(data.number())]


def decode_record(data: Reader, source: str) -> Record:
    match data.number():
        case _Operation.NEW:
            local_id, timeout_ms, opened_at_ms, owned = data.numbers(4)
            owner = data.text()
            return NewTransaction(local_id, timeout_ms, opened_at_ms, owner if owned else None)
        case _Operation.PARTITIONS:
            local_id, count = data.numbers(2)
            if count == 1:  # nearly always, and a generator would cost as much as the rest
                return AddPartitions(local_id, (data.text(),))
            return AddPartitions(local_id, tuple(data.text() for _ in range(count)))
        case _Operation.SUBSCRIPTIONS:
            local_id, count = data.numbers(2)
            pairs = tuple((data.text(), data.text()) for _ in range(count))
            return AddSubscriptions(local_id, pairs)
        case _Operation.STATUS:
            local_id, status, at_ms = data.numbers(3)
            return ChangeStatus(local_id, TxnStatus(status), at_ms)
        case _Operation.NAMESPACE:
            return SpanNamespace(data.number(), data.text())
        case _Operation.PROMISE:
            return decode_promise(data)
        case _Operation.GROUP:
            return decode_members(data)
        case _Operation.IDS:
            return IdsUsed(data.number() - 1, data.number() - 1)
        case _Operation.SESSION:
            local_id, epoch, owned = data.number(), data.number(), data.number()
            owner, name = data.text(), data.text()
            whose = TransactionalId(owner if owned else None, name)
            return BindSession(local_id, SessionRef(whose, epoch))
        case _Operation.MARK:
            return OutcomeMark(data.number(), data.number() - 1)
        case _Operation.STATUS_BECAUSE:
            local_id, status, at_ms = data.numbers(3)
            return ChangeStatus(local_id, TxnStatus(status), at_ms, data.text())
        case _Operation.PREPARE:
            return Prepare(data.number(), data.number(), data.text())
        case kind:
            raise CorruptStorage(
                f"{source} has a record of kind {kind}, which this version does not know: run the "
                "version that wrote it"
            )
