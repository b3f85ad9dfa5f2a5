"""Receiving over HTTP: consumers that outlive the requests which receive through them.

Each has one subscription, for one role on one machine. A message that a request got is invisible
until it is acknowledged or its time is over; then it comes again. A second after the last request
the consumer is closed, so that other consumers get what waits in it. While somebody has messages of
it, that would give those back, too: then it gives back only what waits or still comes, which is one
message of each topic or partition. A receiver ends after a minute without a request.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base.errors import SubscriptionNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Tasks
from pybroker.client.consuming.acks import Place
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import ConsumerType, InitialPosition
from pybroker.client.topic_questions import TopicQuestion
from pybroker.gateway.clients import VisitorClient
from pybroker.gateway.message_ids import message_id_of, text_of_message_id
from pybroker.gateway.polls import Polls
from pybroker.gateway.read_ahead import ReadAhead
from pybroker.gateway.visitor import Key, Visitor
from pybroker.gateway.websocket.parameters import POSITIONS, TYPES

IDLE_S: Final = 60.0
GIVE_BACK_S: Final = 1.0
_AHEAD: Final = 1  # messages that wait for the next request, of each topic or partition
_ON_ITS_WAY_S: Final = 5.0  # how long a message may be that was acknowledged meanwhile
_LINGER_S: Final = 0.01  # for more, once there is a message
_REMEMBERED: Final = 10_000  # acknowledged messages that were got elsewhere
_MOST_BITS: Final = 10_000_000  # of the batches whose messages a request names
USUAL_TYPE: Final = "Shared"
_SHARING: Final = (ConsumerType.Shared, ConsumerType.KeyShared)


@dataclass(frozen=True, slots=True)
class Source:
    topic: str
    subscription: str
    type: str  # as Apache Pulsar names it: Key_Shared

    @property
    def consumer_type(self) -> ConsumerType:
        return TYPES[self.type]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for."""

    messages: int
    size_bytes: int  # it ends with the message that reaches this
    wait_s: float
    visible_again_s: float


class Receiver:
    def __init__(self, client: VisitorClient, source: Source) -> None:
        self._at_broker = client
        self._source = source
        self._consumer: Consumer | None = None
        self._opening = asyncio.Lock()
        self._invisible: dict[str, tuple[MessageId, float]] = {}  # until when, in loop time
        self._deadlines: list[tuple[float, str]] = []  # a heap; may name what is not there any more
        self._due: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._rests = False
        client.client.keep_messages_in(self._new_queue)
        self._owed: dict[Any, int] = {}  # permits, by topic
        self._acknowledged: dict[Place, float] = {}  # got elsewhere; and when that was
        self.users = 0

    @property
    def has_messages_out(self) -> bool:
        return bool(self._invisible)

    @property
    def consumer(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def _new_queue(self) -> ReadAhead:
        queue = self._at_broker.new_queue()
        queue.came = self._came
        return queue

    async def open(self, initial_position: InitialPosition | None) -> None:
        """The position is for a subscription that does not exist; None: it must exist, as must its
        topic. Raises PulsarError.
        """
        async with self._opening:
            if self._consumer is not None and self._consumer.queue.failure is not None:
                # Its topic was deleted, for example. Otherwise it would keep others out.
                failed, self._consumer = self._consumer, None
                await failed.close()
            if self._consumer is None:
                if initial_position is None and self._source.topic.startswith("persistent://"):
                    await self._require_subscription()
                self._consumer = await self._at_broker.client.subscribe(
                    self._source.topic,
                    self._source.subscription,
                    self._source.consumer_type,
                    initial_position=initial_position or InitialPosition.Latest,
                    receiver_queue_size=_AHEAD,
                    negative_ack_redelivery_delay_ms=0,
                )

    async def _require_subscription(self) -> None:
        """Raises SubscriptionNotFound, TopicNotFound: to subscribe would create it."""
        client, source = self._at_broker.client, self._source
        parts = await client.get_topic_partitions(source.topic, create=False)
        asked = [TopicQuestion(each) for each in parts]
        states = await client.ask_topics(asked, source.subscription)
        if any(each.cursor is not None for each in states):
            return
        for error in filter(None, [each.error for each in states]):
            raise error
        raise SubscriptionNotFound(
            f"{source.topic} has no subscription {source.subscription}: check the name. Messages "
            "are acknowledged and given back on the subscription that they were received from"
        )

    def log_in(self, visitor: Visitor) -> None:
        """The same visitor, perhaps with newer credentials."""
        if self._at_broker.visitor.identity != visitor.identity:
            self._at_broker.log_in(visitor)

    # -- receiving

    async def poll(self, wanted: Wanted, polls: Polls) -> list[Message]:
        """Empty if none came in time. If this is cancelled, nobody has got the messages."""
        self._take_up_again()
        found: list[Message] = []
        try:
            async with asyncio.timeout(wanted.wait_s) as waiting:
                with polls.waiting(self._at_broker.visitor.address[0], waiting):
                    await self._take(found, wanted)
        except TimeoutError:
            pass
        except BaseException:
            for message in found:
                self.consumer.negative_acknowledge(message)
            raise
        for message in found:
            self._hide(message.message_id(), wanted.visible_again_s)
        return found

    async def _take(self, found: list[Message], wanted: Wanted) -> None:
        found.append(await self._next())
        size_bytes = len(found[0].data())
        while len(found) < wanted.messages and size_bytes < wanted.size_bytes:
            async with asyncio.timeout(_LINGER_S):
                found.append(await self._next())
            size_bytes += len(found[-1].data())

    async def _next(self) -> Message:
        while True:
            message = await self.consumer.receive()
            acked_s = self._acknowledged.get(message.place)
            if acked_s is None or acked_s + _ON_ITS_WAY_S < asyncio.get_running_loop().time():
                return message

    def _take_up_again(self) -> None:
        self._rests = False
        if self._idle is not None:
            self._idle.cancel()
        owed, self._owed = self._owed, {}
        for receiver, permits in owed.items():
            receiver.owe_permits(permits)

    def rest_soon(self) -> None:
        """Call it after the last of several requests."""
        if self._idle is not None:
            self._idle.cancel()
        if self._source.consumer_type in _SHARING:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(GIVE_BACK_S, self._rest)

    def _rest(self) -> None:
        """Others get what waits here, and what comes."""
        if self.users or self._consumer is None:
            return
        if self.has_messages_out:
            self._rests = True
            self._give_back()
        else:
            consumer, self._consumer = self._consumer, None
            self._owed.clear()
            self._at_broker.start(consumer.close(), "closing a consumer")

    def _came(self) -> None:
        if self._rests:
            asyncio.get_running_loop().call_soon(self._give_back)

    def _give_back(self) -> None:
        """The permits are granted again with the next request."""
        if self._consumer is None or not self._rests:
            return
        while (message := self._consumer.queue.poll()) is not None:
            receiver = message.entry.receiver
            self._owed[receiver] = self._owed.get(receiver, 0) + 1
            self._consumer.negative_acknowledge(message)

    # -- visibility

    def _hide(self, message_id: MessageId, for_s: float) -> None:
        text = text_of_message_id(message_id)
        until_s = asyncio.get_running_loop().time() + for_s
        self._invisible[text] = message_id, until_s
        heapq.heappush(self._deadlines, (until_s, text))
        self._look_later()

    def _look_later(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._deadlines:
            loop = asyncio.get_running_loop()
            self._due = loop.call_at(self._deadlines[0][0], self._look)

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        consumer = self._consumer
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, text = heapq.heappop(self._deadlines)
            found = self._invisible.get(text)
            if found is not None and found[1] <= now_s:  # else it was got again since
                del self._invisible[text]
                if consumer is not None:
                    consumer.negative_acknowledge(found[0])
        self._look_later()
        if self._rests:
            self._rest()

    def _ids(self, texts: list[str]) -> list[MessageId]:
        """Also of messages that were got before this receiver. Raises InvalidConfiguration."""
        found, bits = [], 0
        for text in texts:
            known = self._invisible.get(text)
            each = message_id_of(text) if known is None else known[0]
            found.append(each)
            bits += each.batch_size()
        if bits > _MOST_BITS:
            raise InvalidConfiguration("These messages are of very large batches: name fewer")
        return found

    async def acknowledge(self, texts: list[str], txn_id: TxnId | None) -> None:
        """In a transaction it is durable when this returns. Raises PulsarError."""
        ids = self._ids(texts)
        if txn_id is None:
            self._note_others(texts, ids)
        txn = None if txn_id is None else self._at_broker.transaction(txn_id)
        await self.consumer.acknowledge(ids, txn)
        for text in texts:
            self._invisible.pop(text, None)

    def _note_others(self, texts: list[str], ids: list[MessageId]) -> None:
        """Messages that were got elsewhere may be on their way here, too."""
        known, now_s = self._acknowledged, asyncio.get_running_loop().time()
        for place in list(known)[: max(0, len(known) + len(ids) - _REMEMBERED)]:
            del known[place]
        for text, each in zip(texts, ids, strict=True):
            if text not in self._invisible:
                known[each.place] = now_s

    def give_back(self, texts: list[str]) -> None:
        """They come again now. Raises InvalidConfiguration."""
        for message_id in self._ids(texts):
            self.consumer.negative_acknowledge(message_id)
        for text in texts:
            self._invisible.pop(text, None)

    async def close(self) -> None:
        for timer in (self._due, self._idle):
            if timer is not None:
                timer.cancel()
        await self._at_broker.close()


class Receivers:
    def __init__(self, new_client: Callable[[Visitor], VisitorClient]) -> None:
        self._new_client = new_client
        self._open: dict[tuple[Key, Source], Receiver] = {}
        self._timers: dict[Receiver, asyncio.TimerHandle] = {}
        self._tasks = Tasks("receivers over HTTP")
        self.polls = Polls()

    @asynccontextmanager
    async def receiver(
        self,
        visitor: Visitor,
        source: Source,
        begins: str | None = None,
    ) -> AsyncIterator[Receiver]:
        """`begins`: where a new subscription does; None: it must exist. Raises PulsarError."""
        key = visitor.key, source
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = Receiver(self._new_client(visitor), source)
        else:
            found.log_in(visitor)
        found.users += 1
        try:
            await found.open(None if begins is None else POSITIONS[begins])
            yield found
        finally:
            found.users -= 1
            if not found.users:
                found.rest_soon()
                self._look_later(key, found)

    def received_from(self, visitor: Visitor, topic: str, subscription: str) -> Source:
        """What the visitor receives from, or has: of whatever type it was. Otherwise Shared."""
        sources = [Source(topic, subscription, each) for each in TYPES]
        known = [each for each in sources if (visitor.key, each) in self._open]
        known.sort(key=lambda each: not self._open[visitor.key, each].has_messages_out)
        return known[0] if known else Source(topic, subscription, USUAL_TYPE)

    def _look_later(self, key: tuple[Key, Source], receiver: Receiver) -> None:
        if receiver in self._timers:
            self._timers[receiver].cancel()
        loop = asyncio.get_running_loop()
        self._timers[receiver] = loop.call_later(IDLE_S, self._look, key, receiver)

    def _look(self, key: tuple[Key, Source], receiver: Receiver) -> None:
        if receiver.users or self._open.get(key) is not receiver:
            return
        if receiver.has_messages_out:
            self._look_later(key, receiver)
        else:
            self._end(key, receiver)

    def _end(self, key: tuple[Key, Source], receiver: Receiver) -> None:
        del self._open[key]
        if (timer := self._timers.pop(receiver, None)) is not None:
            timer.cancel()
        self._tasks.start(receiver.close(), "closing a receiver")

    async def end(self, visitor: Visitor, topic: str, subscription: str) -> int:
        """Closes the visitor's receivers of a subscription; the number. Their messages come again
        at once.
        """
        ended = [
            (key, receiver)
            for key, receiver in self._open.items()
            if key[0] == visitor.key
            and (key[1].topic, key[1].subscription) == (topic, subscription)
        ]
        for key, receiver in ended:
            self._end(key, receiver)
        await self._tasks.ended()
        return len(ended)

    async def close(self) -> None:
        for key, receiver in list(self._open.items()):
            self._end(key, receiver)
        await self._tasks.ended()
