"""What compaction needs of an entry: the key of each message, and whether it deletes that key."""

import asyncio
from typing import Any, Final, NamedTuple

from pybroker.wire.decompression import CannotDecompress, in_parts
from pybroker.wire.message_metadata import (
    BadEntry,
    build_entry,
    split_entry,
    without_broker_metadata,
)
from pybroker.wire.single_messages import single_messages

MAX_MESSAGES: Final = 20_000  # in a batch; larger ones are not examined
_MESSAGES_A_TURN: Final = 2000


class Keyed(NamedTuple):
    key: bytes | None
    deletes: bool  # the message has no payload, or a null value


class Part(NamedTuple):
    """One of several entries that form one message."""

    message: tuple[str, str]
    number: int  # from 0
    parts: int
    key: bytes | None


class Unreadable(Exception):
    """The entry cannot be examined and is kept unchanged. The error's text says why."""


_NO_KEY: Final = Keyed(None, False)
OUT: Final = Keyed(None, True)  # removed by an earlier compaction


async def look_at(entry: bytes, messages: int) -> "list[Keyed] | Part":
    """The entry's messages, or a single one in place of all of them. `messages` is the count with
    which the entry was published. Raises Unreadable.
    """
    try:
        metadata, start = split_entry(entry)
    except BadEntry:
        return [_NO_KEY]  # no client can read it either
    if metadata.HasField("num_messages_in_batch"):
        return await _batch(metadata, entry[start:], messages)
    if messages != 1:
        raise Unreadable(f"it was published as {messages} messages but is not a batch")
    key = _key(metadata)
    if metadata.num_chunks_from_msg > 1:
        message = metadata.producer_name, metadata.uuid
        return Part(message, metadata.chunk_id, metadata.num_chunks_from_msg, key)
    told = metadata.HasField("uncompressed_size")
    size = metadata.uncompressed_size if told else len(entry) - start
    return [Keyed(key, size == 0 or metadata.null_value)]


def readable_tombstone(entry: bytes) -> bytes:
    """A message without content, uncompressed: the official C++ and Python clients cannot
    decompress nothing, so they would never see what it deletes, and wait for it.
    """
    metadata, _ = split_entry(entry)
    if not metadata.compression or metadata.uncompressed_size or metadata.encryption_keys:
        return entry
    if metadata.HasField("num_messages_in_batch"):
        return entry
    metadata.ClearField("compression")
    broker_metadata = entry[: len(entry) - len(without_broker_metadata(entry))]
    return broker_metadata + build_entry(metadata, b"")


async def _batch(metadata: Any, payload: bytes, messages: int) -> list[Keyed]:
    if not metadata.num_messages_in_batch == messages <= MAX_MESSAGES:
        raise Unreadable(
            f"it was published as {messages} messages but its metadata gives another number"
        )
    if metadata.encryption_keys:
        raise Unreadable("it is an encrypted batch")
    try:
        plain = await _unpacked(metadata, payload)
        found: list[Keyed] = []
        for single in single_messages(plain, messages):
            found.append(_keyed(single))
            if not len(found) % _MESSAGES_A_TURN:
                await asyncio.sleep(0)
    except (CannotDecompress, BadEntry) as error:
        raise Unreadable(str(error)) from error
    return found


async def _unpacked(metadata: Any, payload: bytes) -> bytes:
    if metadata.compression == 0:
        return payload
    parts: list[bytes] = []
    for part in in_parts(metadata.compression, payload, metadata.uncompressed_size):
        parts.append(part)
        await asyncio.sleep(0)
    return b"".join(parts)


def _keyed(single: Any) -> Keyed:
    """`single` is the SingleMessageMetadata."""
    if single.compacted_out:
        return OUT
    return Keyed(_key(single), single.payload_size == 0 or single.null_value)


def _key(message: Any) -> bytes | None:
    """The key from either kind of metadata. Keys differ as they do for consumers: a key of bytes
    differs from the text that encodes it.
    """
    if not message.HasField("partition_key"):
        return None
    key: str | bytes = message.partition_key  # bytes from protobuf if it is not UTF-8
    encoded = key.encode() if isinstance(key, str) else key
    return b"\1" + encoded if message.partition_key_b64_encoded else encoded
