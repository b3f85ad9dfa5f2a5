"""A producer of one topic (or one partition) at its broker.

Messages become entries (`packer.py`), which stay in the send queue until their receipts come, even
across reconnections. Callers get each answer through a `done` callback.

Differs: entries of a transaction that were in flight when the connection broke are not sent again.
They fail, and so does the transaction. Whether the broker stored them is unknown, and sending them
again could publish them twice if deduplication is off.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from pybroker.base import errors
from pybroker.base.names import TopicName
from pybroker.client import tracing
from pybroker.client.compression import codec
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.encryption import Encryption
from pybroker.client.errors import AlreadyClosed, PulsarException, Timeout, from_wire
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerAccessMode, ProducerOptions
from pybroker.client.producing.batching import EncodedBatch, key_values
from pybroker.client.producing.entries import EntryWriter, described
from pybroker.client.producing.entry_buckets import EntryBuckets
from pybroker.client.producing.packer import Encode, Packer, T
from pybroker.client.producing.room import Room
from pybroker.client.producing.send_queue import PendingEntry, SendQueue
from pybroker.client.transactions.transaction import Publishing
from pybroker.wire import pulsar_api_pb2 as pb

# SEND_ERRORs after which the same entry may be accepted; any other is the entry's answer.
_WORTH_RESENDING: Final = (
    errors.MetadataError,
    errors.PersistenceError,
    errors.ServiceNotReady,
    errors.TooManyRequests,
)


class TopicProducer:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        options: ProducerOptions,
        room_freed: Callable[[int], None],
        buckets: EntryBuckets | None = None,
    ) -> None:
        """`room_freed` is called with the number of messages that were answered; `buckets` are
        those of a segment of a scalable topic.
        """
        self.topic = topic
        self.last_sequence_id = -1
        self._cluster = cluster
        self._options = options
        self._partition = TopicName.parse(topic).partition
        self._id = next(cluster.ids)
        self._epoch = 0
        # For exclusive access: a producer admitted meanwhile has a higher one, and keeps the topic.
        self._topic_epoch: int | None = None
        self._attachment = Attachment(cluster, topic, self)
        self._writer = EntryWriter(
            self._id, options.producer_name or "", options.compression_type, cluster.clock
        )
        self._queue = SendQueue(
            topic,
            options.send_timeout_millis,
            finished=lambda entry: self._room.free(entry.message_count),
        )
        self._packer = Packer(topic, self._writer, options, self._send_entry, self._refuse, buckets)
        self._room = Room(topic, options, room_freed)
        self._failure: Exception | None = None
        # Transactions that the topic is about to join, with the number of waiting messages.
        self._joining: dict[Publishing, int] = {}

    # --- for the application ----------------------------------------------------------------

    async def open(self) -> None:
        # These detect a missing library or key now, not at the first send.
        codec(self._options.compression_type)
        if (names := self._options.encryption_key) is not None:
            names = (names,) if isinstance(names, str) else names
            self._packer.encryption = Encryption(self._options.crypto_key_reader, names)
        await self._attachment.open(self._patience_s)

    @property
    def _patience_s(self) -> float | None:
        """None: a producer waiting for exclusive access waits until the others have closed."""
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
        return self._packer.has_open_batch

    def submit(self, message: Outgoing, txn: Publishing | None, done: Done) -> None:
        """Accepts the message; `done` is called once, immediately if it is refused."""
        if tracing.spans is not None:
            txn_id = None if txn is None else txn.txn_id
            message, done = tracing.spans.publish(self.topic, message, txn_id, done)
        self._take(1, txn, done, self._packer.message, message)

    def submit_batch(self, batch: EncodedBatch, txn: Publishing | None, done: Done) -> None:
        """Like `submit`, for an encoded batch: one entry, or several if it is too large for one.
        `done` gets the first message's id, or the failure of any of them."""
        if tracing.spans is not None:
            txn_id, count = None if txn is None else txn.txn_id, batch.message_count
            done = tracing.spans.publish_batch(self.topic, count, txn_id, done)
        self._take(batch.message_count, txn, done, self._packer.batch, batch)

    def _take(
        self, count: int, txn: Publishing | None, done: Done, encode: Encode[T], content: T
    ) -> None:
        refusal = self._room.take(count)
        if refusal is not None:
            if txn is not None:
                txn.refused(refusal)
            self._refuse(count, refusal, done)
        elif txn is None:
            self._packer.accept(count, None, done, encode, content)
        else:
            self._publish_in(txn, count, done, encode, content)

    def _publish_in(
        self, txn: Publishing, count: int, done: Done, encode: Encode[T], content: T
    ) -> None:
        """Accepts `content` once the topic has joined `txn`."""
        txn_id = txn.txn_id
        self._joining[txn] = self._joining.get(txn, 0) + 1

        def joined(error: Exception | None, done: Done) -> None:
            self._joining[txn] -= 1
            if not self._joining[txn]:
                del self._joining[txn]
            if error is None:
                self._packer.accept(count, txn_id, done, encode, content)
            else:
                self._refuse(count, error, done)

        txn.publish(self, done, joined)

    async def space(self) -> None:
        """Returns when there is room for another message, first come, first served."""
        await self._room.space()

    async def flush(self) -> None:
        """Returns when everything accepted so far is answered; raises the first failure.

        This includes messages that wait for their topic to join a transaction.
        """
        joining = [txn.joined(self.topic) for txn in self._joining]
        refusals = await asyncio.gather(*joining, return_exceptions=True)
        self._packer.unsent = None
        self._packer.flush()
        for failure in (*refusals, self._packer.unsent, await self._queue.all_answered()):
            if failure is not None:
                raise failure

    async def close(self) -> None:
        try:
            if self._failure is None and self.is_connected:
                # The sender of each message gets the error.
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
        """None: each message has its own deadline."""
        return None if self._options.send_timeout_millis > 0 else self._cluster.timeout_s

    def _close(self) -> Connection | None:
        """Returns the connection on which to send the close command, if there is one."""
        self._end(AlreadyClosed(f"The producer of {self.topic} is closed"))
        return self._attachment.close()

    # --- Attachment's member ----------------------------------------------------------------

    async def register(self, connection: Connection) -> None:
        session = self._cluster.session
        if session is not None:
            session.require_of(connection)
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
        if session is not None:
            session.told_producer(answer)
        self._writer.producer_name = answer.producer_name
        self._writer.schema_version = answer.schema_version
        self._packer.limit(connection.max_message_bytes)
        if self._packer.next_sequence_id is None:
            self.last_sequence_id = answer.last_sequence_id
            self._packer.next_sequence_id = answer.last_sequence_id + 1
        self._queue.write_all(connection)

    def _introduction(self) -> pb.CommandProducer:
        session, properties = self._cluster.session, self._options.properties
        return pb.CommandProducer(
            topic=self.topic,
            producer_id=self._id,
            producer_name=self.producer_name or None,
            user_provided_producer_name=self._options.producer_name is not None,
            metadata=key_values(session.with_properties(properties) if session else properties),
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
        self._room.close(self._failure)
        self._packer.close(self._failure)
        self._queue.close(error)

    # --- entries ----------------------------------------------------------------------------

    def flush_batch(self) -> None:
        self._packer.flush()

    def _send_entry(self, entry: PendingEntry, error: Exception | None) -> None:
        if error is None:
            self._queue.push(entry, self._attachment.connection)
        else:
            self._queue.finish(entry, None, error)

    def _refuse(self, count: int, error: Exception, done: Done) -> None:
        done(None, error)
        self._room.free(count)

    # --- answers ----------------------------------------------------------------------------

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        entry = self._queue.take(receipt.sequence_id)
        if entry is None:
            return  # It has already timed out here.
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
