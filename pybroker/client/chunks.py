"""Messages larger than an entry: the producer splits them into chunks, this module joins them.

Each chunk contains the message's uuid and the chunk's number. Chunks of other messages and whole
messages may lie between them. The number of incomplete messages is limited: the oldest is dropped
when another begins, and each is dropped if it is not complete in time after its first chunk. At the
broker a dropped message stays unacknowledged.
"""

import asyncio
from collections.abc import Callable, Sequence

from pybroker.client.consuming.acks import EntryKey
from pybroker.wire import pulsar_api_pb2 as pb


class _Incomplete:
    __slots__ = ("keys", "parts", "since_s", "size")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.keys: list[EntryKey] = []
        self.parts: list[bytes] = []
        self.size = 0


Dropped = Callable[[Sequence[EntryKey], str], None]


class ChunkAssembler:
    def __init__(self, max_pending: int, expire_ms: int, dropped: Dropped) -> None:
        self._max_pending = max(1, max_pending)
        self._expire_s = expire_ms / 1000
        self._dropped = dropped
        self._incomplete: dict[str, _Incomplete] = {}  # the oldest first
        # First entries of messages that were incomplete at the last full redelivery and have not
        # arrived again.
        self._given_back: list[EntryKey] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def first_keys(self) -> list[EntryKey]:
        """The first entry of each incomplete message."""
        return [*self._given_back, *(each.keys[0] for each in self._incomplete.values())]

    @property
    def awaits_some_again(self) -> bool:
        return bool(self._given_back)

    def reached(self, key: EntryKey) -> None:
        """Redelivery is in order: messages that begin before `key` and have not arrived went to
        another consumer.
        """
        if self._given_back:
            self._given_back = [first for first in self._given_back if first > key]

    def goes_on_with(self, metadata: pb.MessageMetadata) -> bool:
        """For an entry before the start: whether it is a chunk of a message that may end after the
        start. A message that ends with this entry was already delivered and is forgotten."""
        number, count = metadata.chunk_id, metadata.num_chunks_from_msg
        if count > 1 and number == count - 1:
            self._incomplete.pop(metadata.uuid, None)
            return False
        return count > 1 and (number == 0 or metadata.uuid in self._incomplete)

    def add(
        self, metadata: pb.MessageMetadata, key: EntryKey, payload: bytes
    ) -> tuple[bytes, list[EntryKey]] | None:
        """Returns the whole message and its entries with the last chunk, otherwise None."""
        number = metadata.chunk_id
        if number == 0:
            self._begin(metadata.uuid, key)
        message = self._incomplete.get(metadata.uuid)
        if message is None or number > len(message.parts):
            self._dropped(
                [key], f"chunk {number} of {metadata.uuid} came without the chunks before it"
            )
            return None
        if number < len(message.parts):
            if key not in message.keys:
                message.keys.append(key)  # Sent twice: acknowledged together with the message.
            return None
        message.keys.append(key)
        message.parts.append(payload)
        message.size += len(payload)
        if message.size > metadata.total_chunk_msg_size:
            self._drop(metadata.uuid, "its chunks are larger than the declared size")
        elif len(message.parts) == metadata.num_chunks_from_msg:
            del self._incomplete[metadata.uuid]
            return b"".join(message.parts), message.keys
        return None

    def _begin(self, uuid: str, key: EntryKey) -> None:
        known = self._incomplete.get(uuid)
        if known is not None:
            # The message is redelivered, or was sent again, from its beginning.
            del self._incomplete[uuid]
        if len(self._incomplete) >= self._max_pending:
            self._drop(next(iter(self._incomplete)), "too many messages are incomplete at once")
        loop = asyncio.get_running_loop()
        begun = self._incomplete[uuid] = _Incomplete(loop.time())
        if known is not None and key != known.keys[0]:
            # A restarted producer may reuse the uuid for another message: never join the chunks of
            # both. The earlier chunks are acknowledged with the message.
            begun.keys = known.keys
        if self._timer is None and self._expire_s > 0:
            self._timer = loop.call_later(self._expire_s, self._expire)

    def _drop(self, uuid: str, reason: str) -> None:
        message = self._incomplete.pop(uuid)
        self._dropped(message.keys, f"incomplete message {uuid} was dropped: {reason}")

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        for uuid, message in list(self._incomplete.items()):
            due_s = message.since_s + self._expire_s
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._expire)
                return
            self._drop(uuid, "it was not complete in time")

    def clear(self) -> None:
        """Called when the broker will send everything again."""
        self._given_back = sorted(set(self.first_keys))
        self._incomplete.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
