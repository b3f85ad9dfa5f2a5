"""A coordinator's records in Apache Pulsar's format, which its brokers read and write.

A record is a TransactionMetadataEntry. An entry is one record or, after `0e01 0001`, several in a
BatchedTransactionMetadataEntry. Each record has `max_local_txn_id`. The log's properties get it,
too, whenever a ledger is created or deleted, so that no id is assigned twice: Apache reads the last
entry of the last ledger, or the property if that ledger is empty.

Records that these fields cannot express are in field 1001, in the broker's own format. Apache's
parser skips that field and finds an ADD_PARTITION that adds nothing.

Source: PulsarTransactionMetadata.proto; TxnLogBufferedWriter, MLTransactionSequenceIdGenerator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.bookkeeper.formats.messages import natural
from managed_ledger.storage.bookkeeper.formats.protobuf import (
    BYTES,
    VARINT,
    Field,
    fields,
    put_bytes,
    put_int,
)
from pybroker.transaction.coordinator.log.log_records import decode_record, encode_record
from pybroker.transaction.coordinator.log.records import (
    AddPartitions,
    AddSubscriptions,
    ChangeStatus,
    IdsUsed,
    NewTransaction,
    Record,
)
from pybroker.transaction.coordinator.outcome_window import OutcomeMark
from pybroker.transaction.txn_status import TxnStatus

_MAX_LOCAL_TXN_ID: Final = "max_local_txn_id"  # the log's property
_BATCH: Final = b"\x0e\x01\x00\x01"  # magic and version
_BATCHED: Final = 1

_NEW, _ADD_PARTITION, _ADD_SUBSCRIPTION, _UPDATE = range(4)
_OP: Final = 1
_LEAST, _MOST = 2, 3
_EXPECTED_STATUS, _NEW_STATUS = 4, 5
_PARTITION: Final = 6
_SUBSCRIPTION: Final = 7
_TIMEOUT_MS, _START_TIME, _LAST_MODIFICATION_TIME = 8, 9, 10
_MAX_ID: Final = 11
_OWNER: Final = 12
_OWN: Final = 1001

_BEFORE: Final = {
    TxnStatus.COMMITTING: TxnStatus.OPEN,
    TxnStatus.COMMITTED: TxnStatus.COMMITTING,
    TxnStatus.ABORTING: TxnStatus.OPEN,
    TxnStatus.ABORTED: TxnStatus.ABORTING,
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded entry. `highest_id` is the highest used id according to it; -1 if there is none."""

    records: list[Record]
    highest_id: int


class PulsarLog:
    """Encodes one coordinator's records. As the log's Interceptor it keeps the property up to
    date.
    """

    def __init__(self, coordinator_id: int) -> None:
        self._coordinator_id = coordinator_id
        self.highest_id = -1  # the highest used id; set it after the replay

    def encode(self, records: Sequence[Record]) -> bytes:
        encoded = [self._message(record) for record in records]
        if len(encoded) == 1:
            return encoded[0]
        out = Writer()
        out.raw(_BATCH)
        for message in encoded:
            put_bytes(out, _BATCHED, message)
        return out.getvalue()

    def stamped(self, entries: Sequence[bytes], message_counts: Sequence[int]) -> Sequence[bytes]:
        return entries

    def shown_at_once(self, run: EntryRun) -> EntryRun:
        return run

    async def shown(self, run: EntryRun) -> EntryRun:
        return run

    def properties(self) -> Mapping[str, str]:
        return {_MAX_LOCAL_TXN_ID: str(self.highest_id)}

    def _message(self, record: Record) -> bytes:
        self.highest_id = max(self.highest_id, _highest_id(record))
        out = Writer()
        match record:
            case NewTransaction(local_id, timeout_ms, opened_at_ms, owner):
                self._begin(out, _NEW, local_id)
                put_int(out, _TIMEOUT_MS, timeout_ms)
                put_int(out, _START_TIME, opened_at_ms)
                put_int(out, _LAST_MODIFICATION_TIME, opened_at_ms)
                if owner is not None:
                    put_bytes(out, _OWNER, owner.encode())
            case AddPartitions(local_id, topics):
                self._begin(out, _ADD_PARTITION, local_id)
                for topic in topics:
                    put_bytes(out, _PARTITION, topic.encode())
            case AddSubscriptions(local_id, subscriptions):
                self._begin(out, _ADD_SUBSCRIPTION, local_id)
                for topic, subscription in subscriptions:
                    pair = Writer()
                    put_bytes(pair, 1, topic.encode())
                    put_bytes(pair, 2, subscription.encode())
                    put_bytes(out, _SUBSCRIPTION, pair.getvalue())
            case ChangeStatus(local_id, status, at_ms, reason):
                self._begin(out, _UPDATE, local_id)
                put_int(out, _EXPECTED_STATUS, _BEFORE[status])
                put_int(out, _NEW_STATUS, status)
                put_int(out, _LAST_MODIFICATION_TIME, at_ms)
                if reason:
                    put_bytes(out, _OWN, _own(record))
            case _:
                self._begin(out, _ADD_PARTITION, _about(record, self.highest_id))
                put_bytes(out, _OWN, _own(record))
        put_int(out, _MAX_ID, self.highest_id)
        return out.getvalue()

    def _begin(self, out: Writer, operation: int, local_id: int) -> None:
        put_int(out, _OP, operation)
        put_int(out, _LEAST, local_id)
        put_int(out, _MOST, self._coordinator_id)


def decode_pulsar(entry: bytes, source: str) -> Decoded:
    """Raises CorruptStorage if the entry is not one of Apache Pulsar's transaction log."""
    if not entry.startswith(_BATCH):
        record, highest_id = _decode(entry, source)
        return Decoded([record], highest_id)
    both = [
        _decode(field.blob, source)
        for field in fields(entry[len(_BATCH) :], source)
        if (field.number, field.wire) == (_BATCHED, BYTES)
    ]
    return Decoded([record for record, _ in both], max((each for _, each in both), default=-1))


def _decode(message: bytes, source: str) -> tuple[Record, int]:
    """The record, and the highest used id according to the message."""
    numbers = {_OP: _NEW, _LEAST: 0, _MAX_ID: -1}
    topics: list[str] = []
    subscriptions: list[tuple[str, str]] = []
    owner: str | None = None
    own: Record | None = None
    for field in fields(message, source):
        if field.wire == VARINT:
            numbers[field.number] = field.value
        elif field.wire == BYTES and field.number == _PARTITION:
            topics.append(_text(field, source))
        elif field.wire == BYTES and field.number == _SUBSCRIPTION:
            pair = {each.number: _text(each, source) for each in fields(field.blob, source)}
            subscriptions.append((pair.get(1, ""), pair.get(2, "")))
        elif field.wire == BYTES and field.number == _OWNER:
            owner = _text(field, source)
        elif field.wire == BYTES and field.number == _OWN:
            own = decode_record(Reader(field.blob, source), source)
    local_id = natural(numbers[_LEAST], source)
    highest_id = max(numbers[_MAX_ID], -1)
    if own is not None:
        return own, max(highest_id, _highest_id(own))
    record: Record
    match numbers[_OP]:
        case 0:
            timeout_ms = natural(numbers.get(_TIMEOUT_MS, 0), source)
            opened_at_ms = natural(numbers.get(_START_TIME, 0), source)
            record = NewTransaction(local_id, timeout_ms, opened_at_ms, owner)
        case 1:
            record = AddPartitions(local_id, tuple(topics))
        case 2:
            record = AddSubscriptions(local_id, tuple(subscriptions))
        case 3:
            at_ms = natural(numbers.get(_LAST_MODIFICATION_TIME, 0), source)
            record = ChangeStatus(local_id, _status(numbers.get(_NEW_STATUS, -1), source), at_ms)
        case operation:
            raise CorruptStorage(
                f"{source} has the operation {operation} of a transaction, which Apache Pulsar "
                "4.2 does not have: serve it with the version that wrote it"
            )
    return record, max(highest_id, _highest_id(record))


def _status(number: int, source: str) -> TxnStatus:
    try:
        status = TxnStatus(number)
    except ValueError:
        raise CorruptStorage(f"{source} has a transaction in the unknown state {number}") from None
    if status not in _BEFORE:
        raise CorruptStorage(f"{source} has a transaction that becomes {status.name}")
    return status


def _text(field: Field, source: str) -> str:
    try:
        return field.blob.decode()
    except UnicodeDecodeError as why:
        raise CorruptStorage(f"{source} has a name that is not UTF-8: {why}") from None


def _own(record: Record) -> bytes:
    out = Writer()
    encode_record(record, out)
    return out.getvalue()


def _about(record: Record, highest_id: int) -> int:
    """The transaction to which Apache's brokers attribute the record."""
    if isinstance(record, IdsUsed | OutcomeMark):
        return max(highest_id, 0)
    return record.local_id


def _highest_id(record: Record) -> int:
    match record:
        case IdsUsed(highest_id, _):
            return highest_id
        case OutcomeMark():
            return -1
    return record.local_id
