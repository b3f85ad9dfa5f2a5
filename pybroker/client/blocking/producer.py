"""The blocking producer."""

from typing import Any

from pybroker.base.runtime import Clock
from pybroker.client.blocking.loop_thread import LoopThread, Space
from pybroker.client.blocking.opened import Opened
from pybroker.client.blocking.transaction import Transaction, core_of
from pybroker.client.messages import MessageId
from pybroker.client.producing import producer
from pybroker.client.producing.batching import EncodedBatch
from pybroker.client.producing.producer import SendCallback, outgoing


class Producer(Opened[producer.Producer]):
    """Created by Client.create_producer. `close` sends the open batch and waits for its receipt, if
    there is a connection.
    """

    def __init__(
        self,
        thread: LoopThread,
        core: producer.Producer,
        clock: Clock,
        space: Space | None,
    ) -> None:
        super().__init__(thread, core)
        self._clock = clock
        self._space = space
        if space is not None:
            core.room_freed = space.give_back

    def producer_name(self) -> str:
        return self._core.producer_name()

    def last_sequence_id(self) -> int:
        """The highest sequence id that the broker has confirmed; -1 if none."""
        return self._core.last_sequence_id()

    def send(
        self,
        content: bytes,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        *,
        txn: Transaction | None = None,
        **details: Any,
    ) -> MessageId:
        """Returns when the message is durable at the broker; in `txn` it is hidden until the
        commit.

        `details`: ordering_key, sequence_id, event_timestamp (ms),
        deliver_at (ms), deliver_after (timedelta).
        """
        message = outgoing(content, self._clock, properties, partition_key, **details)
        self._thread.refuse_on_own_thread()
        self._take_room(1)
        return self._thread.call(self._core.send_message(message, core_of(txn)))

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
        self._thread.post(self._core.submit, message, core_of(txn), self._core.done_with(callback))

    def send_batch(
        self,
        batch: EncodedBatch,
        *,
        txn: Transaction | None = None,
        partition: int | None = None,
    ) -> MessageId:
        """Publishes an `encode_batch` result as one entry; returns the id of its first message.

        A batch too large for one entry at this broker is split into several. Outside a transaction
        some of them may be stored even though this raises.
        """
        self._thread.refuse_on_own_thread()
        self._take_room(batch.message_count)
        return self._thread.call(
            self._core.send_batch(batch, txn=core_of(txn), partition=partition)
        )

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
        self._thread.post(
            self._core.submit_batch,
            batch,
            core_of(txn),
            self._core.done_with(callback),
            partition,
        )

    def _take_room(self, count: int) -> None:
        """Waits for room with block_if_queue_full; otherwise the core refuses the excess."""
        if self._space is None:
            return
        if self._thread.is_current:
            self._space.take_now(count)
        else:
            self._space.take(count)

    def flush(self) -> None:
        """Returns when everything sent so far is answered. Raises the first failure of a message
        that was sent without a callback since the last flush, or was unanswered at this call."""
        self._thread.call(self._core.flush())
