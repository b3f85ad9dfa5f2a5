"""Snapshots that tell Apache Pulsar's broker which transactions of a topic were aborted.

Up to the position of the snapshot, that broker delivers the messages of every transaction that the
snapshot does not name as aborted; after that position it reads markers. Snapshots are messages of
the namespace's topic `__transaction_buffer_snapshot`, with the topic's name as key.

Source: TransactionBufferSnapshot, SingleSnapshotAbortedTxnProcessorImpl.
"""

from typing import Final, NamedTuple

from managed_ledger.codec import Writer
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Pace
from pybroker.broker.schemas.compatibility import AVRO, StoredSchema
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.buffer.transactional_entries import UntaggedSpan, transactional_entries
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

_READ_ENTRIES: Final = 1000
_READ_BYTES: Final = 4 * 1024 * 1024
_READS_A_TURN: Final = 1
_NULL, _VALUE = 0, 1  # branches of Avro's unions
SCHEMA: Final = StoredSchema(
    "",
    AVRO,
    b'{"type":"record","name":"TransactionBufferSnapshot",'
    b'"namespace":"org.apache.pulsar.broker.transaction.buffer.metadata","fields":['
    b'{"name":"aborts","type":["null",{"type":"array","items":{"type":"record",'
    b'"name":"AbortTxnMetadata","fields":[{"name":"entryId","type":"long"},'
    b'{"name":"ledgerId","type":"long"},{"name":"txnIdLeastBits","type":"long"},'
    b'{"name":"txnIdMostBits","type":"long"}]},"java-class":"java.util.List"}],"default":null},'
    b'{"name":"maxReadPositionEntryId","type":"long"},'
    b'{"name":"maxReadPositionLedgerId","type":"long"},'
    b'{"name":"topicName","type":["null","string"],"default":null}]}',
    {"__alwaysAllowNull": "true", "__jsr310ConversionEnabled": "false"},
)


class Aborted(NamedTuple):
    """`position` is the last entry of the transaction; Apache's broker keeps the transaction in its
    snapshots while that ledger exists.
    """

    txn_id: TxnId
    position: Position


class Hidden(NamedTuple):
    """`half_copied`: transactions that committed, and of which the topic has a part twice."""

    aborted: list[Aborted]
    half_copied: list[TxnId]


async def hidden_transactions(ledger: ManagedLedger, hidden: HiddenEntries) -> Hidden:
    """The transactions of the hidden entries; reads only these entries. Raises
    ManagedLedgerError.
    """
    untagged, pace = UntaggedSpan.of(ledger.properties), Pace(_READS_A_TURN)
    last_message: dict[TxnId, Position] = {}
    ends: dict[TxnId, tuple[TxnAction, Position]] = {}
    for info in ledger.ledgers():
        for first, last in hidden.ranges_within(
            info.ledger_id, 0, _last_of(ledger, info.ledger_id)
        ):
            at, end = Position(info.ledger_id, first), Position(info.ledger_id, last)
            while at <= end and (
                run := await ledger.read_whole(at, end, _READ_ENTRIES, _READ_BYTES)
            ):
                for txn_id, action, begin, count in transactional_entries(run, untagged):
                    if action is None:
                        last_message[txn_id] = Position(begin.ledger_id, begin.entry_id + count - 1)
                    else:
                        ends[txn_id] = action, begin
                at = Position(run.ledger_id, run.first_entry_id + len(run.entries))
                await pace.step()
    found = Hidden([], [])
    for txn_id, position in last_message.items():
        action, marker = ends.get(txn_id, (TxnAction.ABORT, position))
        if action is TxnAction.COMMIT:
            found.half_copied.append(txn_id)
        else:
            found.aborted.append(Aborted(txn_id, max(position, marker)))
    found.aborted.sort(key=lambda each: each.position)
    return found


def _last_of(ledger: ManagedLedger, ledger_id: int) -> int:
    return ledger.previous_position(Position(ledger_id + 1, 0)).entry_id


def snapshot(topic: TopicName, up_to: Position, aborted: list[Aborted]) -> bytes:
    """The snapshot in Avro: all of `aborted`, up to the position `up_to`."""
    out = Writer()
    _put_long(out, _VALUE)
    if aborted:
        _put_long(out, len(aborted))
        for txn_id, position in aborted:
            for number in (position.entry_id, position.ledger_id, txn_id.least, txn_id.most):
                _put_long(out, number)
    _put_long(out, 0)
    _put_long(out, up_to.entry_id)
    _put_long(out, up_to.ledger_id)
    _put_long(out, _VALUE)
    name = str(topic).encode()
    _put_long(out, len(name))
    out.raw(name)
    return out.getvalue()


def _put_long(out: Writer, value: int) -> None:
    """Zigzag encoding. Transaction ids are unsigned on the wire, and signed in Java."""
    signed = value - (1 << 64) if value >> 63 == 1 else value
    out.number(2 * signed if signed >= 0 else -2 * signed - 1)


def snapshot_entry(topic: TopicName, payload: bytes, version: int, now_ms: int) -> bytes:
    """The entry with a snapshot. `version` is that of the schema."""
    metadata = pb.MessageMetadata(
        producer_name="pybroker hand-over",
        sequence_id=0,
        publish_time=now_ms,
        partition_key=str(topic),
        schema_version=version.to_bytes(8, "big"),
        uncompressed_size=len(payload),
    )
    return build_entry(metadata, payload)
