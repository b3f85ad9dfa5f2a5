"""Reads one topic's entries as stored, in order, for callers that unpack many at once.

The broker sends as many messages as it has permits for. Only the caller, which unpacks the entries,
knows how many messages they hold: it reports the number, which requests more. A new registration
continues after the last entry that was taken.

Differs: official clients only return messages.
"""

import asyncio
import contextlib
from typing import Final, NamedTuple

from pybroker.base.errors import ConsumerNotFound
from pybroker.base.names import TopicName
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec, subscribe_command
from pybroker.client.errors import AlreadyClosed, ConnectError, Timeout
from pybroker.client.messages import MessageId
from pybroker.client.options import ConsumerOptions
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import last_batch_index
from pybroker.wire.message_run import MessageRun

# Consecutive entries arrive faster than this.
_PAUSE_S: Final = 0.01


class StoredEntry(NamedTuple):
    ledger_id: int
    entry_id: int
    # [checksum][metadata][payload]: see pybroker.wire.message_metadata.
    data: bytes


class EntryReader:
    """Created by aio.Client.create_entry_reader."""

    def __init__(self, cluster: Cluster, topic: str, start: MessageId, permits: int) -> None:
        self.topic = topic
        self._cluster = cluster
        self._id = next(cluster.ids)
        self._partition = TopicName.parse(topic).partition
        self._name = f"reader-{cluster.rng.getrandbits(40):010x}"
        self._attachment = Attachment(cluster, topic, self)
        self._start = start
        self._permits = permits
        self._owed = 0
        self._entries: list[StoredEntry] = []
        self._size_bytes = 0
        self._failure: Exception | None = None
        self.reached_end = False
        self._arrived = asyncio.Event()

    async def open(self) -> None:
        await self._attachment.open(self._cluster.timeout_s)

    # --- Attachment's member, and the connection's --------------------------------------------

    async def register(self, connection: Connection) -> None:
        start = Start(self._start)
        spec = SubscriptionSpec(self._name, ConsumerOptions(), start, create_topic=False)
        command = subscribe_command(spec, self.topic, self._id, spec.start, 0)
        connection.consumers[self._id] = self
        try:
            await connection.request(command, self._cluster.timeout_s)
        except BaseException as error:
            connection.consumers.pop(self._id, None)
            if isinstance(error, Timeout | asyncio.CancelledError):
                self.leave(connection)
            raise
        self._drop()
        self._owed = 0
        connection.post(pb.CommandFlow(consumer_id=self._id, messagePermits=self._permits))

    def leave(self, connection: Connection) -> None:
        connection.consumers.pop(self._id, None)
        if not connection.closed:
            connection.post(pb.CommandCloseConsumer(consumer_id=self._id, request_id=0))

    def detached(self) -> None:
        self._attachment.lost()

    def interrupted(self) -> None:
        self._drop()

    def failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    def on_messages(self, run: MessageRun) -> None:
        left_out = Start(self._start).left_out
        for message, data in zip(run.messages, run.entries, strict=True):
            place = message.message_id
            if left_out is not None and (place.ledgerId, place.entryId) <= left_out[:2]:
                self.unpacked(last_batch_index(data) + 1 or 1)
                continue
            self._entries.append(StoredEntry(place.ledgerId, place.entryId, data))
            self._size_bytes += len(data)
        self._arrived.set()

    def _drop(self) -> None:
        self._entries = []
        self._size_bytes = 0
        self._arrived.clear()

    # --- reading ----------------------------------------------------------------------------

    async def take(
        self, least_bytes: int, until: tuple[int, int], timeout_s: float
    ) -> list[StoredEntry]:
        """Returns the entries that have arrived once they have `least_bytes`, include the entry
        `until`, or no more come (the permits may be used up). Empty if none came in `timeout_s`.

        The caller reports with `unpacked` how many messages the entries held.
        """
        with contextlib.suppress(TimeoutError):
            while self._size_bytes < least_bytes and not self._reaches(until):
                if self._failure is not None:
                    raise self._failure
                self._arrived.clear()
                async with asyncio.timeout(_PAUSE_S if self._entries else timeout_s):
                    await self._arrived.wait()
        taken = self._entries
        if taken:
            last = taken[-1]
            self._start = MessageId(self._partition, last.ledger_id, last.entry_id)
        self._entries, self._size_bytes = [], 0
        return taken

    def _reaches(self, until: tuple[int, int]) -> bool:
        return bool(self._entries) and self._entries[-1][:2] >= until

    def unpacked(self, messages: int) -> None:
        """Allows the broker to send as many messages more."""
        self._owed += messages
        connection = self._attachment.connection
        if self._owed < self._permits // 2 or connection is None or connection.closed:
            return
        connection.post(pb.CommandFlow(consumer_id=self._id, messagePermits=self._owed))
        self._owed = 0

    async def last_message_id(self) -> MessageId:
        """The last message of the topic that can be delivered; entry id -1 if there is none."""

        async def ask() -> pb.CommandGetLastMessageIdResponse:
            connection = self._attachment.connection
            if connection is None or connection.closed:
                raise ConnectError(f"The reader of {self.topic} is being reconnected: try again")
            request = pb.CommandGetLastMessageId(consumer_id=self._id)
            try:
                answer: pb.CommandGetLastMessageIdResponse = await connection.request(
                    request, self._cluster.timeout_s
                )
                return answer
            except ConsumerNotFound as error:
                raise ConnectError(f"The reader of {self.topic} is being reconnected") from error

        answer = await self._cluster.patiently(ask, f"The last message of {self.topic}")
        return MessageId.from_wire(answer.last_message_id, self.topic, self._partition)

    async def close(self) -> None:
        self._cluster.members.pop(self, None)
        self.failed(AlreadyClosed(f"The reader of {self.topic} is closed"))
        self._drop()
        connection = self._attachment.close()
        if connection is not None and not connection.closed:
            connection.consumers.pop(self._id, None)
            request = pb.CommandCloseConsumer(consumer_id=self._id)
            await connection.request(request, self._cluster.timeout_s)
