"""A subscription's pending acknowledgements as records, and the log that stores them.

The log is a managed ledger, created at the first acknowledgement in a transaction. An entry is a
format byte, the number of records, and the records.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from managed_ledger.codec import Reader, Writer
from managed_ledger.config import ANY_BATCH, MAX_MESSAGES_PER_ENTRY
from managed_ledger.errors import CorruptStorage
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import Position
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.pending_acks.records import (
    ALL_INDEXES,
    HELD_WHOLE,
    AckRecord,
    EndRecord,
    Held,
    LifeRecord,
    PassedOverRecord,
    PendingAck,
    Place,
    Record,
)
from pybroker.transaction.snapshot_log import Done, SnapshotLog
from pybroker.transaction.txn_status import TxnAction

_FORMAT: Final = 1
_CURSOR: Final = "__pending_ack_state"
# Flags of a LIFE.
_GONE: Final = 1
_PLAINLY: Final = 2  # it has acknowledged cumulatively without a transaction
_GIVEN: Final = 4  # what it was given follows; only with an epoch


class _Operation(enum.IntEnum):
    INDIVIDUAL = 0
    CUMULATIVE = 1
    COMMIT = 2
    ABORT = 3
    CUMULATIVE_SPARING = 4  # CUMULATIVE, with the spared messages
    PASSED_OVER = 5  # belongs to no transaction
    LIFE = 6  # nor does this
    CUMULATIVE_OF_LIFE = 7  # CUMULATIVE_SPARING, with the life
    LIFE_IN_EPOCH = 8  # LIFE, with the epoch, and what it was given


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
        elif isinstance(record, LifeRecord):
            has_epoch = record.epoch is not None
            out.number(_Operation.LIFE_IN_EPOCH if has_epoch else _Operation.LIFE)
            _write_life(out, record)
        else:
            _write_head(out, _ack_operation(record), record.txn_id)
            _write_acks(out, record.acks)
            if record.life:
                out.numbers((record.life, record.is_clear))
            if record.spared or record.life:
                _write_held(out, record.spared)
    return out.getvalue()


def _ack_operation(record: AckRecord) -> _Operation:
    if not record.cumulative:
        return _Operation.INDIVIDUAL
    if record.life:
        return _Operation.CUMULATIVE_OF_LIFE
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


def _write_life(out: Writer, life: LifeRecord) -> None:
    flags = life.is_gone * _GONE | life.plainly * _PLAINLY
    if life.epoch is not None and life.given is not None:
        flags |= _GIVEN
    out.numbers((life.number, flags, life.consumer_id, life.request_id))
    out.text(life.name)
    out.number(len(life.taints))
    for txn_id, (position, index) in life.taints:
        out.numbers((*txn_id, *position, index))
    if life.epoch is not None:
        out.number(life.epoch + 1)
        for ledger_id, entry_id in life.given or ():
            out.numbers((ledger_id + 1, entry_id + 1))


def _write_bits(out: Writer, position: Position, bits: int, batch_size: int) -> None:
    """`bits` of 0 means the whole entry."""
    out.numbers((*position, batch_size))
    out.blob(bits.to_bytes((bits.bit_length() + 7) // 8, "little"))


def decode_entry(entry: bytes, source: str) -> list[Record]:
    """The records of an entry, even if Apache Pulsar's broker wrote it. Raises CorruptStorage."""
    if not is_own_format(entry):
        from pybroker.transaction.pending_acks.pulsar_log import decode_pulsar

        return decode_pulsar(entry, source)
    data = Reader(entry, source)
    data.version(_FORMAT)
    return [_read_record(data, source) for _ in range(data.number())]


def is_own_format(entry: bytes) -> bool:
    """No Protocol Buffers message begins with this byte."""
    return entry[:1] == bytes([_FORMAT])


def _read_record(data: Reader, source: str) -> Record:
    if (number := data.number()) not in _OPERATIONS:
        raise CorruptStorage(
            f"{source} has a record of kind {number}, which this version does not know: run the "
            "version that wrote it"
        )
    operation = _Operation(number)
    if operation is _Operation.PASSED_OVER:
        return PassedOverRecord(_read_held(data))
    if operation is _Operation.LIFE or operation is _Operation.LIFE_IN_EPOCH:
        return _read_life(data, operation is _Operation.LIFE_IN_EPOCH)
    txn_id = TxnId(data.number(), data.number())
    if operation is _Operation.COMMIT:
        return EndRecord(txn_id, TxnAction.COMMIT)
    if operation is _Operation.ABORT:
        return EndRecord(txn_id, TxnAction.ABORT)
    acks = _read_acks(data)
    if operation is _Operation.CUMULATIVE_OF_LIFE:
        life, is_clear = data.numbers(2)
        return AckRecord(txn_id, True, acks, _read_held(data), life, bool(is_clear))
    spared = _read_held(data) if operation is _Operation.CUMULATIVE_SPARING else {}
    return AckRecord(txn_id, operation is not _Operation.INDIVIDUAL, acks, spared)


def _read_acks(data: Reader) -> tuple[PendingAck, ...]:
    return tuple(_read_ack(data) for _ in range(data.number()))


def _read_held(data: Reader) -> dict[Position, Held]:
    return {each.position: _held(each) for each in _read_acks(data)}


def _read_life(data: Reader, has_epoch: bool) -> LifeRecord:
    number, flags, consumer_id, request_id = data.numbers(4)
    name = data.text()
    taints = tuple(_read_taint(data) for _ in range(data.number()))
    gone, plainly = bool(flags & _GONE), bool(flags & _PLAINLY)
    epoch = data.number() - 1 if has_epoch else None
    given = (_read_bound(data), _read_bound(data)) if flags & _GIVEN else None
    return LifeRecord(number, name, consumer_id, request_id, taints, gone, plainly, epoch, given)


def _read_bound(data: Reader) -> Position:
    ledger_id, entry_id = data.numbers(2)
    return Position(ledger_id - 1, entry_id - 1)


def _read_taint(data: Reader) -> tuple[TxnId, Place]:
    most, least, ledger_id, entry_id, index = data.numbers(5)
    return TxnId(most, least), (Position(ledger_id, entry_id), index)


def _held(read: PendingAck) -> Held:
    bits = read.still_unacked
    return HELD_WHOLE if bits is None else Held(bits, read.batch_size)


def _read_ack(data: Reader) -> PendingAck:
    position = Position(data.number(), data.number())
    # Earlier versions stored the client's value unchecked.
    batch_size = min(data.number(), MAX_MESSAGES_PER_ENTRY)
    bits = int.from_bytes(data.blob(), "little") & ANY_BATCH
    return PendingAck(position, bits or None, batch_size)


def nobody_waits(error: Exception | None) -> None:
    """The caller waits for a later record, which cannot be durable without this one."""


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
        """Pass every record to `apply`, oldest first. `apply` may return long work in pieces; other
        tasks run after each piece.
        """
        async for entry in self._log.entries():
            records = decode_entry(entry, f"The pending-ack log {self._log.name}")
            for record in records:
                for _ in apply(record) or ():
                    await asyncio.sleep(0)
            self._log.records_since_snapshot += len(records)

    def append(self, record: Record, done: Done) -> None:
        """Queue the record now; `done` is called when it is durable, or with the error."""
        self._log.append(record, done)

    async def append_durably(self, records: Sequence[Record]) -> None:
        """Returns when the records are durable. Raises ManagedLedgerError if they may not be."""
        if not records:
            return
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def written(error: Exception | None) -> None:
            if durable.done():
                return  # the caller was cancelled
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        for record in records[:-1]:
            self._log.append(record, nobody_waits)
        self._log.append(records[-1], written)
        await durable

    def append_not_later(self, record: Record, done: Done) -> None:
        """Like `append`, but fails with WouldWait if the record cannot be queued in this turn."""
        self._log.append_not_later(record, done)

    @property
    def records_since_snapshot(self) -> int:
        return self._log.records_since_snapshot

    async def replace_past(
        self, live: Iterable[Record | None], remote: Callable[[], Awaitable[None]]
    ) -> None:
        """Replace the log by the records of `live`; see SnapshotLog."""
        await self._log.replace_past(live, _weight, remote)

    async def close(self) -> None:
        await self._log.close()


def _weight(record: Record) -> int:
    if isinstance(record, AckRecord):
        return len(record.acks) + len(record.spared)
    return len(record.messages) if isinstance(record, PassedOverRecord) else 1
