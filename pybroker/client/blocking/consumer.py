"""The blocking consumer and reader. Taking queued messages costs no round trip to the loop."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pybroker.client import tracing
from pybroker.client.blocking.handover import Handover
from pybroker.client.blocking.loop_thread import LoopThread
from pybroker.client.blocking.opened import C, Opened, T
from pybroker.client.blocking.transaction import Transaction
from pybroker.client.consuming import consumer, reader
from pybroker.client.consuming.consumer import Acknowledgeable
from pybroker.client.errors import ClientError
from pybroker.client.messages import Message, MessageId


class Receiving(Opened[C]):
    """What consumers and readers share: `core` gets its messages from `receiver`."""

    def __init__(self, thread: LoopThread, core: C, receiver: consumer.Consumer) -> None:
        super().__init__(thread, core)
        self._handover = Handover(receiver)
        self._queue = self._handover.queue
        thread.ends(self._queue)
        self._is_prompt = receiver.is_prompt

    def _receive(self, timeout_millis: int | None) -> Message:
        queue = self._queue
        message = queue.take()
        if message is None:
            self._thread.refuse_to_wait()
            message = queue.take_within(None if timeout_millis is None else timeout_millis / 1000)
        if len(queue.taken) >= queue.half and not queue.telling:
            queue.telling = queue.awaited = True
            self._thread.post(self._handover.settle)
            if not self._thread.is_current:
                queue.wait_until_told()
        elif self._is_prompt:
            self._tell()
        if tracing.spans is not None:
            tracing.spans.received(message)
        return message

    def _tell(self) -> None:
        handover = self._handover
        if not handover.watched:
            handover.watched = True
            self._thread.post(handover.watch)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` once everything taken and acknowledged so far has been settled."""
        try:
            self._thread.post(self._handover.settle)
        except ClientError:
            work.close()
            raise
        return self._thread.call(work)


class Consumer(Receiving[consumer.Consumer]):
    """Created by Client.subscribe."""

    def __init__(self, thread: LoopThread, core: consumer.Consumer) -> None:
        super().__init__(thread, core, core)
        # The last receiver found to belong to this consumer.
        self._known_receiver: object = None

    def subscription_name(self) -> str:
        return self._core.subscription_name()

    def consumer_name(self) -> str:
        return self._core.consumer_name()

    def receive(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        return self._receive(timeout_millis)

    def batch_receive(self) -> list[Message]:
        """Returns messages up to the batch_receive_policy's limits; empty if none came in time."""
        return self._call(self._core.batch_receive())

    def acknowledge(
        self,
        message: Acknowledgeable | Sequence[Acknowledgeable],
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledges one message or several.

        Without a transaction this does not wait for the broker. In one it does, and raises
        TransactionConflict if the message was already acknowledged, with or without a transaction.
        """
        if txn is None:
            self._acknowledge(message)
        else:
            self._call(self._core.acknowledge(message, txn.core))

    def _acknowledge(self, message: Acknowledgeable | Sequence[Acknowledgeable]) -> None:
        if self._queue.failure is not None:
            raise self._queue.failure
        if isinstance(message, Message):
            receiver = message.entry.receiver
            if receiver is not self._known_receiver:
                self._core.refuse_unknown(message)
                self._known_receiver = receiver
            self._handover.acknowledged.append(message)
        else:
            messages = (message,) if isinstance(message, MessageId) else message
            for each in messages:
                self._core.refuse_unknown(each)
            self._handover.acknowledged.extend(messages)
        self._tell()

    def acknowledge_cumulative(
        self, message: Acknowledgeable, txn: Transaction | None = None
    ) -> None:
        """Acknowledges everything of the message's topic or partition up to and including it.
        Raises NotAllowed on Shared and Key_Shared; in a transaction also for a message between the
        chunks of another, because it would acknowledge the first of those chunks.

        After an abort, acknowledge the same messages again, or request redelivery: they do not come
        again by themselves. Raises TransactionConflict if some of them came twice, and a
        transaction has consumed them as they were delivered the other time.
        """
        if txn is None:
            self._core.refuse_cumulative()
            self._post(self._core.acknowledge_cumulative_now, message)
        else:
            self._call(self._core.acknowledge_cumulative(message, txn.core))

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Requests redelivery after negative_ack_redelivery_delay_ms."""
        self._post(self._core.negative_acknowledge, message)

    def _post(self, function: Callable[[Any], None], message: Any) -> None:
        self._core.refuse_if_ended()
        self._core.refuse_unknown(message)
        self._thread.post(self._handover.settle)
        self._thread.post(function, message)

    def redeliver_unacknowledged_messages(self) -> None:
        self._call(_soon(self._core.redeliver_unacknowledged_messages))

    def seek(self, messageid: MessageId | int) -> None:
        """Seeks past a message (its topic or partition only) or to a publish time in ms."""
        self._call(self._core.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """For a single topic only: several topics have no common order."""
        return self._call(self._core.get_last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """One id for each topic or partition; entry id -1 if it has no message."""
        return self._call(self._core.get_last_message_ids())

    def get_mark_delete_position(self) -> MessageId:
        """Everything up to and including this entry is acknowledged. For a single topic only."""
        return self._call(self._core.get_mark_delete_position())

    def get_backlog(self) -> int:
        """Entries that the subscription has not acknowledged."""
        return self._call(self._core.get_backlog())

    def unsubscribe(self) -> None:
        """Deletes the subscription and closes the consumer."""
        self._call(self._core.unsubscribe())


async def _soon(function: Any) -> None:
    function()


class Reader(Receiving[reader.Reader]):
    """Created by Client.create_reader."""

    def __init__(self, thread: LoopThread, core: reader.Reader) -> None:
        super().__init__(thread, core, core.consumer)

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Waits for the next message. Raises Timeout."""
        return self._receive(timeout_millis)

    def batch_read(self, max_messages: int, timeout_millis: int | None = None) -> list[Message]:
        """Waits for a message, then returns all that are queued; empty if none came in time."""
        return self._call(self._core.batch_read(max_messages, timeout_millis))

    def has_message_available(self) -> bool:
        """False after the last message that can be delivered now."""
        return self._call(self._core.has_message_available())

    def get_last_message_id(self) -> MessageId:
        """Entry id -1 if the topic has no message."""
        return self._call(self._core.get_last_message_id())

    def get_backlog(self) -> int:
        """The number of entries that have not been read yet."""
        return self._call(self._core.get_backlog())

    def seek(self, messageid: MessageId | int) -> None:
        self._call(self._core.seek(messageid))
