"""Batches: many messages in one entry.

A batch's payload is [size u32][SingleMessageMetadata][data] for each message, compressed as a
whole. `encode_batch` builds one without a producer, so that one process (a Spark executor, say) can
encode what another publishes with `send_batch`.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from pybroker.client.compression import codec, packed
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import CompressionType
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.single_messages import single_messages, split_batch
from pybroker.wire.varint import encode as varint

_U32: Final = struct.Struct(">I")
# Tags of SingleMessageMetadata's payload_size and sequence_id, for messages with nothing else.
_PAYLOAD_SIZE: Final = b"\x18"
_SEQUENCE_ID: Final = b"\x40"


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch ready to be published by any producer; picklable."""

    payload: bytes
    message_count: int
    uncompressed_size: int
    compression_type: CompressionType = CompressionType.NONE
    # The key that all messages share; Key_Shared subscriptions use it.
    partition_key: str | None = None
    partition_key_b64_encoded: bool = False


def encode_batch(
    messages: Iterable[Outgoing | bytes], compression_type: CompressionType = CompressionType.NONE
) -> EncodedBatch:
    """One batch of all `messages`. A batch above the broker's maximum message size (by default 5
    MB) is published in several entries."""
    parts: list[bytes] = []
    count = 0
    for message in messages:
        outgoing = Outgoing(message) if isinstance(message, bytes) else message
        parts += parts_of(outgoing, outgoing.sequence_id)
        count += 1
    return compressed(b"".join(parts), count, compression_type)


def only_message(batch: EncodedBatch) -> Outgoing:
    """The message of a batch of one. Raises BadEntry."""
    plain = codec(batch.compression_type).decompress(batch.payload, batch.uncompressed_size)
    [(single, content)] = split_batch(plain, 1)
    return Outgoing(
        content,
        {each.key: each.value for each in single.properties},
        single.partition_key if single.HasField("partition_key") else None,
        single.ordering_key if single.HasField("ordering_key") else None,
        event_timestamp=single.event_time,
        null_value=single.null_value,
        partition_key_b64_encoded=single.partition_key_b64_encoded,
    )


def halves(batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch]:
    """Two batches with the messages of a batch of several, in order. Raises BadEntry."""
    plain = codec(batch.compression_type).decompress(batch.payload, batch.uncompressed_size)
    count = batch.message_count // 2
    middle = 0
    for single in single_messages(plain, count):
        middle += _U32.size + _U32.unpack_from(plain, middle)[0] + single.payload_size

    def half(content: bytes, count: int) -> EncodedBatch:
        part = compressed(content, count, batch.compression_type)
        key, flag = batch.partition_key, batch.partition_key_b64_encoded
        return replace(part, partition_key=key, partition_key_b64_encoded=flag)

    return half(plain[:middle], count), half(plain[middle:], batch.message_count - count)


def both(done: Done) -> tuple[Done, Done]:
    """Callbacks for two halves. Once both are answered, `done` gets the first id, or a failure."""
    answers: dict[int, tuple[MessageId | None, Exception | None]] = {}

    def half(index: int) -> Done:
        def answered(stored: MessageId | None, error: Exception | None) -> None:
            answers[index] = stored, error
            if len(answers) == 2:
                failure = answers[0][1] or answers[1][1]
                done(None if failure is not None else answers[0][0], failure)

        return answered

    return half(0), half(1)


def compressed(plain: bytes, count: int, compression_type: CompressionType) -> EncodedBatch:
    payload, done = packed(plain, compression_type)
    return EncodedBatch(payload, count, len(plain), done)


def parts_of(message: Outgoing, sequence_id: int | None) -> tuple[bytes, bytes, bytes]:
    """A message's part of a batch's payload: the metadata's size, the metadata, the content."""
    content, properties, partition_key, ordering_key, _, event_time, _, null_value, *_ = message
    keyed = partition_key is not None or ordering_key is not None
    if keyed or properties or event_time or null_value:
        single = _single_metadata(message, sequence_id).SerializeToString()
    else:
        single = _plain_metadata(len(content))
        if sequence_id is not None:
            single += _SEQUENCE_ID + varint(sequence_id)
    return _U32.pack(len(single)), single, content


@lru_cache(maxsize=4096)
def _plain_metadata(size: int) -> bytes:
    return _PAYLOAD_SIZE + varint(size)


def _single_metadata(message: Outgoing, sequence_id: int | None) -> pb.SingleMessageMetadata:
    single = pb.SingleMessageMetadata(
        payload_size=len(message.content),
        sequence_id=sequence_id,
        properties=key_values(message.properties),
        partition_key=message.partition_key,
        ordering_key=message.ordering_key,
        event_time=message.event_timestamp,
    )
    if message.partition_key_b64_encoded:
        single.partition_key_b64_encoded = True
    if message.null_value:
        single.null_value = True
    return single


def key_values(properties: dict[str, str] | None) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()]
