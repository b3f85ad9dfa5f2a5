"""From the entry behind a MESSAGE command to messages."""

import struct
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pybroker.client.acks import all_bits, from_words
from pybroker.client.batching import split_batch
from pybroker.client.compression import codec
from pybroker.client.messages import Message, ReceivedEntry
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import CHECKSUM_MAGIC
from pybroker.wire.message_metadata import BadEntry, parse_metadata, payload_of


class CorruptEntry(Exception):
    """An entry that cannot be read, and what to tell the broker about it."""

    def __init__(self, reason: str, validation_error: int) -> None:
        super().__init__(reason)
        self.validation_error = validation_error


def checked_metadata(entry: bytes) -> pb.MessageMetadata:
    """Raises CorruptEntry."""
    magic, checksum = struct.unpack_from(">HI", entry.ljust(6, b"\x00"))
    if magic == CHECKSUM_MAGIC and crc32c(memoryview(entry)[6:]) != checksum:
        raise CorruptEntry("its checksum is wrong", pb.CommandAck.ChecksumMismatch)
    try:
        return parse_metadata(entry)
    except BadEntry as error:
        raise CorruptEntry(str(error), pb.CommandAck.BatchDeSerializeError) from error


def decompressed_payload(metadata: pb.MessageMetadata, entry: bytes) -> bytes:
    """Raises CorruptEntry, UnsupportedCompression."""
    payload = payload_of(entry)
    if not metadata.compression:
        return payload
    decompress = codec(metadata.compression).decompress
    try:
        plain = decompress(payload, metadata.uncompressed_size)
    except Exception as error:  # Every codec raises its own.
        raise CorruptEntry(str(error), pb.CommandAck.DecompressionError) from error
    if len(plain) != metadata.uncompressed_size:
        reason = f"{len(plain)} bytes instead of {metadata.uncompressed_size}"
        raise CorruptEntry(reason, pb.CommandAck.UncompressedSizeCorruption)
    return plain


def unacked_indexes(command: pb.CommandMessage, batch_size: int) -> int:
    """The part of a batch (or of one message) that the broker wants delivered, as bits."""
    everything = all_bits(batch_size or 1)
    return from_words(list(command.ack_set)) & everything if command.ack_set else everything


def messages_in(entry: ReceivedEntry, payload: bytes, unacked: int) -> Iterator[Message]:
    """In order. Raises CorruptEntry."""
    if entry.batch_size == 0:
        yield Message(entry, -1, payload, None)
        return
    removed: Any = entry.metadata.compacted_batch_indexes
    try:
        for index, (single, data) in enumerate(split_batch(payload, entry.batch_size)):
            if unacked >> index & 1 and not single.compacted_out and index not in removed:
                yield Message(entry, index, data, single)
    except (struct.error, DecodeError) as error:
        raise CorruptEntry(str(error), pb.CommandAck.BatchDeSerializeError) from error
