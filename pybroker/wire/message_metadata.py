"""Entries: what SEND and MESSAGE carry behind their command, stored and delivered verbatim.

    [0x0e01 u16][crc32c u32] [metadata size u32][MessageMetadata][payload]

The checksum covers everything behind itself and may be missing. A batch is one entry whose
payload is a sequence of [metadata size u32][SingleMessageMetadata][payload], compressed as a whole.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pybroker.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CHECKSUM_MAGIC

MARKER_TXN_COMMIT: Final = 21
MARKER_TXN_ABORT: Final = 22
_MARKER_PRODUCER: Final = "pulsar.txn.marker"
_U32: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">HI")
_HEAD: Final = struct.Struct(">HII")  # with a checksum: its magic, itself, the metadata's size
_MAGIC: Final = CHECKSUM_MAGIC.to_bytes(2, "big")
_LONG_RUN: Final = 16  # from here on the columns are cheaper


class BadEntry(ValueError):
    """An entry whose metadata does not parse; its checksum was right, so its sender made it so."""


def _metadata_bounds(entry: bytes) -> tuple[int, int]:
    start = 10 if entry.startswith(_MAGIC) else 4
    try:
        end = start + _U32.unpack_from(entry, start - 4)[0]
    except struct.error:
        raise BadEntry(f"An entry of {len(entry)} bytes has no metadata") from None
    if end > len(entry):
        raise BadEntry(f"An entry of {len(entry)} bytes claims {end} bytes of metadata")
    return start, end


def parse_metadata(entry: bytes) -> pb.MessageMetadata:
    """Raises BadEntry."""
    start, end = _metadata_bounds(entry)
    try:
        return pb.MessageMetadata.FromString(entry[start:end])
    except DecodeError as error:
        raise BadEntry("An entry's metadata does not parse") from error


def payload_of(entry: bytes) -> bytes:
    """The payload as it was sent: compressed and batched as the metadata says."""
    return entry[_metadata_bounds(entry)[1] :]


def build_entry(metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    encoded = metadata.SerializeToString()
    body = b"".join((_U32.pack(len(encoded)), encoded, payload))
    return _CHECKSUM.pack(CHECKSUM_MAGIC, crc32c(body)) + body


def marker_entry(txn_id: TxnId, marker_type: int, publish_time_ms: int) -> bytes:
    """A transaction marker: no payload, never delivered. Source: PIP-31, "Transaction marker"."""
    metadata = pb.MessageMetadata(
        producer_name=_MARKER_PRODUCER,
        sequence_id=0,
        publish_time=publish_time_ms,
        marker_type=marker_type,
        txnid_most_bits=txn_id.most,
        txnid_least_bits=txn_id.least,
    )
    return build_entry(metadata, b"")


def transaction_of(metadata: pb.MessageMetadata) -> TxnId | None:
    """Presence counts, not value: coordinator 0 and its first id are valid."""
    if not metadata.HasField("txnid_least_bits"):
        return None
    return TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def transaction_fields(txn_id: TxnId) -> bytes:
    """How metadata spells that it belongs to `txn_id`; encoders put the two fields side by side."""
    return pb.MessageMetadata(
        txnid_least_bits=txn_id.least, txnid_most_bits=txn_id.most
    ).SerializePartialToString()


def naming_transaction(entries: Sequence[bytes], fields: bytes) -> Sequence[bytes]:
    """The entries, those whose metadata does not spell `fields` rewritten by `with_transaction`.

    Raises BadEntry. This is what a message of a transaction costs beyond others. A run's metadata
    mostly has one layout: a long run is looked through by column first, then entry by entry.
    """
    if len(entries) >= _LONG_RUN and _all_spell(entries, fields):
        return entries
    named: list[bytes] = []
    add, unpack = named.append, _HEAD.unpack_from
    for entry in entries:
        try:
            magic, _, size = unpack(entry)
        except struct.error:
            raise BadEntry(f"An entry of {len(entry)} bytes has no metadata") from None
        end = 10 + size
        if magic == CHECKSUM_MAGIC and end <= len(entry) and entry.find(fields, 10, end) >= 0:
            add(entry)
        else:
            add(with_transaction(entry, fields))
    return named


def _all_spell(entries: Sequence[bytes], fields: bytes) -> bool:
    """Whether all spell `fields`, and where the first does: False may be wrong, True is not."""
    first, sizes = entries[0], set(map(len, entries))
    end = 10 + int.from_bytes(first[6:10], "big")
    start = first.find(fields, 10, end)
    if not first.startswith(_MAGIC) or start < 0 or min(sizes) < end:
        return False
    stride, count = len(first), len(entries)
    if len(sizes) > 1:  # then their beginnings, which are of one size
        stride = start + len(fields)
        entries = [entry[:stride] for entry in entries]
    rows = b"".join(entries)
    # The checksum's magic, the metadata's size, the fields; the checksum between differs.
    columns = (0, 1, 6, 7, 8, 9, *range(start, start + len(fields)))
    return all(rows[column::stride].count(first[column]) == count for column in columns)


def with_transaction(entry: bytes, fields: bytes) -> bytes:
    """The entry with `fields` behind the rest of its metadata: the last one counts in protobuf.

    Some clients name the transaction in the SEND command only (the Go client does), and a log is
    all that recovery has. Raises BadEntry.
    """
    start, end = _metadata_bounds(entry)
    size = _U32.pack(end - start + len(fields))
    body = b"".join((size, entry[start:end], fields, entry[end:]))
    return _CHECKSUM.pack(CHECKSUM_MAGIC, crc32c(body)) + body


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """What Key_Shared routes by: the ordering key, else the partition key, else nothing."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.partition_key_b64_encoded:
        return metadata.partition_key.encode()
    try:
        return base64.b64decode(metadata.partition_key, validate=True)
    except binascii.Error:
        return metadata.partition_key.encode()
