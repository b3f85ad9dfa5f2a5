"""What compaction has to know of an entry: the key of each message, and whether it deletes that."""

import asyncio
from typing import Any, Final, NamedTuple

from pybroker.wire.decompression import CannotDecompress, in_parts
from pybroker.wire.message_metadata import BadEntry, split_entry
from pybroker.wire.single_messages import single_messages

MAX_MESSAGES: Final = 20_000  # of a batch that is looked into
_MESSAGES_A_TURN: Final = 2000


class Keyed(NamedTuple):
    key: bytes | None
    deletes: bool  # no payload, or a null value


class Part(NamedTuple):
    """One of several entries that are one message."""

    message: tuple[str, str]
    number: int  # from 0
    parts: int
    key: bytes | None


class Unreadable(Exception):
    """Nobody here can tell: it is kept as it is. The message says why."""


_NO_KEY: Final = Keyed(None, False)
OUT: Final = Keyed(None, True)  # compacted out before it came here


async def look_at(entry: bytes, messages: int) -> "list[Keyed] | Part":
    """Its messages, or one for all of them. `messages` is how many the entry was published with.

    Raises Unreadable.
    """
    try:
        metadata, start = split_entry(entry)
    except BadEntry:
        return [_NO_KEY]  # no client gets anything from it either
    if metadata.HasField("num_messages_in_batch"):
        return await _batch(metadata, entry[start:], messages)
    if messages != 1:
        raise Unreadable(f"it was published as {messages} messages and is no batch")
    key = _key(metadata)
    if metadata.num_chunks_from_msg > 1:
        message = metadata.producer_name, metadata.uuid
        return Part(message, metadata.chunk_id, metadata.num_chunks_from_msg, key)
    told = metadata.HasField("uncompressed_size")
    size = metadata.uncompressed_size if told else len(entry) - start
    return [Keyed(key, size == 0 or metadata.null_value)]


async def _batch(metadata: Any, payload: bytes, messages: int) -> list[Keyed]:
    if not metadata.num_messages_in_batch == messages <= MAX_MESSAGES:
        raise Unreadable(f"it was published as {messages} messages and says otherwise")
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
    """Of either kind of metadata. Told apart as consumers see them: a key of bytes is not the text
    that encodes it.
    """
    if not message.HasField("partition_key"):
        return None
    key: str | bytes = message.partition_key  # protobuf's, where it is no UTF-8
    encoded = key.encode() if isinstance(key, str) else key
    return b"\1" + encoded if message.partition_key_b64_encoded else encoded
