"""A subscription's pending acknowledgements as records, and the log that stores them.

The log is a managed ledger, created at the first acknowledgement in a transaction. An entry is a
format byte, a count and that many records.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from managed_ledger.codec import Reader, Writer
from managed_ledger.config import ANY_BATCH, MAX_MESSAGES_PER_ENTRY
from managed_ledger.errors import CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.snapshot_log import Done, SnapshotLog
from pybroker.transaction.txn_status import TxnAction

_FORMAT: Final = 1
_CURSOR: Final = "__pending_ack_state"
ALL_INDEXES: Final = -1  # as bits: of an entry, whatever its number of messages


@dataclass(frozen=True, slots=True)
class PendingAck:
    """An entry, or the indexes of a batch that are not set in `still_unacked`."""

    position: Position
    still_unacked: int | None = None  # None or 0: the whole entry
    batch_size: int = 0

    @property
    def acked_indexes(self) -> int:
        """As bits; 0 means the whole entry."""
        if not self.still_unacked:
            return 0
        return ~self.still_unacked & ((1 << self.batch_size) - 1)


class Held(NamedTuple):
    """What transactions hold, or held, of an entry: these indexes of a batch, or all of it."""

    bits: int = ALL_INDEXES
    batch_size: int = 0  # irrelevant for a whole entry

    def __or__(self, other: "Held") -> "Held":
        return Held(self.bits | other.bits, max(self.batch_size, other.batch_size))


HELD_WHOLE: Final = Held()
NOTHING_HELD: Final[Mapping[Position, Held]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AckRecord:
    """A cumulative one has a single item in `acks`: everything up to it, except what is `spared`,
    which its consumer was not given because other transactions held it.
    """

    txn_id: TxnId
    cumulative: bool
    acks: Sequence[PendingAck]
    spared: Mapping[Position, Held] = field(default_factory=lambda: NOTHING_HELD)

    @property
    def last(self) -> PendingAck:
        return self.acks[-1]

    def left_of(self, position: Position) -> int:
        """For a cumulative one: what it leaves of the entry, as bits; all of them for an entry
        beyond it.
        """
        if position > self.last.position:
            return ALL_INDEXES
        left = 0
        if position == self.last.position:
            left = self.last.still_unacked or 0
        if (spared := self.spared.get(position)) is not None:
            left |= spared.bits
        return left


@dataclass(frozen=True, slots=True)
class EndRecord:
    txn_id: TxnId
    action: TxnAction


@dataclass(frozen=True, slots=True)
class PassedOverRecord:
    """Of a snapshot: what aborted transactions held individually and is still unacknowledged.
    Consumers may have received later messages but not these.
    """

    messages: Mapping[Position, Held]


Record = AckRecord | EndRecord | PassedOverRecord


class _Operation(enum.IntEnum):
    INDIVIDUAL = 0
    CUMULATIVE = 1
    COMMIT = 2
    ABORT = 3
    CUMULATIVE_SPARING = 4  # CUMULATIVE, with what is spared
    PASSED_OVER = 5  # of no transaction


_OPERATIONS: Final = frozenset(_Operation)
_END_OPERATIONS: Final = {
    TxnAction.COMMIT: _Operation.COMMIT,
    TxnAction.ABORT: _Operation.ABORT,
}


def encode_entry(records: Sequence[Record]) -> bytes:
    out = Writer()
    out.numbers((_FORMAT, len(records)))
    for record in records:
        if isinstance(record, EndRecord):
            _write_head(out, _END_OPERATIONS[record.action], record.txn_id)
        elif isinstance(record, PassedOverRecord):
            out.number(_Operation.PASSED_OVER)
            _write_held(out, record.messages)
        else:
            _write_head(out, _ack_operation(record), record.txn_id)
            _write_acks(out, record.acks)
            if record.spared:
                _write_held(out, record.spared)
    return out.getvalue()


def _ack_operation(record: AckRecord) -> _Operation:
    if not record.cumulative:
        return _Operation.INDIVIDUAL
    return _Operation.CUMULATIVE_SPARING if record.spared else _Operation.CUMULATIVE


def _write_head(out: Writer, operation: _Operation, txn_id: TxnId) -> None:
    out.numbers((operation, *txn_id))


def _write_acks(out: Writer, acks: Sequence[PendingAck]) -> None:
    out.number(len(acks))
    for ack in acks:
        _write_bits(out, ack.position, ack.still_unacked or 0, ack.batch_size)


def _write_held(out: Writer, messages: Mapping[Position, Held]) -> None:
    out.number(len(messages))
    for position, held in messages.items():
        whole = held.bits == ALL_INDEXES
        _write_bits(out, position, 0 if whole else held.bits, held.batch_size)


def _write_bits(out: Writer, position: Position, bits: int, batch_size: int) -> None:
    """No bits means the whole entry."""
    out.numbers((*position, batch_size))
    out.blob(bits.to_bytes((bits.bit_length() + 7) // 8, "little"))


def decode_entry(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage."""
    data = Reader(entry, source)
    data.version(_FORMAT)
    return [_read_record(data, source) for _ in range(data.number())]


def _read_record(data: Reader, source: str) -> Record:
    if (number := data.number()) not in _OPERATIONS:
        raise CorruptStorage(
            f"{source} has a record of kind {number}, which this version does not know: run the "
            "version that wrote it"
        )
    operation = _Operation(number)
    if operation is _Operation.PASSED_OVER:
        return PassedOverRecord(_read_held(data))
    txn_id = TxnId(data.number(), data.number())
    if operation is _Operation.COMMIT:
        return EndRecord(txn_id, TxnAction.COMMIT)
    if operation is _Operation.ABORT:
        return EndRecord(txn_id, TxnAction.ABORT)
    acks = _read_acks(data)
    spared = _read_held(data) if operation is _Operation.CUMULATIVE_SPARING else {}
    return AckRecord(txn_id, operation is not _Operation.INDIVIDUAL, acks, spared)


def _read_acks(data: Reader) -> tuple[PendingAck, ...]:
    return tuple(_read_ack(data) for _ in range(data.number()))


def _read_held(data: Reader) -> dict[Position, Held]:
    return {each.position: _held(each) for each in _read_acks(data)}


def _held(read: PendingAck) -> Held:
    bits = read.still_unacked
    return HELD_WHOLE if bits is None else Held(bits, read.batch_size)


def _read_ack(data: Reader) -> PendingAck:
    position = Position(data.number(), data.number())
    # Earlier versions stored the value that a client sent.
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

    async def replay(self, apply: Callable[[Record], Iterable[object] | None]) -> None:
        """Pass every record to `apply`, oldest first. It returns long work in pieces; other work
        runs after each of them.
        """
        async for entry in self._log.entries():
            records = decode_entry(entry, f"The pending-ack log {self._log.name}")
            for record in records:
                for _ in apply(record) or ():
                    await asyncio.sleep(0)
            self._log.records_since_snapshot += len(records)

    def append(self, record: Record, done: Done) -> None:
        """Queue it now; `done` is called when it is durable, or with the error."""
        self._log.append(record, done)

    def append_not_later(self, record: Record, done: Done) -> None:
        """As `append`, in this turn, or fails with WouldWait."""
        self._log.append_not_later(record, done)

    @property
    def records_since_snapshot(self) -> int:
        return self._log.records_since_snapshot

    async def replace_past(
        self, live: Iterable[Record | None], elsewhere: Callable[[], Awaitable[None]]
    ) -> None:
        """Keep only the records of `live`; see SnapshotLog."""
        await self._log.replace_past(live, _weight, elsewhere)

    async def close(self) -> None:
        await self._log.close()


def _weight(record: Record) -> int:
    if isinstance(record, AckRecord):
        return len(record.acks) + len(record.spared)
    return len(record.messages) if isinstance(record, PassedOverRecord) else 1
