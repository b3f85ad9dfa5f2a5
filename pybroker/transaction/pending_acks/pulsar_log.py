"""Reads pending-ack logs in Apache Pulsar's format, which this broker never writes.

A record is a PendingAckMetadataEntry. An entry is one record or, after `0e01 0001`, several in a
BatchedPendingAckMetadataEntry. In an `ack_set`, a set bit means that the index is unacknowledged.

Source: TransactionPendingAck.proto; MLPendingAckStore.
"""

from typing import Final

from managed_ledger.config import ANY_BATCH, MAX_MESSAGES_PER_ENTRY
from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from managed_ledger.storage.bookkeeper.formats.messages import natural
from managed_ledger.storage.bookkeeper.formats.protobuf import BYTES, VARINT, fields, numbers
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import AckRecord, EndRecord, PendingAck, Record
from pybroker.transaction.txn_status import TxnAction

_BATCH: Final = b"\x0e\x01\x00\x01"  # magic and version
_BATCHED: Final = 1
_OP, _ACK_TYPE, _LEAST, _MOST, _ACK = range(1, 6)

_CUMULATIVE: Final = 1
_LEDGER_ID, _ENTRY_ID, _ACK_SET, _BATCH_SIZE = range(1, 5)
_WORD: Final = (1 << 64) - 1


def decode_pulsar(entry: bytes, source: str) -> list[Record]:
    """Raises CorruptStorage if the entry is not one of Apache Pulsar's pending ack log."""
    if not entry.startswith(_BATCH):
        return [_decode(entry, source)]
    return [
        _decode(field.blob, source)
        for field in fields(entry[len(_BATCH) :], source)
        if (field.number, field.wire) == (_BATCHED, BYTES)
    ]


def _decode(message: bytes, source: str) -> Record:
    found = {_OP: 0, _ACK_TYPE: 0, _LEAST: 0, _MOST: 0}
    acks: list[PendingAck] = []
    for field in fields(message, source):
        if field.wire == VARINT:
            found[field.number] = field.value
        elif field.wire == BYTES and field.number == _ACK:
            acks.append(_decode_ack(field.blob, source))
    txn_id = TxnId(found[_MOST] & _WORD, found[_LEAST] & _WORD)
    match found[_OP]:
        case 1:
            cumulative = found[_ACK_TYPE] == _CUMULATIVE
            if cumulative and len(acks) != 1:
                raise CorruptStorage(
                    f"{source} has a cumulative acknowledgement of {len(acks)} messages"
                )
            return AckRecord(txn_id, cumulative, tuple(acks))
        case 2:
            return EndRecord(txn_id, TxnAction.COMMIT)
        case 3:
            return EndRecord(txn_id, TxnAction.ABORT)
        case operation:
            raise CorruptStorage(
                f"{source} has the operation {operation}, which Apache Pulsar 4.2 does not have: "
                "serve it with the version that wrote it"
            )


def _decode_ack(message: bytes, source: str) -> PendingAck:
    found = {_LEDGER_ID: 0, _ENTRY_ID: 0, _BATCH_SIZE: 0}
    words: list[int] = []
    for field in fields(message, source):
        if field.number == _ACK_SET:
            words += numbers(field, source)
        elif field.wire == VARINT:
            found[field.number] = natural(field.value, source)
    position = Position(found[_LEDGER_ID], found[_ENTRY_ID])
    bits = b"".join((word & _WORD).to_bytes(8, "little") for word in words)
    still_unacked = int.from_bytes(bits, "little") & ANY_BATCH
    return PendingAck(
        position, still_unacked or None, min(found[_BATCH_SIZE], MAX_MESSAGES_PER_ENTRY)
    )
