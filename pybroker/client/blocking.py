"""The client for threads: pybroker.client.aio, run on an event loop of the Client's own thread.

Every call that must wait for the broker waits here. What need not (send_async, plain
acknowledgements, messages that are in the queue already) costs no trip to the loop's thread.
Producers, consumers and transactions may be used from several threads. Callbacks of send_async
run on the loop's thread, so they must be quick and must not call what waits.
"""

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from pybroker.client import aio
from pybroker.client.batching import EncodedBatch
from pybroker.client.consumer import Acknowledgeable
from pybroker.client.errors import PulsarException
from pybroker.client.loop_thread import LoopThread, Space
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import ConsumerType
from pybroker.client.producer import SendCallback, as_done, outgoing
from pybroker.client.transaction import TxnState
from pybroker.names import TxnId
from pybroker.runtime import Clock, SystemClock


class Transaction:
    """`with client.new_transaction() as txn:` commits at the end, and aborts on an exception."""

    def __init__(self, thread: LoopThread, core: aio.Transaction) -> None:
        self._thread = thread
        self.core = core

    @property
    def txn_id(self) -> TxnId:
        """Picklable: another process may pass it to its client's attach_transaction."""
        return self.core.txn_id

    @property
    def state(self) -> TxnState:
        return self.core.state

    def commit(self) -> None:
        """Durable and visible when this returns.

        Raises TransactionAborted if an operation had failed, TransactionOutcomeUnknown if the
        broker did not answer in time, InvalidTxnStatus if the transaction was aborted meanwhile.
        """
        self._thread.call(self.core.commit())

    def abort(self) -> None:
        """Nothing of the transaction becomes visible; its acknowledgements are taken back."""
        self._thread.call(self.core.abort())

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.call(self.core.__aexit__(kind, error, traceback))


def _core(txn: Transaction | None) -> aio.Transaction | None:
    return None if txn is None else txn.core


class Producer:
    """Made by Client.create_producer."""

    def __init__(
        self,
        thread: LoopThread,
        core: aio.Producer,
        clock: Clock,
        space: Space | None,
    ) -> None:
        self._thread = thread
        self._core = core
        self._clock = clock
        self._space = space
        if space is not None:
            core.room_freed = space.give_back

    def topic(self) -> str:
        return self._core.topic()

    def producer_name(self) -> str:
        return self._core.producer_name()

    def last_sequence_id(self) -> int:
        """The highest that the broker has confirmed; -1 if it knows none."""
        return self._core.last_sequence_id()

    def is_connected(self) -> bool:
        return self._core.is_connected()

    def send(
        self,
        content: bytes,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        *,
        txn: Transaction | None = None,
        **details: Any,
    ) -> MessageId:
        """Returns when the broker has stored the message: durable, or in `txn` until that ends.

        `details`: ordering_key, sequence_id, event_timestamp (ms),
        deliver_at (ms), deliver_after (timedelta).
        """
        message = outgoing(content, self._clock, properties, partition_key, **details)
        self._take_room(1)
        return self._thread.call(self._core.send_message(message, _core(txn)))

    def send_async(
        self,
        content: bytes,
        callback: SendCallback | None = None,
        *,
        txn: Transaction | None = None,
        **details: Any,
    ) -> None:
        """Like `send`; the callback gets (Result.Ok, message_id) or (error, None)."""
        message = outgoing(content, self._clock, **details)
        self._take_room(1)
        self._thread.post(self._core.submit, message, _core(txn), as_done(callback))

    def send_batch(
        self,
        batch: EncodedBatch,
        *,
        txn: Transaction | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Publishes what `encode_batch` made as one entry; the id is that of its first message."""
        self._take_room(batch.message_count)
        return self._thread.call(self._core.send_batch(batch, txn=_core(txn), partition=partition))

    def send_batch_async(
        self,
        batch: EncodedBatch,
        callback: SendCallback | None = None,
        *,
        txn: Transaction | None = None,
        partition: int | None = None,
    ) -> None:
        """Like `send_batch`; the callback gets (Result.Ok, message_id) or (error, None), once."""
        self._take_room(batch.message_count)
        self._thread.post(self._core.submit_batch, batch, _core(txn), as_done(callback), partition)

    def _take_room(self, count: int) -> None:
        """Waits for it with block_if_queue_full; else the core refuses what is too much."""
        if self._space is not None:
            self._space.take(count)

    def flush(self) -> None:
        """Returns when everything sent so far is answered; raises the first failure."""
        self._thread.call(self._core.flush())

    def close(self) -> None:
        """Sends what is still in a batch and waits for its receipts, if there is a connection."""
        self._thread.call(self._core.close())

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Consumer:
    """Made by Client.subscribe."""

    def __init__(self, thread: LoopThread, core: aio.Consumer) -> None:
        self._thread = thread
        self._core = core

    def topic(self) -> str:
        return self._core.topic()

    def subscription_name(self) -> str:
        return self._core.subscription_name()

    def consumer_name(self) -> str:
        return self._core.consumer_name()

    def is_connected(self) -> bool:
        return self._core.is_connected()

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Raises Timeout."""
        message = self._core.poll()
        if message is None:
            return self._thread.call(self._core.receive(timeout_millis))
        self._thread.post(self._core.taken, message)
        return message

    def batch_receive(self) -> list[Message]:
        """Up to what the batch_receive_policy allows; empty if nothing came in its time."""
        return self._thread.call(self._core.batch_receive())

    def acknowledge(
        self,
        message: Acknowledgeable | Sequence[Acknowledgeable],
        txn: Transaction | None = None,
    ) -> None:
        """One message or several.

        Without a transaction this does not wait for the broker. In one it does, and raises
        TransactionConflict if another transaction, or nobody's, acknowledged the message before.
        """
        if txn is None:
            self._post(self._core.acknowledge_now, message)
        else:
            self._thread.call(self._core.acknowledge(message, txn.core))

    def acknowledge_cumulative(
        self, message: Acknowledgeable, txn: Transaction | None = None
    ) -> None:
        """Everything of the message's topic or partition up to and with it."""
        if txn is None:
            self._post(self._core.acknowledge_cumulative_now, message)
        else:
            self._thread.call(self._core.acknowledge_cumulative(message, txn.core))

    def negative_acknowledge(self, message: Acknowledgeable) -> None:
        """Delivered again after negative_ack_redelivery_delay_ms."""
        self._post(self._core.negative_acknowledge, message)

    def _post(self, function: Callable[[Any], None], message: Any) -> None:
        self._core.refuse_if_ended()
        self._thread.post(function, message)

    def redeliver_unacknowledged_messages(self) -> None:
        self._thread.call(_soon(self._core.redeliver_unacknowledged_messages))

    def seek(self, messageid: MessageId | int) -> None:
        """To behind a message (one topic or partition), or every one to a publish time in ms."""
        self._thread.call(self._core.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """Of a single topic: several have no order between them."""
        return self._thread.call(self._core.get_last_message_id())

    def get_last_message_ids(self) -> list[MessageId]:
        """One for each topic or partition; entry id -1 where there is no message."""
        return self._thread.call(self._core.get_last_message_ids())

    def get_mark_delete_position(self) -> MessageId:
        """Up to and with this entry all is acknowledged. Of a single topic."""
        return self._thread.call(self._core.get_mark_delete_position())

    def unsubscribe(self) -> None:
        """Deletes the subscription and closes the consumer."""
        self._thread.call(self._core.unsubscribe())

    def close(self) -> None:
        self._thread.call(self._core.close())

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _soon(function: Any) -> None:
    function()


class Reader:
    """Made by Client.create_reader."""

    def __init__(self, thread: LoopThread, core: aio.Reader) -> None:
        self._thread = thread
        self._core = core

    def topic(self) -> str:
        return self._core.topic()

    def is_connected(self) -> bool:
        return self._core.is_connected()

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it. Raises Timeout."""
        message = self._core.consumer.poll()
        if message is None:
            return self._thread.call(self._core.read_next(timeout_millis))
        self._thread.post(self._core.taken, message)
        return message

    def batch_read(self, max_messages: int, timeout_millis: int | None = None) -> list[Message]:
        """Waits for a message, then takes all that are here; empty if none came in time."""
        return self._thread.call(self._core.batch_read(max_messages, timeout_millis))

    def has_message_available(self) -> bool:
        """False at the last message that can be delivered now."""
        return self._thread.call(self._core.has_message_available())

    def seek(self, messageid: MessageId | int) -> None:
        self._thread.call(self._core.seek(messageid))

    def close(self) -> None:
        self._thread.call(self._core.close())

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Connections to one cluster, and what was made through them. One per process, not picklable.

    The arguments are those of pybroker.client.aio.Client.
    """

    def __init__(self, service_url: str, *arguments: Any, **options: Any) -> None:
        self._clock: Clock = options.get("clock") or SystemClock()
        self._thread = LoopThread("pybroker-client")
        try:
            self._core = aio.Client(service_url, *arguments, **options)
        except BaseException:
            self._thread.stop()
            raise

    def create_producer(
        self, topic: str, producer_name: str | None = None, **options: Any
    ) -> Producer:
        """`options` are the fields of ProducerOptions, as in the official client."""
        core = self._thread.call(self._core.create_producer(topic, producer_name, **options))
        space = None
        if options.get("block_if_queue_full"):
            space = Space(core.max_pending_messages)
        return Producer(self._thread, core, self._clock, space)

    def subscribe(
        self,
        topic: str | Sequence[str],
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        **options: Any,
    ) -> Consumer:
        """To a topic, or to all of a list. `options` are the fields of ConsumerOptions."""
        core = self._thread.call(
            self._core.subscribe(topic, subscription_name, consumer_type, **options)
        )
        return Consumer(self._thread, core)

    def create_reader(self, topic: str, start_message_id: MessageId, **options: Any) -> Reader:
        """Reads behind `start_message_id` (or from it, if inclusive), without a subscription."""
        core = self._thread.call(self._core.create_reader(topic, start_message_id, **options))
        return Reader(self._thread, core)

    def get_topic_partitions(self, topic: str) -> list[str]:
        """The partitions' names; the topic's own name if it has none."""
        return self._thread.call(self._core.get_topic_partitions(topic))

    def new_transaction(self, timeout_ms: int = 60_000) -> Transaction:
        """The broker aborts it if it has not ended `timeout_ms` from now."""
        return Transaction(self._thread, self._thread.call(self._core.new_transaction(timeout_ms)))

    def attach_transaction(self, txn_id: TxnId) -> Transaction:
        """Another process's transaction: see pybroker.client.aio."""
        return Transaction(self._thread, self._core.attach_transaction(txn_id))

    def close(self) -> None:
        """Closes every producer, consumer and reader first. Open transactions time out."""
        # It may be closed already, or belong to the process that this one was forked from.
        with contextlib.suppress(PulsarException):
            self._thread.call(self._core.close())
        self._thread.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Client cannot be pickled: create one where it is needed, and pass on the service "
            "URL, the TxnId of a transaction, or a MessageId"
        )
