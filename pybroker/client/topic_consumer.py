"""A consumer of one topic (or one partition) at its broker.

The broker may send as many messages as it has permits for; each message that the application
takes gives one back, and half a queue of them is returned at a time. A new registration (a
*session*) starts with an empty queue and full permits: what the application had not taken comes
again. Plain acknowledgements leave together at the end of a turn of the event loop.
"""

import asyncio
import logging
from collections.abc import Sequence

from pybroker.client.acknowledger import Acknowledger
from pybroker.client.acks import EntryKey, all_bits
from pybroker.client.attachment import Attachment
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import (
    AlreadyClosed,
    ConnectError,
    Timeout,
    UnsupportedCompression,
)
from pybroker.client.messages import Message, MessageId, OrderKey, ReceivedEntry
from pybroker.client.options import ConsumerType
from pybroker.client.receive_queue import ReceiveQueue
from pybroker.client.received import (
    CorruptEntry,
    checked_metadata,
    decompressed_payload,
    messages_in,
    unacked_indexes,
)
from pybroker.client.redelivery import Redeliveries
from pybroker.client.subscribing import Start, SubscriptionSpec, subscribe_command
from pybroker.client.transaction import Transaction
from pybroker.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

log = logging.getLogger("pybroker.client")


class TopicConsumer:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        spec: SubscriptionSpec,
        queue: ReceiveQueue,
        queue_size: int,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._spec = spec
        self._queue = queue
        self._queue_size = queue_size
        self.partition = TopicName.parse(topic).partition
        self._id = next(cluster.ids)
        self._attachment = Attachment(cluster, topic, self)
        self._session = 0
        self._permits_owed = 0
        # Counts redeliveries of everything, so that what was under way before can be told apart.
        self._epoch = 0
        self._seeking = False
        self._start = spec.start
        # Of the first entry that will arrive, what lies before the start.
        self._left_out: OrderKey | None = None
        options = spec.options
        self._acks = Acknowledger(self._id, self._attachment, options.batch_index_ack_enabled)
        self._negative = Redeliveries(options.negative_ack_redelivery_delay_ms, self._redeliver)
        self._unacked: Redeliveries | None = None
        if options.unacked_messages_timeout_ms:
            self._unacked = Redeliveries(options.unacked_messages_timeout_ms, self._redeliver)
        self._failure: Exception | None = None

    async def open(self) -> None:
        await self._attachment.open(self._cluster.timeout_s)

    @property
    def is_connected(self) -> bool:
        return self._attachment.connection is not None

    # --- Attachment's member ----------------------------------------------------------------

    async def register(self, connection: Connection) -> None:
        if self._start is not None:
            self._left_out = self._start.left_out
        command = subscribe_command(self._spec, self.topic, self._id, self._start, self._epoch)
        connection.consumers[self._id] = self
        try:
            await connection.request(command, self._cluster.timeout_s)
        except BaseException as error:
            connection.consumers.pop(self._id, None)
            if isinstance(error, Timeout | asyncio.CancelledError) and not connection.closed:
                connection.post(pb.CommandCloseConsumer(consumer_id=self._id, request_id=0))
            raise
        self._session += 1
        self._seeking = False
        self._permits_owed = 0
        self._queue.discard(self)
        self._acks.send_over(connection)
        connection.post(pb.CommandFlow(consumer_id=self._id, messagePermits=self._queue_size))

    def detached(self) -> None:
        self._attachment.lost()

    def interrupted(self) -> None:
        self._queue.discard(self)

    def failed(self, error: Exception) -> None:
        self._end(error)
        self._queue.fail(error)

    def _end(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._negative.clear()
        if self._unacked is not None:
            self._unacked.clear()

    def _connection(self) -> Connection:
        """Raises what ended the consumer, or ConnectError while it is being reopened."""
        self._refuse_if_ended()
        connection = self._attachment.connection
        if connection is None or connection.closed:
            raise ConnectError(f"The consumer of {self.topic} is being reconnected: try again")
        return connection

    def _refuse_if_ended(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- receiving --------------------------------------------------------------------------

    def on_message(self, message: pb.CommandMessage, entry: bytes) -> None:
        try:
            metadata = checked_metadata(entry)
            batched = metadata.HasField("num_messages_in_batch")
            received = ReceivedEntry(
                self.topic,
                self.partition,
                message.message_id.ledgerId,
                message.message_id.entryId,
                metadata.num_messages_in_batch if batched else 0,
                message.redelivery_count,
                metadata,
                self,
                self._session,
            )
            wanted = [] if self._is_stale(message) else self._wanted(received, message, entry)
        except CorruptEntry as corruption:
            self._give_up(message, corruption)
            return
        except UnsupportedCompression as error:
            self._leave()
            self.failed(error)
            return
        self._owe_permits(max(received.batch_size, 1) - len(wanted))
        self._queue.put(wanted)

    def _is_stale(self, message: pb.CommandMessage) -> bool:
        """Sent before a seek or a redelivery of everything, which will bring it again."""
        old = message.HasField("consumer_epoch") and message.consumer_epoch < self._epoch
        return self._seeking or old

    def _wanted(
        self, received: ReceivedEntry, message: pb.CommandMessage, entry: bytes
    ) -> list[Message]:
        unacked = unacked_indexes(message, received.batch_size) & ~self._before_start(received)
        if received.batch_size:
            key = (received.ledger_id, received.entry_id)
            self._acks.delivered(key, unacked, received.batch_size)
        if not unacked:
            return []
        payload = decompressed_payload(received.metadata, entry)
        messages = list(messages_in(received, payload, unacked))
        if messages and self._start is not None and self._start.message_id == MessageId.latest:
            # From here on a new session can say where it was.
            self._start = Start(messages[0].message_id(), inclusive=True)
        return messages

    def _before_start(self, received: ReceivedEntry) -> int:
        """What of the entry lies before the start, as bits."""
        left_out, self._left_out = self._left_out, None
        if left_out is None or left_out[:2] != (received.ledger_id, received.entry_id):
            return 0
        return all_bits(max(0, min(left_out[2] + 1, received.batch_size or 1)))

    def _leave(self) -> None:
        """So that the broker gives the messages to a consumer that can read them."""
        connection = self._attachment.close()
        if connection is not None and not connection.closed:
            connection.consumers.pop(self._id, None)
            connection.post(pb.CommandCloseConsumer(consumer_id=self._id, request_id=0))

    def _give_up(self, message: pb.CommandMessage, corruption: CorruptEntry) -> None:
        log.error(
            "Dropped entry %d:%d of %s: %s",
            message.message_id.ledgerId,
            message.message_id.entryId,
            self.topic,
            corruption,
        )
        self._connection().post(
            pb.CommandAck(
                consumer_id=self._id,
                ack_type=pb.CommandAck.Individual,
                message_id=[message.message_id],
                validation_error=corruption.validation_error,  # type: ignore[arg-type]
            )
        )
        self._owe_permits(1)

    def holds(self, message: Message) -> bool:
        """False for what will be delivered again, because it came in an earlier session."""
        return message.entry.session == self._session

    def taken(self, message: Message) -> None:
        """The application has the message now."""
        if not self.holds(message):
            return
        self._owe_permits(1)
        if self._start is not None:
            self._start = Start(message.message_id())
        if self._unacked is not None:
            self._unacked.add((message.entry.ledger_id, message.entry.entry_id))

    def _owe_permits(self, count: int) -> None:
        self._permits_owed += count
        if self._permits_owed >= max(self._queue_size // 2, 1):
            connection = self._attachment.connection
            if connection is not None and not connection.closed:
                connection.post(
                    pb.CommandFlow(consumer_id=self._id, messagePermits=self._permits_owed)
                )
                self._permits_owed = 0

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledge(self, message_ids: Sequence[MessageId]) -> None:
        self._refuse_if_ended()
        for message_id in message_ids:
            if self._acks.add(message_id) and self._unacked is not None:
                self._unacked.remove(message_id.order_key[:2])

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        self._refuse_if_ended()
        self._acks.add_cumulative(message_id)
        if self._unacked is not None:
            self._unacked.remove_up_to(message_id.order_key[:2])

    async def acknowledge_in(
        self, txn: Transaction, message_ids: Sequence[MessageId], cumulative: bool
    ) -> None:
        """Durable when this returns; takes effect when `txn` commits."""
        command = self._acks.in_transaction(txn.txn_id, message_ids, cumulative)

        async def send() -> None:
            await self._connection().request(command, self._cluster.timeout_s)

        await txn.acknowledge(self.topic, self._spec.name, send)
        if self._unacked is not None:
            for each in message_ids:
                self._unacked.remove(each.order_key[:2])

    # --- delivering again -------------------------------------------------------------------

    def negative_acknowledge(self, message_id: MessageId) -> None:
        key = message_id.order_key[:2]
        if self._unacked is not None:
            self._unacked.remove(key)
        self._negative.add(key)

    def _redeliver(self, keys: list[EntryKey]) -> None:
        if self._spec.options.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover):
            # One message alone would come out of order.
            self.redeliver_unacknowledged()
            return
        connection = self._attachment.connection
        if connection is not None and not connection.closed:
            ids = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in keys]
            connection.post(
                pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id, message_ids=ids)
            )

    def redeliver_unacknowledged(self) -> None:
        """All of it, in order. Without a connection there is no need to ask."""
        connection = self._attachment.connection
        if connection is None or connection.closed:
            return
        self._acks.flush()
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        if self._spec.options.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover):
            self._epoch += 1
            request.consumer_epoch = self._epoch
        connection.post(request)
        self._owe_permits(self._queue.discard(self))

    # --- positions --------------------------------------------------------------------------

    async def seek(self, target: MessageId | int) -> None:
        """To just behind a message (or to it, if the start is inclusive), or to a publish time."""
        connection, session, before = self._connection(), self._session, self._start
        command = pb.CommandSeek(consumer_id=self._id)
        if isinstance(target, MessageId):
            start = Start(target, self._spec.options.start_message_id_inclusive)
            place, left_out = start.seek()
            command.message_id.CopyFrom(place)
        else:
            command.message_publish_time = target
            start, left_out = Start(MessageId.earliest), None
        # What the application acknowledged before must not be taken for something behind it.
        self._acks.flush()
        self._left_out, self._seeking = left_out, True
        if self._start is not None:
            self._start = start
        try:
            await connection.request(command, self._cluster.timeout_s)
        except BaseException:
            self._left_out, self._start = None, before
            raise
        finally:
            self._seeking = False
        if session == self._session:
            self._owe_permits(self._queue.discard(self))

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The topic's last message and the subscription's mark-delete position, if it is told."""

        async def ask() -> pb.CommandGetLastMessageIdResponse:
            request = pb.CommandGetLastMessageId(consumer_id=self._id)
            answer: pb.CommandGetLastMessageIdResponse
            answer = await self._connection().request(request, self._cluster.timeout_s)
            return answer

        answer = await self._cluster.patiently(ask, f"The last message of {self.topic}")
        last = MessageId.from_wire(answer.last_message_id, self.topic, self.partition)
        if not answer.HasField("consumer_mark_delete_position"):
            return last, None
        return last, MessageId.from_wire(answer.consumer_mark_delete_position)

    async def has_more(self) -> bool:
        """Whether the topic holds a message behind the last one taken."""
        last, mark_delete = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        known = None if self._start is None else self._start.left_out
        if known is not None:
            return last.order_key > known
        return mark_delete is None or last.order_key[:2] > mark_delete.order_key[:2]

    # --- the end ----------------------------------------------------------------------------

    async def unsubscribe(self) -> None:
        request = pb.CommandUnsubscribe(consumer_id=self._id)
        await self._connection().request(request, self._cluster.timeout_s)
        await self.close()

    async def close(self) -> None:
        self._acks.flush()
        self._end(AlreadyClosed(f"The consumer of {self.topic} is closed"))
        self._queue.discard(self)
        connection = self._attachment.close()
        if connection is not None and not connection.closed:
            connection.consumers.pop(self._id, None)
            request = pb.CommandCloseConsumer(consumer_id=self._id)
            await connection.request(request, self._cluster.timeout_s)
