"""An application's producer: a router, and one TopicProducer per partition."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from pybroker.base.runtime import Clock
from pybroker.client import tracing
from pybroker.client.connection.cluster import Cluster
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.growing import PartitionWatch
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import ProducerOptions, Result
from pybroker.client.producing.batching import EncodedBatch
from pybroker.client.producing.routing import Router
from pybroker.client.producing.topic_producer import TopicProducer
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


class Producer:
    """Created by Client.create_producer."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partitions: list[str],
        options: ProducerOptions,
        growing: Sequence[str] = (),
    ) -> None:
        """`growing`: the topic, if partitions added later are to be used."""
        if options.chunking_enabled and options.batching_enabled:
            raise InvalidConfiguration(
                "chunking_enabled and batching_enabled are mutually exclusive"
            )
        self._topic = topic
        self._cluster = cluster
        self._options = options
        # Called with the number of messages that are no longer in flight, for the blocking client.
        self.room_freed: Callable[[int], None] = _ignore
        self._parts = [self._part(name) for name in partitions]
        self._router = Router(
            self._parts, options.message_routing_mode, options.hashing_scheme, cluster.rng
        )
        self._watch = PartitionWatch(
            cluster, growing, options.partitions_watched_every_s, self._grow
        )
        self._closed = False
        self._failure: Exception | None = None  # the first failure that was not reported yet

    def _part(self, topic: str) -> TopicProducer:
        return TopicProducer(
            self._cluster, topic, self._options, lambda count: self.room_freed(count)
        )

    async def open(self) -> None:
        await self._cluster.open_all(self, self._parts)
        self._watch.start()

    async def _grow(self, partitions: Sequence[str]) -> None:
        """Adds all at once, so that a key that moves to another partition moves only once."""
        added = [self._part(name) for name in partitions[len(self._parts) :]]
        await self._cluster.open_more(added)
        self._parts += added  # The router reads it.

    def topic(self) -> str:
        return self._topic

    def producer_name(self) -> str:
        return self._parts[0].producer_name

    def last_sequence_id(self) -> int:
        """The highest sequence id that the broker has confirmed; -1 if none."""
        return max(part.last_sequence_id for part in self._parts)

    @property
    def max_pending_messages(self) -> int:
        return self._options.max_pending_messages

    def is_connected(self) -> bool:
        return all(part.is_connected for part in self._parts)

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

    async def send_message(self, message: Outgoing, txn: Transaction | None = None) -> MessageId:
        """The core of `send`."""
        with self._given_back(1):
            part = await self._part_with_space(self._router.choose(message))
        answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        part.submit(message, txn, _resolving(answer))
        return await answer

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

    def submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        """The core of `send_async`, for callers with many messages."""
        try:
            part = self._parts[self._router.choose(message)]
        except Exception as error:
            self._refuse(1, error, txn, done)
        else:
            part.submit(message, txn, done)

    async def send_batch(
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
        with self._given_back(batch.message_count):
            part = await self._part_with_space(self._partition_for_batch(partition))
        answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        part.submit_batch(batch, txn, _resolving(answer))
        return await answer

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

    def submit_batch(
        self, batch: EncodedBatch, txn: Transaction | None, done: Done, partition: int | None
    ) -> None:
        """The core of `send_batch_async`."""
        try:
            part = self._parts[self._partition_for_batch(partition)]
        except InvalidConfiguration as error:
            self._refuse(batch.message_count, error, txn, done)
        else:
            part.submit_batch(batch, txn, done)

    def _partition_for_batch(self, wanted: int | None) -> int:
        if wanted is None:
            return self._router.next_turn()
        if not 0 <= wanted < len(self._parts):
            raise InvalidConfiguration(
                f"{self._topic} has no partition {wanted}, only 0 to {len(self._parts) - 1}"
            )
        return wanted

    def _refuse(self, count: int, error: Exception, txn: Transaction | None, done: Done) -> None:
        """Refuses messages that belong to no partition."""
        if txn is not None:
            txn.refused(error)
        done(None, error)
        self.room_freed(count)

    @contextlib.contextmanager
    def _given_back(self, count: int) -> Iterator[None]:
        """Frees the room if the message does not reach a partition."""
        try:
            yield
        except BaseException:
            self.room_freed(count)
            raise

    async def _part_with_space(self, index: int) -> TopicProducer:
        part = self._parts[index]
        if self._options.block_if_queue_full:
            await part.space()
        return part

    async def flush(self) -> None:
        """Returns when everything sent so far is answered. Raises the first failure of a message
        that was sent without a callback since the last flush, or was unanswered at this call."""
        flushing = (part.flush() for part in self._parts)
        failures = await asyncio.gather(*flushing, return_exceptions=True)
        unheard, self._failure = self._failure, None
        for failure in (unheard, *failures):
            if failure is not None:
                raise failure

    async def close(self) -> None:
        """Sends the open batch and waits for its receipt, if there is a connection."""
        if self._closed:
            return
        self._closed = True
        self._watch.stop()
        self._cluster.members.pop(self, None)
        await asyncio.gather(*(part.close() for part in self._parts), return_exceptions=True)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _resolving(answer: "asyncio.Future[MessageId]") -> Done:
    def done(message_id: MessageId | None, error: Exception | None) -> None:
        if answer.done():
            return  # The sender stopped waiting.
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(message_id or MessageId())

    return done
