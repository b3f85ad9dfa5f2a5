"""The producer of a scalable topic: one SegmentSender per segment that takes messages.

A message with a key goes to the segment whose range has the key's hash; one without a key to each
segment in turn. When segments are split or merged, the messages of a key stay in order: new
segments wait until those that they replace have answered everything.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pybroker.base.errors import InvalidTxnStatus
from pybroker.client.connection.cluster import Cluster
from pybroker.client.errors import AlreadyClosed, InvalidConfiguration, PulsarException, Timeout
from pybroker.client.messages import Done, MessageId, Outgoing
from pybroker.client.options import PartitionsRoutingMode, ProducerOptions
from pybroker.client.producing.batching import EncodedBatch
from pybroker.client.producing.producer import Producer, resolving
from pybroker.client.producing.room import Room
from pybroker.client.scalable.layout import Layout, Segment
from pybroker.client.scalable.opening import Opening
from pybroker.client.scalable.segment_sender import SegmentSender, Sent, WithinOperation
from pybroker.client.scalable.watch import LayoutWatch
from pybroker.client.transactions.transaction import Transaction

# Clients of 4.x must not be on an ordinary topic that is made scalable. Source: PIP-475.
V5_CLIENT: Final = {"__pulsar.v5.managed": "true"}
_UNLIMITED: Final = 2**62


class ScalableProducer(Producer):
    def __init__(self, cluster: Cluster, topic: str, options: ProducerOptions) -> None:
        super().__init__(cluster, topic, options)
        self._watch = LayoutWatch(cluster, topic)
        self._watch.told, self._watch.ended = self._changed, self._end
        self._layout: Layout | None = None
        self._senders: dict[int, SegmentSender] = {}
        self._retired: list[SegmentSender] = []
        self._room = Room(topic, options, lambda count: self.room_freed(count))
        self._numbers = 0
        self._turn = -1
        self._last_sequence_id = -1
        self._unanswered: dict[Sent, None] = {}
        self._late: asyncio.TimerHandle | None = None
        self._progress: asyncio.Event = asyncio.Event()
        self._is_open = False
        self._is_closed = False
        self._ended: Exception | None = None

    # --- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        await self._cluster.open_all(self, [Opening(self._watch.topic, self._open)])

    async def _open(self) -> None:
        """Until every segment's producer is open."""
        await self._watch.open()
        while not self._is_open:
            self._progress.clear()
            for each in self._senders.values():
                if each.failure is not None:
                    raise each.failure
            if all(each.is_open for each in self._senders.values()):
                self._is_open = True
            else:
                await self._progress.wait()

    async def close(self) -> None:
        """Sends what waits and awaits its receipt, if there is a connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._cluster.members.pop(self, None)
        try:
            with suppress(PulsarException, TimeoutError):  # the sender of each message gets it
                async with asyncio.timeout(self._closing_patience_s):
                    if self.is_connected():
                        await self.flush()
        finally:  # also if the caller was cancelled
            self._end(AlreadyClosed(f"The producer of {self._topic} is closed"))
            if self._late is not None:
                self._late.cancel()
            await self._watch.close()
            closing = (each.close() for each in [*self._retired, *self._senders.values()])
            await asyncio.gather(*closing, return_exceptions=True)

    @property
    def _closing_patience_s(self) -> float | None:
        """None: each message has its own deadline."""
        return None if self._options.send_timeout_millis > 0 else self._cluster.timeout_s

    def _end(self, error: Exception) -> None:
        """There will be no other layout: what waits for one fails, and all that comes."""
        self._ended = self._ended or error
        self._room.close(error)
        for each in [*self._retired, *self._senders.values()]:
            self._fail(each, error)

    # --- what the topic consists of ---------------------------------------------------------

    def _changed(self, layout: Layout) -> None:
        self._layout = layout
        active = {each.id: each for each in layout.active}
        for number, sender in list(self._senders.items()):
            if number not in active or active[number].topic != sender.segment.topic:
                self._retired.append(self._senders.pop(number))
                sender.retire()
        for segment in active.values():
            if segment.id not in self._senders:
                self._senders[segment.id] = self._sender(segment)
                self._senders[segment.id].start(patient=self._is_open)
        self.advance()

    def _sender(self, segment: Segment) -> SegmentSender:
        name, properties = self._options.producer_name, self._options.properties
        options = replace(
            self._options,
            producer_name=name and f"{name}-seg-{segment.id}",
            properties={**(properties or {}), **V5_CLIENT} if segment.is_ordinary else properties,
            max_pending_messages=_UNLIMITED,
            block_if_queue_full=False,
        )
        return SegmentSender(self._cluster, segment, options, self)

    def advance(self) -> None:
        """Lets messages go on whose way has become free."""
        self._progress.set()
        for each in [each for each in self._retired if each.is_settled]:
            self._retired.remove(each)
            self._last_sequence_id = max(self._last_sequence_id, each.producer.last_sequence_id)
            waiting, each.waiting = each.waiting, []
            for sent in waiting:
                self._go_on(sent)
        for sender in self._senders.values():
            blocked = any(each.segment.overlaps(sender.segment) for each in self._retired)
            if sender.is_open and not sender.is_ready and not blocked:
                sender.begin()
            elif sender.failure is not None:
                self._fail(sender, sender.failure)
        self._watch_time()

    def _go_on(self, sent: Sent) -> None:
        if self._ended is not None:
            self.answered(sent, None, self._ended)
        else:
            self._senders[self._segment_for(sent.message).id].waiting.append(sent)

    def _fail(self, sender: SegmentSender, error: Exception) -> None:
        waiting, sender.waiting = sender.waiting, []
        for sent in waiting:
            self.answered(sent, None, error)

    def _watch_time(self) -> None:
        """Messages wait for their segment as long as for a receipt."""
        limit_ms = self._options.send_timeout_millis
        if self._late is None and limit_ms > 0 and self._waiting():
            waited_for = {each for sender in self._waiting() for each in sender.waiting}
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(limit_ms / 1000, self._give_up, waited_for)

    def _give_up(self, waited_for: set[Sent]) -> None:
        self._late = None
        for sender in self._waiting():
            if not waited_for.isdisjoint(sender.waiting):
                topic, limit_ms = sender.segment.topic, self._options.send_timeout_millis
                self._fail(sender, Timeout(f"{topic} took no messages within {limit_ms} ms"))
        self._watch_time()

    def _waiting(self) -> list[SegmentSender]:
        return [each for each in [*self._retired, *self._senders.values()] if each.waiting]

    # --- for the application ----------------------------------------------------------------

    def producer_name(self) -> str:
        """Each segment's producer has a name of its own, which begins with this one."""
        if self._options.producer_name is not None:
            return self._options.producer_name
        return min((each.producer.producer_name for each in self._senders.values()), default="")

    def last_sequence_id(self) -> int:
        ids = (each.producer.last_sequence_id for each in self._senders.values())
        return max([self._last_sequence_id, *ids])

    def is_connected(self) -> bool:
        return all(each.producer.is_connected for each in self._senders.values())

    async def send_message(self, message: Outgoing, txn: Transaction | None = None) -> MessageId:
        if self._options.block_if_queue_full:
            try:
                await self._room.space()
            except BaseException:
                self.room_freed(1)
                raise
        answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        self._submit(message, txn, resolving(answer))
        return await answer

    def submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        self._submit(message, txn, done)

    def _submit(self, message: Outgoing, txn: Transaction | None, done: Done) -> None:
        refusal = self._room.take(1)
        try:
            if refusal is not None:
                raise refusal
            segment = self._segment_for(message)
            finished = done if txn is None else txn.operation(done)
        except Exception as error:
            if txn is not None and not isinstance(error, InvalidTxnStatus):
                txn.refused(error)
            done(None, error)
            self._room.free(1)
            return
        self._numbers += 1
        within = None if txn is None else WithinOperation(txn)
        sent = Sent(self._numbers, message, within, finished)
        self._unanswered[sent] = None
        sender = self._senders[segment.id]
        sender.send(sent)
        if sender.waiting:
            self.advance()

    def look_again(self) -> None:
        """A segment is gone: perhaps the whole topic is."""
        self._watch.look_again()

    def answered(self, sent: Sent, stored: MessageId | None, error: Exception | None) -> None:
        del self._unanswered[sent]
        sent.done(stored, error)
        self._room.free(1)

    def _segment_for(self, message: Outgoing) -> Segment:
        assert self._layout is not None
        if message.partition_key is not None:
            return self._layout.segment_of(message.partition_key)
        active = self._layout.active
        moves = self._options.message_routing_mode is PartitionsRoutingMode.RoundRobinDistribution
        if self._turn < 0:
            self._turn = self._cluster.rng.randrange(len(active))
        self._turn %= len(active)
        if moves and not self._senders[active[self._turn].id].producer.has_open_batch:
            self._turn = (self._turn + 1) % len(active)
        return active[self._turn]

    async def send_batch(
        self, batch: EncodedBatch, *, txn: Transaction | None = None, partition: int | None = None
    ) -> MessageId:
        """Raises InvalidConfiguration: the keys in the batch may belong to several segments."""
        self.room_freed(batch.message_count)
        raise self._no_batches()

    def submit_batch(
        self, batch: EncodedBatch, txn: Transaction | None, done: Done, partition: int | None
    ) -> None:
        if txn is not None:
            txn.refused(self._no_batches())
        done(None, self._no_batches())
        self.room_freed(batch.message_count)

    def _no_batches(self) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{self._topic} is a scalable topic, and the keys of an encoded batch may belong to "
            "several segments: send its messages one by one, with batching_enabled=True"
        )

    async def flush(self) -> None:
        answers: list[asyncio.Future[MessageId]] = []
        for sent in self._unanswered:
            answer: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            sent.done = _both(sent.done, resolving(answer))
        senders = [*self._retired, *self._senders.values()]
        # Messages that wait for a transaction leave only then. Those that move have another answer.
        flushing = asyncio.gather(
            *(each.producer.flush() for each in senders), return_exceptions=True
        )
        failures = await asyncio.gather(*answers, return_exceptions=True)
        await flushing
        unheard, self._failure = self._failure, None
        for failure in (unheard, *failures):
            if isinstance(failure, BaseException):
                raise failure


def _both(one: Done, other: Done) -> Done:
    def done(message_id: MessageId | None, error: Exception | None) -> None:
        one(message_id, error)
        other(message_id, error)

    return done
