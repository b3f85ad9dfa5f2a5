"""A consumer of one topic (or one partition) at its broker.

The broker may send as many messages as it has permits for; each message that the application
takes returns one, and half a queue of them is returned at a time. A new registration (a
*session*) starts with an empty queue and full permits: messages that the application had not taken
are sent again. Plain acknowledgements are sent together at the end of a turn of the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from pybroker.base.errors import ConsumerNotFound
from pybroker.base.names import TopicName
from pybroker.client.connection.attachment import Attachment
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import passing
from pybroker.client.consuming.acknowledger import Acknowledger
from pybroker.client.consuming.acks import EntryKey, Place
from pybroker.client.consuming.intake import Intake
from pybroker.client.consuming.passes import Passes
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.consuming.received import CorruptEntry
from pybroker.client.consuming.redelivery import Redeliveries
from pybroker.client.consuming.subscribing import Start, SubscriptionSpec, subscribe_command
from pybroker.client.consuming.transacted import Transacted
from pybroker.client.errors import (
    AlreadyClosed,
    ConnectError,
    MessageTooBig,
    PulsarException,
    Timeout,
    UnsupportedCompression,
    from_wire,
)
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import ConsumerOptions, ConsumerType
from pybroker.client.transactions.transaction import Transaction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_run import MessageRun

log = logging.getLogger("pybroker.client")

# Ids per command; brokers accept commands up to 1 MiB.
_REDELIVERED_TOGETHER: Final = 20_000


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
        self._permits_owed = 0
        self._start = spec.start
        self._seeking_on: Connection | None = None  # where a SEEK is in progress
        self._moved_on: Connection | None = None  # where one made the broker close the consumer
        self.reached_end = False  # of a terminated topic
        self._held: list[MessageRun] = []  # arrived during a seek: wanted if it fails
        options = spec.options
        self._acks = Acknowledger(self._id, self._attachment, options.batch_index_ack_enabled)
        keeps = cluster.transacts and spec.start is None and _is_in_order(options)
        self._intake = Intake(self, options, self._acks, keeps, cluster.max_message_bytes)
        self._passes = Passes(self, queue, self._intake)
        gets_all = not options.is_read_compacted and options.key_shared_policy is None
        self._transacted = Transacted(
            topic, spec.name, self._acks, self._passes, self._connected, gets_all
        )
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
            self._intake.left_out = self._start.left_out
            self._intake.amid_chunks = self._start.amid_chunks_from is not None
        epoch, moved = self._intake.epoch, self._moved_on is not None
        command = subscribe_command(self._spec, self.topic, self._id, self._start, epoch)
        connection.consumers[self._id] = self
        is_open = False
        try:
            await connection.request(command, self._cluster.timeout_s)
            is_open = True
            await self._seek_again(connection)
            await self._find_start(connection)
        except BaseException as error:
            connection.consumers.pop(self._id, None)
            if is_open or isinstance(error, Timeout | asyncio.CancelledError):
                self.leave(connection)
            raise
        self._passes.begin(self._intake.session + 1, moved)
        self._intake.seeking = False
        self._held.clear()
        self._permits_owed = 0
        self._begin_again()
        if self._start is not None:
            self._acks.forget_chunked()
        self._acks.send_over(connection)
        if self._intake.epoch != epoch:  # raised meanwhile: what the broker sends is out of date
            self._request_again(connection)
        connection.post(pb.CommandFlow(consumer_id=self._id, messagePermits=self._queue_size))

    async def _seek_again(self, connection: Connection) -> None:
        """Repeats a seek to a time, because a non-durable cursor is lost with its consumer; unless
        the seek itself made the broker close the consumer, as it does in Apache Pulsar."""
        start, moved_on, self._moved_on = self._start, self._moved_on, None
        if start is None or start.publish_time_ms is None or connection is moved_on:
            return
        command = pb.CommandSeek(consumer_id=self._id, message_publish_time=start.publish_time_ms)
        await self._request_seek(connection, command)

    async def _find_start(self, connection: Connection) -> None:
        """Resolves `latest` to a position now, so that a reconnection begins there, and not at a
        later message. If the broker does not report the position, `latest` is sent again."""
        if self._start is None or self._start.message_id != MessageId.latest:
            return
        request = pb.CommandGetLastMessageId(consumer_id=self._id)
        try:
            answer = await connection.request(request, self._cluster.timeout_s)
        except PulsarException as error:
            if passing(error):
                raise
            return
        reached = MessageId.from_wire(answer.consumer_mark_delete_position)
        if reached.ledger_id() >= 0 and answer.HasField("consumer_mark_delete_position"):
            first = MessageId(self.partition, reached.ledger_id(), reached.entry_id() + 1)
            self._start = Start(first, inclusive=True)

    def leave(self, connection: Connection) -> None:
        connection.consumers.pop(self._id, None)
        if not connection.closed:
            connection.post(pb.CommandCloseConsumer(consumer_id=self._id, request_id=0))

    def detached(self) -> None:
        if self._seeking_on is not None and not self._seeking_on.closed:
            self._moved_on = self._seeking_on
        self._attachment.lost()

    def interrupted(self) -> None:
        self._held.clear()
        self._passes.drop_queued()

    def failed(self, error: Exception) -> None:
        self._end(error)
        self._queue.fail(error)

    def _end(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._begin_again()

    def _begin_again(self) -> None:
        """Unacknowledged messages are redelivered without a request."""
        self._intake.begin_again()
        self._acks.all_given_back()
        self._negative.clear()
        if self._unacked is not None:
            self._unacked.clear()

    def _connection(self) -> Connection:
        """Raises the error that ended the consumer, or ConnectError while it is being reopened."""
        self._refuse_if_ended()
        connection = self._attachment.connection
        if connection is None or connection.closed:
            raise self._being_reconnected()
        return connection

    def _being_reconnected(self) -> ConnectError:
        return ConnectError(f"The consumer of {self.topic} is being reconnected: try again")

    def _refuse_if_ended(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- receiving --------------------------------------------------------------------------

    def on_messages(self, run: MessageRun) -> None:
        if self._intake.seeking:
            self._held.append(run)
        else:
            self._take_in(run)

    def _take_in(self, run: MessageRun) -> None:
        try:
            messages = self._intake.messages_of(run)
        except (UnsupportedCompression, MessageTooBig) as error:
            # After that the broker gives the messages to a consumer that can take them.
            if (connection := self._attachment.close()) is not None:
                self.leave(connection)
            self.failed(error)
            return
        if messages and self._start is not None and self._start.is_vague:
            # From now on a new session knows where to start.
            first = messages[0]
            begun = self._acks.begun_before(first.entry.first_chunk or first.entry.key)
            self._start = Start(first.message_id(), inclusive=True, amid_chunks_from=begun)
        self._queue.put(messages)

    def not_delivered(self, keys: Iterable[EntryKey]) -> None:
        """The entries stay unacknowledged, and are redelivered like any unacknowledged message."""
        if self._unacked is not None:
            for key in keys:
                self._unacked.add(key)

    def give_up(self, message: pb.CommandMessage, corruption: CorruptEntry) -> None:
        log.error(
            "Dropped entry %d:%d of %s: %s",
            message.message_id.ledgerId,
            message.message_id.entryId,
            self.topic,
            corruption,
        )
        place = message.message_id
        others = [
            pb.MessageIdData(ledgerId=key[0], entryId=key[1])
            for key in self._acks.entries_of((place.ledgerId, place.entryId))
            if key != (place.ledgerId, place.entryId)  # its other chunks
        ]
        self._connection().post(
            pb.CommandAck(
                consumer_id=self._id,
                ack_type=pb.CommandAck.Individual,
                message_id=[*others, place],
                validation_error=corruption.validation_error,  # type: ignore[arg-type]
            )
        )

    def holds(self, message: Message) -> bool:
        """False if it will be delivered again, because it came in an earlier pass."""
        return message.entry.given is self._intake.given

    def takes_back(self, message: Message) -> bool:
        """Whether `holds`; otherwise returns the permit of a message that nobody got."""
        if self.holds(message):
            return True
        if message.entry.given.session == self._intake.session:
            self.owe_permits(1)
        return False

    def on_taken(self, messages: Sequence[Message]) -> None:
        """The application has taken these. A reader's cursor follows, so that its statistics show
        what is unread."""
        session = self._intake.session
        current = [message for message in messages if message.entry.given.session == session]
        if not current:
            return
        self.owe_permits(len(current))
        if self._start is not None:
            begun = self._acks.begun_before(current[-1].place[:2])
            self._start = Start(current[-1].message_id(), amid_chunks_from=begun)
            self._acks.add_cumulative(current[-1].place)
        if self._unacked is not None:
            for message in current:
                self._unacked.add(message.entry.key)

    def owe_permits(self, count: int) -> None:
        self._permits_owed += count
        if self._permits_owed >= max(self._queue_size // 2, 1):
            connection = self._attachment.connection
            if connection is not None and not connection.closed:
                connection.post(
                    pb.CommandFlow(consumer_id=self._id, messagePermits=self._permits_owed)
                )
                self._permits_owed = 0

    # --- acknowledging ----------------------------------------------------------------------

    def acknowledge(self, places: Sequence[Place]) -> None:
        self._refuse_if_ended()
        done = self._acks.add(places)
        self._passes.acknowledged(places)
        if self._unacked is not None:
            for key in done:
                self._unacked.remove(key)

    def send_acknowledgements(self) -> None:
        """Sends them now, instead of at the end of this turn."""
        self._acks.flush()

    def acknowledge_cumulative(self, place: Place) -> None:
        self._refuse_if_ended()
        self._acks.add_cumulative(place)
        self._passes.acknowledged_up_to(place)
        if self._unacked is not None:
            self._unacked.remove_up_to(place[:2])

    def refuse_amid_chunks(self, place: Place) -> None:
        """In a transaction, chunks of a later message cannot be excluded. Raises NotAllowed."""
        self._acks.refuse_amid_chunks(place[:2])

    async def acknowledge_in(
        self, txn: Transaction, messages: Sequence[Message | MessageId]
    ) -> None:
        """Durable when this returns; takes effect when `txn` commits."""
        await self._transacted.acknowledge(txn, messages)
        if self._unacked is not None:
            for message in messages:
                self._unacked.remove(message.place[:2])

    async def acknowledge_cumulative_in(
        self, txn: Transaction, message: Message | MessageId
    ) -> None:
        """Durable when this returns; takes effect when `txn` commits."""
        await self._transacted.acknowledge_up_to(txn, message)
        if self._unacked is not None:
            self._unacked.remove_up_to(message.place[:2])

    # --- delivering again -------------------------------------------------------------------

    def negative_acknowledge(self, place: Place) -> None:
        key = place[:2]
        if self._unacked is not None:
            self._unacked.remove(key)
        self._negative.add(key)

    def _redeliver(self, keys: list[EntryKey]) -> None:
        if _is_in_order(self._spec.options):
            # A single message would come out of order.
            self.redeliver_unacknowledged()
            return
        connection = self._attachment.connection
        if connection is not None and not connection.closed:
            self._acks.given_back(keys)
            ids = [
                pb.MessageIdData(ledgerId=ledger, entryId=entry)
                for key in keys
                for ledger, entry in self._acks.entries_of(key)
            ]
            for start in range(0, len(ids), _REDELIVERED_TOGETHER):
                some = ids[start : start + _REDELIVERED_TOGETHER]
                connection.post(
                    pb.CommandRedeliverUnacknowledgedMessages(
                        consumer_id=self._id, message_ids=some
                    )
                )

    def redeliver_unacknowledged(self) -> None:
        """Requests everything again, in order: messages in flight are ignored. Without a connection
        the next SUBSCRIBE is the request, because its epoch is higher.

        Differs: Apache Pulsar's clients count epochs only on Exclusive and Failover.
        """
        self._intake.epoch += 1
        connection = self._attachment.connection
        if connection is None or connection.closed:
            return
        self._acks.flush()
        self._begin_again()
        self._request_again(connection)
        self.owe_permits(self._passes.begin(self._intake.session))

    def _request_again(self, connection: Connection) -> None:
        connection.post(
            pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=self._id, consumer_epoch=self._intake.epoch
            )
        )

    # --- positions --------------------------------------------------------------------------

    async def seek(self, target: MessageId | int) -> None:
        """Seeks past a message (or to it, if the start is inclusive), or to a publish time."""
        connection, session, before = self._connection(), self._intake.session, self._start
        command = pb.CommandSeek(consumer_id=self._id)
        if isinstance(target, MessageId):
            start = Start(target, self._spec.options.start_message_id_inclusive)
            place, left_out = start.seek()
            command.message_id.CopyFrom(place)
        else:
            command.message_publish_time = target
            start, left_out = Start(MessageId.earliest, publish_time_ms=target), None
        intake = self._intake
        places = intake.left_out, intake.amid_chunks, intake.incomplete
        # Earlier acknowledgements must not apply to messages after the new position.
        self._acks.flush()
        intake.left_out, intake.amid_chunks, intake.incomplete = left_out, False, None
        if self._start is not None:
            self._start = start
        try:
            await self._request_seek(connection, command)
        except BaseException:
            if self._start is start:
                self._start = before
            if session == self._intake.session:
                intake.left_out, intake.amid_chunks, intake.incomplete = places
                self._take_in_held()
            raise
        if session == self._intake.session:
            self.owe_permits(self._passes.begin(session, moved=True))

    async def _request_seek(self, connection: Connection, command: pb.CommandSeek) -> None:
        self._intake.seeking, self._seeking_on = True, connection
        try:
            await connection.request(command, self._cluster.timeout_s)
            self._take_in_held()  # they are stale: their permits are returned
        finally:
            self._intake.seeking, self._seeking_on = False, None

    def _take_in_held(self) -> None:
        held, self._held = self._held, []
        for run in held:
            self._take_in(run)

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """The topic's last message and the subscription's mark-delete position, if reported."""
        request = pb.CommandGetLastMessageId(consumer_id=self._id)
        answer = await self._asked(request, "The last message")
        last = MessageId.from_wire(answer.last_message_id, self.topic, self.partition)
        if not answer.HasField("consumer_mark_delete_position"):
            return last, None
        return last, MessageId.from_wire(answer.consumer_mark_delete_position)

    async def backlog(self) -> int:
        """Entries that the subscription has not acknowledged."""
        answer = await self._asked(pb.CommandConsumerStats(consumer_id=self._id), "The backlog")
        return int(answer.msgBacklog)

    async def _asked(self, request: Any, what: str) -> Any:
        async def ask(connection: Connection) -> Any:
            answer = await connection.request(request, self._cluster.timeout_s)
            if isinstance(answer, pb.CommandConsumerStatsResponse):
                _check_stats(answer)
            return answer

        return await self._connected(ask, what)

    async def _connected(self, ask: Callable[[Connection], Awaitable[Any]], what: str) -> Any:
        """Waits for a connection; asks again after transient errors."""

        async def attempt() -> Any:
            try:
                return await ask(self._connection())
            except ConsumerNotFound as error:  # the broker has closed it, and is about to say so
                raise self._being_reconnected() from error

        return await self._cluster.patiently(attempt, f"{what} of {self.topic}")

    async def has_more(self) -> bool:
        """Whether the topic holds a message after the last one taken. If the last entries are
        chunks of an incomplete message, everything before them was taken or is in the queue."""
        last, mark_delete = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        incomplete = None if self._start is None else self._intake.incomplete
        if incomplete is not None and last.order_key[:2] <= incomplete:
            return False
        known = None if self._start is None else self._start.left_out
        if known is not None:
            return last.order_key > known
        return mark_delete is None or last.order_key[:2] > mark_delete.order_key[:2]

    # --- closing ----------------------------------------------------------------------------

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


def _is_in_order(options: ConsumerOptions) -> bool:
    return options.consumer_type in (ConsumerType.Exclusive, ConsumerType.Failover)


def _check_stats(answer: pb.CommandConsumerStatsResponse) -> None:
    """This response has its own names for the error fields."""
    if answer.HasField("error_code"):
        raise from_wire(answer.error_code, answer.error_message)
