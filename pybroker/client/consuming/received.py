"""Turns the entry of a MESSAGE command into messages."""

import re
import struct
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from managed_ledger.checksum import crc32c
from pybroker.client.compression import codec
from pybroker.client.consuming.acks import all_bits, from_words
from pybroker.client.errors import MessageTooBig
from pybroker.client.messages import MAX_BATCH_MESSAGES, Message, ReceivedEntry, UnpackedMessage
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CHECKSUM_MAGIC
from pybroker.wire.message_metadata import BadEntry, last_batch_index, parse_metadata, payload_of

_HEAD: Final = struct.Struct(">HII")  # the checksum's magic, the checksum, the metadata's size
_U32: Final = struct.Struct(">I")
# MessageMetadata{producer_name, ...}, then optionally: sequence_id, publish_time,
# uncompressed_size, event_time, a transaction, highest_sequence_id.
_NAME: Final = 0x0A
_PLAIN: Final = re.compile(
    rb"\x10V\x18V(?:\x48V)?(?:\x60V)?(?:\xb0\x01V\xb8\x01V)?(?:\xc0\x01V)?".replace(
        b"V", rb"[\x80-\xff]{0,9}[\x00-\x7f]"
    ),
    re.DOTALL,
)
_LEAST_PLAIN: Final = 16
_NO_HEAD: Final = (0, 0, 0)
_SMALL: Final = 4096  # copying this little costs less than a view
_TORN: Final = pb.CommandAck.BatchDeSerializeError
MAX_MESSAGE_BYTES: Final = 1024**3  # uncompressed; a producer's claim is not trusted


class CorruptEntry(Exception):
    """An unreadable entry, and the reason to report to the broker."""

    def __init__(self, reason: str, validation_error: int) -> None:
        super().__init__(reason)
        self.validation_error = validation_error


def plain_metadata_ends(entries: Iterable[bytes]) -> list[int]:
    """Where each entry's metadata ends, if it need not be parsed before the application reads it.

    That applies to an entry that is no batch, not compressed, not encrypted, no chunk, and whose
    checksum is right: most entries that are not batches. For others it is 0.
    """
    ends = []
    unpack, head, is_plain = _HEAD.unpack_from, _HEAD.size, _PLAIN.fullmatch
    for entry in entries:
        size = len(entry)
        magic, checksum, metadata_size = unpack(entry) if size >= _LEAST_PLAIN else _NO_HEAD
        end = head + metadata_size
        plain = (
            magic == CHECKSUM_MAGIC
            and end <= size
            # The producer's name comes first, after its length.
            and entry[10] == _NAME
            and (name_size := entry[11]) <= 0x7F
            and is_plain(entry, 12 + name_size, end) is not None
            and crc32c(entry[6:] if size < _SMALL else memoryview(entry)[6:]) == checksum
        )
        ends.append(end if plain else 0)
    return ends


def checked_metadata(entry: bytes) -> tuple[pb.MessageMetadata, bytes]:
    """The metadata and the payload after it. Raises CorruptEntry."""
    magic, checksum, size = _HEAD.unpack_from(entry.ljust(_HEAD.size, b"\x00"))
    if magic != CHECKSUM_MAGIC:
        return _unchecked(entry)
    if crc32c(memoryview(entry)[6:]) != checksum:
        raise CorruptEntry("its checksum is wrong", pb.CommandAck.ChecksumMismatch)
    end = _HEAD.size + size
    if end > len(entry):
        raise CorruptEntry(f"it claims {size} bytes of metadata", _TORN)
    try:
        return pb.MessageMetadata.FromString(entry[_HEAD.size : end]), entry[end:]
    except DecodeError as error:
        raise CorruptEntry("its metadata does not parse", _TORN) from error


def _unchecked(entry: bytes) -> tuple[pb.MessageMetadata, bytes]:
    try:
        return parse_metadata(entry), payload_of(entry)
    except BadEntry as error:
        raise CorruptEntry(str(error), _TORN) from error


def checked_batch_size(metadata: pb.MessageMetadata) -> int:
    """0 for a message outside a batch. Raises CorruptEntry."""
    if not metadata.HasField("num_messages_in_batch"):
        return 0
    size = metadata.num_messages_in_batch
    if not 1 <= size <= MAX_BATCH_MESSAGES:
        raise CorruptEntry(f"it is a batch of {size} messages", _TORN)
    return size


def decompressed(metadata: pb.MessageMetadata, payload: bytes, most_bytes: int) -> bytes:
    """Raises CorruptEntry, UnsupportedCompression; MessageTooBig if the result would be larger than
    this client accepts.
    """
    decompress = codec(metadata.compression).decompress
    size = metadata.uncompressed_size
    if size > MAX_MESSAGE_BYTES:
        reason = f"it claims {size} bytes uncompressed"
        raise CorruptEntry(reason, pb.CommandAck.UncompressedSizeCorruption)
    check_size(size, most_bytes)
    try:
        plain = decompress(payload, size)
    except Exception as error:  # Every codec raises its own errors.
        raise CorruptEntry(str(error), pb.CommandAck.DecompressionError) from error
    if len(plain) != size:
        reason = f"it has {len(plain)} bytes uncompressed instead of {size}"
        raise CorruptEntry(reason, pb.CommandAck.UncompressedSizeCorruption)
    return plain


def check_size(size_bytes: int, most_bytes: int) -> None:
    """Raises MessageTooBig above `most_bytes`."""
    if size_bytes > most_bytes:
        raise MessageTooBig(
            f"A message has {size_bytes} bytes, more than the {most_bytes} that are accepted here: "
            "receive it with a client of the binary protocol, or skip it"
        )


def unacked_indexes(command: pb.CommandMessage, batch_size: int) -> int:
    """The messages of an entry that the broker wants delivered, as bits."""
    everything = all_bits(batch_size or 1)
    return from_words(list(command.ack_set)) & everything if command.ack_set else everything


def permits_of(command: pb.CommandMessage, entry: bytes) -> int:
    """The permits that the broker used for an unreadable entry: its stated number of messages."""
    size = last_batch_index(entry) + 1
    return unacked_indexes(command, size if 0 < size <= MAX_BATCH_MESSAGES else 0).bit_count()


def messages_in(entry: ReceivedEntry, payload: bytes, unacked: int) -> list[Message]:
    """The wanted messages of a batch, in order. Raises CorruptEntry."""
    removed: Any = entry.metadata.compacted_batch_indexes
    count, end, position = entry.batch_size, len(payload), 0
    everything = unacked == all_bits(count) and not removed
    messages: list[Message] = []
    unpack, parse, add = _U32.unpack_from, pb.SingleMessageMetadata.FromString, messages.append
    try:
        for index in range(count):
            head = position + 4
            start = head + unpack(payload, position)[0]
            single = parse(payload[head:start])
            position = start + single.payload_size
            if not start <= position <= end:
                raise CorruptEntry(f"message {index} of {count} does not fit its batch", _TORN)
            wanted = everything or (unacked >> index & 1 and index not in removed)
            if wanted and not single.compacted_out:
                add(UnpackedMessage(entry, index, payload[start:position], single))
    except (struct.error, DecodeError) as error:
        raise CorruptEntry(str(error), _TORN) from error
    return messages
