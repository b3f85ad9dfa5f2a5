"""Entries: what SEND and MESSAGE carry after their command, stored and delivered verbatim.

    [0x0e01 u16][crc32c u32] [metadata size u32][MessageMetadata][payload]

Broker entry metadata may precede it: [0x0e02 u16][size u32][BrokerEntryMetadata].

The checksum covers everything after itself and may be missing. A batch is one entry whose
payload is a sequence of [metadata size u32][SingleMessageMetadata][payload], compressed as a whole.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from managed_ledger.checksum import crc32c
from pybroker.base.names import TxnId
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint
from pybroker.wire.frames import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC

MARKER_TXN_COMMIT: Final = 21
MARKER_TXN_ABORT: Final = 22
_MARKER_PRODUCER: Final = "pulsar.txn.marker"
_U32: Final = struct.Struct(">I")
_CHECKSUM: Final = struct.Struct(">HI")
_MAGIC: Final = CHECKSUM_MAGIC.to_bytes(2, "big")
_BROKER_HEAD: Final = struct.Struct(">HI")
_BROKER_MAGIC: Final = BROKER_METADATA_MAGIC.to_bytes(2, "big")
_DELIVER_AT_TAG: Final = b"\x98\x01"  # field 19, a varint
_SHORT: Final = b"\0\0\0"  # the first bytes of a metadata size below 256


class BadEntry(ValueError):
    """An entry whose metadata does not parse although its checksum is right: the sender's fault."""


def _metadata_bounds(entry: bytes) -> tuple[int, int]:
    begin = _broker_metadata_end(entry) if entry.startswith(_BROKER_MAGIC) else 0
    start = begin + (10 if entry.startswith(_MAGIC, begin) else 4)
    try:
        end = start + _U32.unpack_from(entry, start - 4)[0]
    except struct.error:
        raise BadEntry(f"An entry of {len(entry)} bytes has no metadata") from None
    if end > len(entry):
        raise BadEntry(f"An entry of {len(entry)} bytes claims {end} bytes of metadata")
    return start, end


def _broker_metadata_end(entry: bytes) -> int:
    try:
        return _BROKER_HEAD.size + int(_BROKER_HEAD.unpack_from(entry)[1])
    except struct.error:
        raise BadEntry(f"An entry of {len(entry)} bytes is truncated") from None


def with_broker_metadata(entry: bytes, timestamp_ms: int | None, index: int | None) -> bytes:
    encoded = b"" if timestamp_ms is None else b"\x08" + varint.encode(timestamp_ms)
    if index is not None:
        encoded += b"\x10" + varint.encode(index)
    return b"".join((_BROKER_MAGIC, _U32.pack(len(encoded)), encoded, entry))


def without_broker_metadata(entry: bytes) -> bytes:
    return entry[_broker_metadata_end(entry) :] if entry.startswith(_BROKER_MAGIC) else entry


def broker_index_of(entry: bytes) -> int | None:
    """The index that a broker gave to the entry, or None; -1 if it was a marker and no message came
    before it. Raises BadEntry.
    """
    if not entry.startswith(_BROKER_MAGIC):
        return None
    try:
        encoded = entry[_BROKER_HEAD.size : _broker_metadata_end(entry)]
        metadata = pb.BrokerEntryMetadata.FromString(encoded)
    except DecodeError as error:
        raise BadEntry("An entry's broker metadata does not parse") from error
    if not metadata.HasField("index"):
        return None
    # The field has no sign, but the index of a marker in front of all messages is -1.
    return metadata.index - (metadata.index >> 63 << 64)


def parse_metadata(entry: bytes) -> pb.MessageMetadata:
    """Raises BadEntry if the metadata does not parse."""
    return split_entry(entry)[0]


def split_entry(entry: bytes) -> tuple[pb.MessageMetadata, int]:
    """The metadata, and the offset of the payload. Raises BadEntry."""
    start, end = _metadata_bounds(entry)
    try:
        return pb.MessageMetadata.FromString(entry[start:end]), end
    except DecodeError as error:
        raise BadEntry("An entry's metadata does not parse") from error


def payload_of(entry: bytes) -> bytes:
    """The payload as sent: compressed and batched according to the metadata."""
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


def message_count(entry: bytes) -> int:
    """The number in the metadata; 0 for a marker, 1 for an entry that does not parse."""
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return 1
    return 0 if metadata.HasField("marker_type") else max(0, metadata.num_messages_in_batch)


def transaction_of(metadata: pb.MessageMetadata) -> TxnId | None:
    """Presence matters, not the value: coordinator 0 and its first id are valid."""
    if not metadata.HasField("txnid_least_bits"):
        return None
    return TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """The key for Key_Shared: the ordering key, else the partition key, else empty."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    key = _bytes_of(metadata.partition_key)
    if not metadata.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key


def has_sticky_key(metadata: pb.MessageMetadata) -> bool:
    """An empty key is a key."""
    return metadata.HasField("partition_key") or metadata.HasField("ordering_key")


def origin(metadata: pb.MessageMetadata) -> bytes:
    """The Key_Shared key of a message without one, so that such messages spread over consumers."""
    return b"%b-%d" % (_bytes_of(metadata.producer_name), metadata.sequence_id)


def _bytes_of(text: str | bytes) -> bytes:
    """Protobuf returns a string that is not UTF-8 as bytes."""
    return text.encode() if isinstance(text, str) else text


def may_be_delayed(entries: Sequence[bytes]) -> list[int]:
    """Indexes of entries that may have a deliver_at_time: a fast filter, usually without a hit."""
    tag, short = _DELIVER_AT_TAG, _SHORT
    return [
        index
        for index, entry in enumerate(entries)
        if (entry.find(tag, 10, 10 + entry[9]) >= 0 if entry[6:9] == short else tag in entry)
    ]


def deliver_at_ms(entry: bytes) -> int | None:
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return None
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None


def is_encrypted(entry: bytes) -> bool:
    try:
        return len(parse_metadata(entry).encryption_keys) > 0
    except BadEntry:
        return False


def is_chunk(entry: bytes) -> bool:
    """Whether the entry is a chunk of a larger message."""
    try:
        return parse_metadata(entry).HasField("chunk_id")
    except BadEntry:
        return False


def last_batch_index(entry: bytes) -> int:
    """-1 for an entry that is not a batch."""
    try:
        metadata = parse_metadata(entry)
    except BadEntry:
        return -1
    batched = metadata.HasField("num_messages_in_batch")
    return metadata.num_messages_in_batch - 1 if batched else -1
