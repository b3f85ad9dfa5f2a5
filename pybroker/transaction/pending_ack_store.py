"""A subscription's pending acknowledgements as records, and the log that they are kept in.

The log is a managed ledger, made at the first acknowledgement in a transaction. An entry is a
format byte, a count and so many records.
"""

import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.config import ANY_BATCH, MAX_MESSAGES_PER_ENTRY
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from pybroker.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.snapshot_log import Done, SnapshotLog
from pybroker.transaction.txn_status import TxnAction

_FORMAT: Final = 1
_CURSOR: Final = "__pending_ack_state"


@dataclass(frozen=True, slots=True)
class PendingAck:
    """One entry, or the indexes of a batch that are not set in `still_unacked`."""

    position: Position
    still_unacked: int | None = None  # None or 0: the whole entry
    batch_size: int = 0

    @property
    def acked_indexes(self) -> int:
        """As bits; 0 stands for the whole entry."""
        if not self.still_unacked:
            return 0
        return ~self.still_unacked & ((1 << self.batch_size) - 1)


@dataclass(frozen=True, slots=True)
class AckRecord:
    txn_id: TxnId
    cumulative: bool
    acks: Sequence[PendingAck]


@dataclass(frozen=True, slots=True)
class EndRecord:
    txn_id: TxnId
    action: TxnAction


Record = AckRecord | EndRecord


class _Operation(enum.IntEnum):
    INDIVIDUAL = 0
    CUMULATIVE = 1
    COMMIT = 2
    ABORT = 3


_END_OPERATIONS: Final = {
    TxnAction.COMMIT: _Operation.COMMIT,
    TxnAction.ABORT: _Operation.ABORT,
}


def encode_entry(records: Sequence[Record]) -> bytes:
    out = Writer()
    out.number(_FORMAT)
    out.number(len(records))
    for record in records:
        if isinstance(record, EndRecord):
            _write_head(out, _END_OPERATIONS[record.action], record.txn_id)
        else:
            operation = _Operation.CUMULATIVE if record.cumulative else _Operation.INDIVIDUAL
            _write_head(out, operation, record.txn_id)
            _write_acks(out, record.acks)
    return out.getvalue()


def _write_head(out: Writer, operation: _Operation, txn_id: TxnId) -> None:
    out.number(operation)
    out.number(txn_id.most)
    out.number(txn_id.least)


def _write_acks(out: Writer, acks: Sequence[PendingAck]) -> None:
    out.number(len(acks))
    for ack in acks:
        out.number(ack.position.ledger_id)
        out.number(ack.position.entry_id)
        out.number(ack.batch_size)
        bits = ack.still_unacked or 0
        out.blob(bits.to_bytes((bits.bit_length() + 7) // 8, "little"))


def decode_entry(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage."""
    data = Reader(entry, source)
    data.version(_FORMAT)
    return [_read_record(data) for _ in range(data.number())]


def _read_record(data: Reader) -> Record:
    operation = _Operation(data.number())
    txn_id = TxnId(data.number(), data.number())
    if operation is _Operation.COMMIT:
        return EndRecord(txn_id, TxnAction.COMMIT)
    if operation is _Operation.ABORT:
        return EndRecord(txn_id, TxnAction.ABORT)
    acks = tuple(_read_ack(data) for _ in range(data.number()))
    return AckRecord(txn_id, operation is _Operation.CUMULATIVE, acks)


def _read_ack(data: Reader) -> PendingAck:
    position = Position(data.number(), data.number())
    # Earlier versions wrote down what a client claimed.
    batch_size = min(data.number(), MAX_MESSAGES_PER_ENTRY)
    bits = int.from_bytes(data.blob(), "little") & ANY_BATCH
    return PendingAck(position, bits or None, batch_size)


class PendingAckStore:
    def __init__(self, log: SnapshotLog[Record]) -> None:
        self._log = log

    @classmethod
    async def open(
        cls, factory: ManagedLedgerFactory, topic: TopicName, subscription: str
    ) -> "PendingAckStore":
        return await cls.open_log(factory, pending_ack_log(topic, subscription))

    @classmethod
    async def open_log(cls, factory: ManagedLedgerFactory, name: str) -> "PendingAckStore":
        return cls(await SnapshotLog.open(factory, name, _CURSOR, encode_entry))

    async def replay(self, apply: Callable[[Record], None]) -> None:
        def apply_entry(entry: bytes) -> int:
            records = decode_entry(entry, f"The pending-ack log {self._log.name}")
            for record in records:
                apply(record)
            return len(records)

        await self._log.replay(apply_entry)

    def append(self, record: Record, done: Done) -> None:
        """Queue it, now; `done` is told when it is durable, or why it is not."""
        self._log.append(record, done)

    @property
    def records_since_snapshot(self) -> int:
        return self._log.records_since_snapshot

    async def replace_past(
        self, live: Iterable[Record], elsewhere: Callable[[], Awaitable[None]]
    ) -> None:
        """Keep only the records of `live`; see SnapshotLog."""
        await self._log.replace_past(live, _weight, elsewhere)

    async def close(self) -> None:
        await self._log.close()


def _weight(record: Record) -> int:
    return len(record.acks) if isinstance(record, AckRecord) else 1
