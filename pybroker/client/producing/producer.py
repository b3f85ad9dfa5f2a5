"""What every producer offers to an application, whatever its topic is made of."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pybroker.base.runtime import Clock
from pybroker.client import tracing
from pybroker.client.closing import Closing
from pybroker.client.connection.cluster import Cluster
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerOptions, Result
from pybroker.client.producing.batching import EncodedBatch
from pybroker.client.transactions.transaction import Transaction

log = logging.getLogger("pybroker.client")

SendCallback = Callable[[Any, MessageId | None], object]


def outgoing(
    content: bytes,
    clock: Clock,
    properties: dict[str, str] | None = None,
    partition_key: str | None = None,
    ordering_key: str | bytes | None = None,
    sequence_id: int | None = None,
    event_timestamp: int | None = None,
    deliver_at: int | None = None,
    deliver_after: timedelta | None = None,
    partition_key_b64_encoded: bool = False,
    disable_replication: bool = False,
) -> Outgoing:
    """The message that these arguments of `send` describe; `deliver_at` is in ms since 1970."""
    if not isinstance(content, bytes):
        raise TypeError(f"Message content must be bytes, not {type(content).__name__}: encode it")
    if deliver_after is not None:
        deliver_at = clock.now_ms() + int(deliver_after.total_seconds() * 1000)
    if tracing.spans is not None:
        properties = tracing.spans.carried(properties)
    if isinstance(ordering_key, str):
        ordering_key = ordering_key.encode()
    return Outgoing(
        content,
        properties,
        partition_key,
        ordering_key,
        sequence_id,
        event_timestamp,
        deliver_at,
        False,
        partition_key_b64_encoded,
        disable_replication,
    )


def as_done(callback: SendCallback) -> Done:
    """`callback(Result.Ok, message_id)` or `callback(error, None)`; its exceptions are logged.

    The client calls it in the middle of its own work, which must continue.
    """

    def done(message_id: MessageId | None, error: Exception | None) -> None:
        try:
            callback(Result.Ok if error is None else error, message_id)
        except Exception:
            log.exception("A callback of send_async failed; its message is not affected")

    return done


def _ignore(*_: object) -> None:
    """Nobody waits for this."""


class Producer(Closing):
    """Created by Client.create_producer."""

    def __init__(self, cluster: Cluster, topic: str, options: ProducerOptions) -> None:
        """Raises InvalidConfiguration for chunking together with batching."""
        if options.chunking_enabled and options.batching_enabled:
            raise InvalidConfiguration(
                "chunking_enabled and batching_enabled are mutually exclusive"
            )
        self._topic = topic
        self._cluster = cluster
        self._options = options
        # Called with the number of messages that are no longer in flight, for the blocking client.
        self.room_freed: Callable[[int], None] = _ignore
        self._failure: Exception | None = None  # the first failure that was not reported yet

    def topic(self) -> str:
        return self._topic

    @property
    def max_pending_messages(self) -> int:
        return self._options.max_pending_messages

    async def send(
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
        clock = self._cluster.clock
        message = outgoing(content, clock, properties, partition_key, **details)
        return await self.send_message(message, txn)

    @abstractmethod
    async def send_message(self, message: Outgoing, txn: Transaction | None = None) -> MessageId:
        """The core of `send`."""

    def send_async(
        self,
        content: bytes,
        callback: SendCallback | None = None,
        *,
        txn: Transaction | None = None,
        **details: Any,
    ) -> None:
        """Like `send`; the callback gets (Result.Ok, message_id) or (error, None).

        It cannot wait: with block_if_queue_full it accepts messages without limit.
        """
        message = outgoing(content, self._cluster.clock, **details)
        self.submit(message, txn, self.done_with(callback))

    def done_with(self, callback: SendCallback | None) -> Done:
        """Without a callback, `flush` reports a failure."""
        return self._unheard if callback is None else as_done(callback)

    def _unheard(self, _: MessageId | None, error: Exception | None) -> None:
        self._failure = self._failure or error

    @abstractmethod
    def submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        """The core of `send_async`, for callers with many messages."""

    @abstractmethod
    async def send_batch(
        self, batch: EncodedBatch, *, txn: Transaction | None = None, partition: int | None = None
    ) -> MessageId:
        """Publishes an `encode_batch` result as one entry; returns the id of its first message.

        A batch too large for one entry at this broker is split into several. Outside a transaction
        some of them may be stored even though this raises.
        """

    def send_batch_async(
        self,
        batch: EncodedBatch,
        callback: SendCallback | None = None,
        *,
        txn: Transaction | None = None,
        partition: int | None = None,
    ) -> None:
        """Like `send_batch`; the callback gets (Result.Ok, message_id) or (error, None), once."""
        self.submit_batch(batch, txn, self.done_with(callback), partition)

    @abstractmethod
    def submit_batch(
        self, batch: EncodedBatch, txn: Transaction | None, done: Done, partition: int | None
    ) -> None:
        """The core of `send_batch_async`."""

    @abstractmethod
    def producer_name(self) -> str: ...

    @abstractmethod
    def last_sequence_id(self) -> int:
        """The highest sequence id that the broker has confirmed; -1 if none."""

    @abstractmethod
    def is_connected(self) -> bool: ...

    @abstractmethod
    async def flush(self) -> None:
        """Returns when everything sent so far is answered. Raises the first failure of a message
        that was sent without a callback since the last flush, or was unanswered at this call."""


def resolving(answer: "asyncio.Future[MessageId]") -> Done:
    def done(message_id: MessageId | None, error: Exception | None) -> None:
        if answer.done():
            return  # The sender stopped waiting.
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(message_id or MessageId())

    return done
