"""A producer of one topic (or one partition) at its broker.

A message joins the open batch, or becomes an entry at once; entries wait in the send queue until
their receipts come, through reconnections. Callers get each answer through a `done` callback.

Differs: entries of a transaction that were on their way when the connection broke are not sent
again but fail, and with them the transaction. Whether the broker stored them is not known, and
sending them twice would publish them twice wherever deduplication is off.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from pybroker.base import errors
from pybroker.base.names import TopicName, TxnId
from pybroker.client.compression import codec
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import DEFAULT_MAX_MESSAGE_BYTES, Connection
from pybroker.client.consuming.acks import EntryKey
from pybroker.client.encryption import Encryption
from pybroker.client.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
    from_wire,
)
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerAccessMode, ProducerOptions
from pybroker.client.producing.batch_collector import BatchCollector, OpenBatch
from pybroker.client.producing.batching import (
    EncodedBatch,
    both,
    compressed,
    halves,
    key_values,
    only_message,
)
from pybroker.client.producing.entries import EntryWriter, described
from pybroker.client.producing.send_queue import PendingEntry, SendQueue
from pybroker.client.transactions.transaction import Transaction
from pybroker.wire import pulsar_api_pb2 as pb

# SEND_ERRORs after which the same entry may be accepted; any other is the entry's answer.
_WORTH_RESENDING: Final = (
    errors.MetadataError,
    errors.PersistenceError,
    errors.ServiceNotReady,
    errors.TooManyRequests,
)
_MAX_SEQUENCE_ID: Final = 2**63 - 1

T = TypeVar("T")
# Makes an entry, or a part of one, of what was submitted; raises before that if it cannot.
Encode = Callable[[T, TxnId | None, Done], None]


class TopicProducer:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        options: ProducerOptions,
        room_freed: Callable[[int], None],
    ) -> None:
        """`room_freed` hears of every message that is answered, a count at a time."""
        self.topic = topic
        self.last_sequence_id = -1
        self._cluster = cluster
        self._options = options
        self._partition = TopicName.parse(topic).partition
        self._id = next(cluster.ids)
        self._epoch = 0
        # Of exclusive access: who was let in meanwhile has a higher one, and keeps the topic.
        self._topic_epoch: int | None = None
        self._attachment = Attachment(cluster, topic, self)
        self._writer = EntryWriter(
            self._id, options.producer_name or "", options.compression_type, cluster.clock
        )
        self._queue = SendQueue(
            topic,
            options.send_timeout_millis,
            finished=lambda entry: self._free_room(entry.message_count),
        )
        self._encryption: Encryption | None = None
        self._next_sequence_id: int | None = None
        if options.initial_sequence_id is not None:
            self._next_sequence_id = options.initial_sequence_id + 1
        self._max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._batches = BatchCollector(options, leave=self._send_batch)
        self._limit = options.max_pending_messages
        self._outstanding = 0
        self._promised = 0
        self._room_freed = room_freed
        self._space_waiters: deque[asyncio.Future[None]] = deque()
        self._failure: Exception | None = None
        # What kept the last entry that was not even sent from it.
        self._unsent: Exception | None = None
        # Transactions that the topic is about to join, and how many messages wait for it.
        self._joining: dict[Transaction, int] = {}

    # --- for the application ----------------------------------------------------------------

    async def open(self) -> None:
        # These refuse a missing library or key now, not at a send.
        codec(self._options.compression_type)
        if (names := self._options.encryption_key) is not None:
            names = (names,) if isinstance(names, str) else names
            self._encryption = Encryption(self._options.crypto_key_reader, names)
        await self._attachment.open(self._patience_s)

    @property
    def _patience_s(self) -> float | None:
        """Whoever waits for exclusive access waits for others to go, however long that takes."""
        waits = self._options.access_mode is ProducerAccessMode.WaitForExclusive
        return None if waits else self._cluster.timeout_s

    @property
    def producer_name(self) -> str:
        return self._writer.producer_name

    @property
    def is_connected(self) -> bool:
        return self._attachment.connection is not None

    @property
    def has_open_batch(self) -> bool:
        return self._batches.is_open

    def submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        """Takes the message; `done` is called once, now if it is refused."""
        self._take(1, txn, done, self._encode, message)

    def submit_batch(self, batch: EncodedBatch, txn: Transaction | None, done: Done) -> None:
        """Like `submit`, for a batch that is encoded already: one entry, or several if it is too
        large for one. `done` has the first message's id, or a failure of any of them."""
        self._take(batch.message_count, txn, done, self._encode_batch, batch)

    def _take(
        self, count: int, txn: Transaction | None, done: Done, encode: Encode[T], content: T
    ) -> None:
        refusal = self._take_room(count)
        if refusal is not None:
            if txn is not None:
                txn.refused(refusal)
            self._refuse(count, refusal, done)
        elif txn is None:
            self._accept(count, None, done, encode, content)
        else:
            self._publish_in(txn, count, done, encode, content)

    def _publish_in(
        self, txn: Transaction, count: int, done: Done, encode: Encode[T], content: T
    ) -> None:
        """Accepts once the topic has joined `txn`."""
        txn_id = txn.txn_id
        self._joining[txn] = self._joining.get(txn, 0) + 1

        def joined(error: Exception | None, done: Done) -> None:
            self._joining[txn] -= 1
            if not self._joining[txn]:
                del self._joining[txn]
            if error is None:
                self._accept(count, txn_id, done, encode, content)
            else:
                self._refuse(count, error, done)

        txn.publish(self, done, joined)

    async def space(self) -> None:
        """Returns when there is room for another message, in the order of asking.

        The room is promised from when the waiter is woken until it takes it, or is cancelled.
        """
        if not self._space_waiters and self._has_room:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._space_waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._promised -= 1
                self._wake_space_waiters()
            raise
        self._promised -= 1

    @property
    def _has_room(self) -> bool:
        return self._outstanding + self._promised < self._limit or self._failure is not None

    async def flush(self) -> None:
        """Returns when everything taken so far is answered; raises the first failure among that.

        What waits for its topic to join a transaction was taken too.
        """
        joining = [txn.joined(self.topic) for txn in self._joining]
        refusals = await asyncio.gather(*joining, return_exceptions=True)
        self._unsent = None
        self.flush_batch()
        for failure in (*refusals, self._unsent, await self._queue.all_answered()):
            if failure is not None:
                raise failure

    async def close(self) -> None:
        try:
            if self._failure is None and self.is_connected:
                # The sender of each message is told.
                with contextlib.suppress(PulsarException, TimeoutError):
                    async with asyncio.timeout(self._closing_patience_s):
                        await self.flush()
        except asyncio.CancelledError:
            if (connection := self._close()) is not None:
                self.leave(connection)
            raise
        connection = self._close()
        if connection is not None and not connection.closed:
            connection.producers.pop(self._id, None)
            request = pb.CommandCloseProducer(producer_id=self._id)
            await connection.request(request, self._cluster.timeout_s)

    @property
    def _closing_patience_s(self) -> float | None:
        """Messages that have a time of their own end by that."""
        return None if self._options.send_timeout_millis > 0 else self._cluster.timeout_s

    def _close(self) -> Connection | None:
        """The connection to say goodbye on, if there is one."""
        self._end(AlreadyClosed(f"The producer of {self.topic} is closed"))
        return self._attachment.close()

    # --- Attachment's member ----------------------------------------------------------------

    async def register(self, connection: Connection) -> None:
        connection.producers[self._id] = self
        try:
            answer = await connection.request(self._introduction(), self._patience_s)
        except BaseException as error:
            connection.producers.pop(self._id, None)
            self._queue.not_let_in(error)
            if isinstance(error, Timeout | asyncio.CancelledError):
                self.leave(connection)
            raise
        self._epoch += 1
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        self._writer.producer_name = answer.producer_name
        self._writer.schema_version = answer.schema_version
        self._max_message_bytes = connection.max_message_bytes
        self._batches.max_entry_bytes = connection.max_message_bytes
        if self._next_sequence_id is None:
            self.last_sequence_id = answer.last_sequence_id
            self._next_sequence_id = answer.last_sequence_id + 1
        self._queue.write_all(connection)

    def _introduction(self) -> pb.CommandProducer:
        return pb.CommandProducer(
            topic=self.topic,
            producer_id=self._id,
            producer_name=self.producer_name or None,
            user_provided_producer_name=self._options.producer_name is not None,
            metadata=key_values(self._options.properties),
            epoch=self._epoch,
            topic_epoch=self._topic_epoch,
            producer_access_mode=self._options.access_mode.value,  # type: ignore[arg-type]
            txn_enabled=True,
            schema=described(self._options.schema),
        )

    def leave(self, connection: Connection) -> None:
        connection.producers.pop(self._id, None)
        if not connection.closed:
            connection.post(pb.CommandCloseProducer(producer_id=self._id, request_id=0))

    def detached(self) -> None:
        self._attachment.lost()

    def interrupted(self) -> None:
        self._queue.fail_unsure()

    def failed(self, error: Exception) -> None:
        self._end(error)

    def _end(self, error: Exception) -> None:
        self._failure = self._failure or error
        self.flush_batch()
        self._queue.close(error)
        self._wake_space_waiters()

    # --- taking messages --------------------------------------------------------------------

    def _take_room(self, count: int) -> Exception | None:
        """Counts the messages, and says why they are not taken; `_free_room` must follow once."""
        before = self._outstanding
        self._outstanding += count
        if self._failure is not None:
            return self._failure
        # With block_if_queue_full callers wait for space instead. Without, a batch larger than
        # the limit must still pass, alone.
        if before and self._outstanding > self._limit and not self._options.block_if_queue_full:
            return ProducerQueueIsFull(
                f"{before} messages to {self.topic} are waiting for their receipts"
            )
        return None

    def _refuse(self, count: int, error: Exception, done: Done) -> None:
        done(None, error)
        self._free_room(count)

    def _free_room(self, count: int) -> None:
        self._outstanding -= count
        self._room_freed(count)
        if self._space_waiters:
            self._wake_space_waiters()

    def _wake_space_waiters(self) -> None:
        while self._space_waiters and self._has_room:
            waiter = self._space_waiters.popleft()
            if not waiter.done():
                self._promised += 1
                waiter.set_result(None)

    def _take_sequence_id(self, wanted: int | None = None) -> int:
        following = self._next_sequence_id or 0
        if wanted is None:
            self._next_sequence_id = following + 1
            return following
        if not 0 <= wanted <= _MAX_SEQUENCE_ID:
            raise InvalidConfiguration(f"sequence_id {wanted} is not within 0 and 2^63 - 1")
        self._next_sequence_id = max(following, wanted + 1)
        return wanted

    def _accept(
        self, count: int, txn_id: TxnId | None, done: Done, encode: Encode[T], content: T
    ) -> None:
        try:
            encode(content, txn_id, done)
        except Exception as error:  # protobuf's, mostly, about values of the application
            self._refuse(count, _not_encoded(error, self.topic), done)

    def _encode(self, message: Outgoing, txn_id: TxnId | None, done: Done) -> None:
        """Into a batch or an entry, whose affair `done` is from then on."""
        sequence_id = self._take_sequence_id(message.sequence_id)
        # A delayed message is delivered on its own, so it travels on its own.
        alone = message.deliver_at_ms is not None or message.disable_replication
        if self._options.batching_enabled and not alone:
            self._batches.add(message, txn_id, sequence_id, done)
            return
        self.flush_batch()
        self._enqueue_whole(*self._writer.single(message, sequence_id, txn_id), txn_id, done)

    def _enqueue_whole(
        self, metadata: pb.MessageMetadata, payload: bytes, txn_id: TxnId | None, done: Done
    ) -> None:
        if self._options.chunking_enabled and len(payload) > self._chunk_bytes(metadata):
            self._enqueue_chunks(metadata, payload, txn_id, done)
        else:
            self._enqueue(metadata, payload, txn_id, [done])

    def _chunk_bytes(self, metadata: pb.MessageMetadata) -> int:
        """What of a payload one entry takes beside its metadata. Raises MessageTooBig."""
        return self._writer.chunk_bytes(metadata, self._room_bytes)

    @property
    def _room_bytes(self) -> int:
        """What the broker takes in one entry, less what encryption adds."""
        overhead = 0 if self._encryption is None else self._encryption.overhead_bytes
        return self._max_message_bytes - overhead

    def _enqueue_chunks(
        self, metadata: pb.MessageMetadata, payload: bytes, txn_id: TxnId | None, done: Done
    ) -> None:
        size, chunks = self._chunk_bytes(metadata), list[EntryKey]()
        starts = range(0, len(payload), size)
        metadata.uuid = f"{self.producer_name}-{metadata.sequence_id}"
        metadata.num_chunks_from_msg = len(starts)
        metadata.total_chunk_msg_size = len(payload)
        for number, start in enumerate(starts):
            metadata.chunk_id = number
            answered = [done] if start == starts[-1] else []
            self._enqueue(metadata, payload[start : start + size], txn_id, answered, chunks)

    def _encode_batch(self, batch: EncodedBatch, txn_id: TxnId | None, done: Done) -> None:
        if batch.message_count < 1:
            raise InvalidConfiguration("A batch without messages is nothing to publish")
        self.flush_batch()
        first = self._next_sequence_id or 0
        last = first + batch.message_count - 1
        flag = batch.partition_key_b64_encoded
        key = Outgoing(b"", partition_key=batch.partition_key, partition_key_b64_encoded=flag)
        metadata, payload = self._writer.batch(batch, first, last, txn_id, key)
        if self._writer.fits(metadata, len(payload), self._room_bytes):
            self._take_sequence_id(last)
            self._enqueue(metadata, payload, txn_id, [done])
        elif batch.message_count > 1:
            for half, answered in zip(halves(batch), both(done), strict=True):
                self._accept(half.message_count, txn_id, answered, self._encode_batch, half)
        else:  # it may go in chunks
            self._take_sequence_id(last)
            alone = only_message(batch), first, txn_id, batch.compression_type
            self._enqueue_whole(*self._writer.single(*alone), txn_id, done)

    def flush_batch(self) -> None:
        self._batches.flush()

    # --- entries ----------------------------------------------------------------------------

    def _send_batch(self, batch: OpenBatch) -> None:
        plain, count = b"".join(batch.parts), len(batch.done)
        try:
            encoded = compressed(plain, count, self._options.compression_type)
            metadata, payload = self._writer.batch(
                encoded,
                batch.first_sequence_id,
                batch.last_sequence_id,
                batch.txn_id,
                batch.first_message,
            )
            if count == 1 and not self._writer.fits(metadata, len(payload), self._room_bytes):
                alone = batch.first_message, batch.first_sequence_id, batch.txn_id
                metadata, payload = self._writer.single(*alone)
        except Exception as error:
            self._unsent = error
            for done in batch.done:
                self._refuse(1, _not_encoded(error, self.topic), done)
            return
        self._enqueue(metadata, payload, batch.txn_id, batch.done)

    def _enqueue(
        self,
        metadata: pb.MessageMetadata,
        payload: bytes,
        txn_id: TxnId | None,
        done: list[Done],
        chunks: list[EntryKey] | None = None,
    ) -> None:
        batched = metadata.HasField("num_messages_in_batch")
        size = metadata.num_messages_in_batch if batched else 0
        partial = chunks is not None and not done
        entry = PendingEntry(metadata.sequence_id, b"", txn_id, size, done, chunks, partial)
        try:
            entry.frame = self._frame(metadata, payload)
        except Exception as error:  # what ended the producer, or encryption's
            self._unsent = error
            self._queue.finish(entry, None, error)
        else:
            self._queue.push(entry, self._attachment.connection)

    def _frame(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes:
        if self._failure is not None:
            raise self._failure
        if self._encryption is not None:
            payload = self._encryption.encrypt(metadata, payload)
        return self._writer.frame(metadata, payload, self.topic, self._max_message_bytes)

    # --- answers ----------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        entry = self._queue.take(receipt.sequence_id)
        if entry is None:
            return  # It timed out here before.
        if not entry.partial:
            self.last_sequence_id = max(
                self.last_sequence_id, receipt.sequence_id, receipt.highest_sequence_id
            )
        stored = MessageId.from_wire(receipt.message_id, self.topic, self._partition)
        self._queue.finish(entry, stored, None)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        refusal = from_wire(error.error, error.message)
        passes = isinstance(refusal, _WORTH_RESENDING) or type(refusal) is PulsarException
        if passes and not self._queue.is_transactional(error.sequence_id):
            self._resend()
            return
        self._queue.refuse(error.sequence_id, refusal)
        if isinstance(refusal, errors.ProducerFenced | errors.TopicTerminated):
            if (connection := self._attachment.close()) is not None:
                self.leave(connection)
            self._end(refusal)

    def _resend(self) -> None:
        """A new registration writes all entries again, in order, after a pause."""
        connection = self._attachment.connection
        if connection is not None:
            self.leave(connection)
            self._attachment.lost(pause=True)


def _not_encoded(error: Exception, topic: str) -> Exception:
    error.add_note(f"A message to {topic} was not sent: it holds a value of the wrong type or size")
    return error
