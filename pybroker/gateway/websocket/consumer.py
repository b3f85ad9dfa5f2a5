"""A consumer on a WebSocket, and a reader: messages go out, acknowledgements and permits come in.

At most `receiverQueueSize` messages are with the peer at a time; each that it acknowledges, or
gives back, makes room for another. In pull mode the peer grants permits instead.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.errors import AlreadyClosed, InvalidConfiguration
from pybroker.client.messages import Message, MessageId
from pybroker.client.producing.producer import Producer
from pybroker.gateway.clients import VisitorClient
from pybroker.gateway.message_ids import message_id_of, text_of_message_id
from pybroker.gateway.read_ahead import ReadAhead
from pybroker.gateway.received_json import received
from pybroker.gateway.websocket import messages
from pybroker.gateway.websocket.channel import Channel
from pybroker.gateway.websocket.endpoint import Endpoint, together
from pybroker.gateway.websocket.messages import NOT_JSON, BadMessage, Command
from pybroker.gateway.websocket.parameters import ConsumerParameters, DeadLetters, ReaderParameters
from pybroker.gateway.websocket.producer import Transactions
from pybroker.gateway.websocket.subscriptions import PatternSubscription, Subscription

_NORMAL: Final = 1000
_REMEMBERED: Final = 10_000  # messages that a peer may have, in pull mode
_TRY_AGAIN_S: Final = 1.0  # after dead letters could not be published
_MOST_PERMITS: Final = 2**31


class Outstanding:
    """The messages that the peer has, by their ids as it knows them."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, MessageId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, text: str, message_id: MessageId) -> None:
        if len(self._ids) >= _REMEMBERED:
            self._ids.popitem(last=False)
        self._ids[text] = message_id

    def of(self, text: str) -> MessageId:
        """An id that is not known says itself what it is. Raises InvalidConfiguration."""
        known = self._ids.get(text)
        return message_id_of(text) if known is None else known

    def remove(self, text: str, message_id: MessageId) -> None:
        """Unless the message has come again meanwhile."""
        if self._ids.get(text) is message_id:
            del self._ids[text]


class ConsumerEndpoint(Endpoint):
    def __init__(
        self,
        client: VisitorClient,
        topics: Sequence[str] | str,
        subscription: str,
        parameters: ConsumerParameters,
    ) -> None:
        """`topics`: their names, or a pattern. Raises InvalidConfiguration."""
        super().__init__(client)
        self._topics = topics
        self._name = subscription
        self._parameters = parameters
        self._outstanding = Outstanding()
        self._permits = 0
        self._unsubscribes = False
        self._changed = asyncio.Event()
        self._transactions = Transactions(client)
        self._subscription: Subscription | None = None
        self._pattern: PatternSubscription | None = None
        self._dead: _DeadLetterQueue | None = None
        if isinstance(topics, str):
            options = parameters.options
            self._pattern = PatternSubscription(client, topics, subscription, options)
        delay_ms = parameters.options["negative_ack_redelivery_delay_ms"]
        if (letters := parameters.dead_letters) is not None:
            self._dead = _DeadLetterQueue(client, letters, subscription, delay_ms / 1000)

    async def open(self) -> None:
        if self._pattern is not None:
            await self._pattern.open()
            self._subscription = self._pattern
            return
        options = self._parameters.options
        self._subscription = await self.at_broker.client.subscribe(
            self._topics, self._name, **options
        )

    async def serve(self, channel: Channel) -> None:
        assert self._subscription is not None
        if self._pattern is not None:
            self._pattern.go_on(self.at_broker.start)
        await together(
            self._unless_unsubscribed(self._deliver(channel, self._subscription)),
            self._obey(channel, self._subscription),
            self._unless_unsubscribed(_until_failed(self._subscription)),
        )

    async def _unless_unsubscribed(self, work: Coroutine[Any, Any, None]) -> None:
        """The peer has asked for this end, and is told of it."""
        try:
            await work
        except AlreadyClosed:
            if not self._unsubscribes:
                raise

    # -- messages

    async def _deliver(self, channel: Channel, subscription: Subscription) -> None:
        several = isinstance(self._topics, str) or len(self._topics) > 1
        while True:
            await self._until_wanted()
            message = await subscription.receive()
            if self._dead is not None and await self._dead.takes(message, subscription):
                continue
            message_id = message.message_id()
            self._outstanding.add(text_of_message_id(message_id), message_id)
            self._permits -= 1
            parts = received(message, several)
            await channel.send_parts(parts, len(message.data()))
            del message, parts

    async def _until_wanted(self) -> None:
        while not self._is_wanted:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _is_wanted(self) -> bool:
        if self._parameters.pull_mode:
            return self._permits > 0
        return len(self._outstanding) < self._parameters.max_pending

    # -- commands

    async def _obey(self, channel: Channel, subscription: Subscription) -> None:
        while True:
            said = messages.command(await channel.receive())
            if said.type == "permit":
                self._permits = min(max(self._permits, 0) + said.permits, _MOST_PERMITS)
            elif said.type == "isEndOfTopic":
                await channel.send(messages.end_of_topic(subscription.has_reached_end()))
            elif said.type == "unsubscribe":
                self._unsubscribes = True
                await subscription.unsubscribe()
                channel.close(_NORMAL, "unsubscribed")
            elif said.type == "negativeAcknowledge":
                given_back = self._named(said)
                subscription.negative_acknowledge(given_back)
                self._outstanding.remove(said.message_id or "", given_back)
            else:
                await self._acknowledge(channel, subscription, said)
            self._changed.set()

    def _named(self, said: Command) -> MessageId:
        """Raises BadMessage for what is no id."""
        try:
            return self._outstanding.of(said.message_id or "")
        except InvalidConfiguration as error:
            raise BadMessage(NOT_JSON, str(error)) from None

    async def _acknowledge(
        self, channel: Channel, subscription: Subscription, said: Command
    ) -> None:
        """One in a transaction that is refused can be repeated, in another one."""
        message_id, text = self._named(said), said.message_id or ""
        if said.txn_id is None:
            await subscription.acknowledge(message_id)
            self._outstanding.remove(text, message_id)
            return
        failure: PulsarError | None = None
        try:
            await subscription.acknowledge(message_id, self._transactions.of(said.txn_id))
            self._outstanding.remove(text, message_id)
        except PulsarError as error:
            failure = error
        await channel.send(messages.acknowledged(text, failure))


async def _until_failed(subscription: Subscription) -> None:
    """Raises PulsarError: also a peer that wants no message now is told."""
    queue = subscription.queue
    assert isinstance(queue, ReadAhead)
    await queue.until_failed()


class _DeadLetterQueue:
    """Takes the messages that were delivered too often."""

    def __init__(
        self,
        client: VisitorClient,
        letters: DeadLetters,
        subscription: str,
        comes_again_after_s: float,
    ) -> None:
        self._pause_s = max(0, _TRY_AGAIN_S - comes_again_after_s)
        self._client = client
        self._letters = letters
        self._name = subscription
        self._producer: Producer | None = None

    async def takes(self, message: Message, subscription: Subscription) -> bool:
        if message.redelivery_count() <= self._letters.max_redeliveries:
            return False
        try:
            await self._bury(message)
            await subscription.acknowledge(message)
        except PulsarError:  # it comes again
            await asyncio.sleep(self._pause_s)
            subscription.negative_acknowledge(message)
        return True

    async def _bury(self, message: Message) -> None:
        if self._producer is None:
            self._producer = await self._client.client.create_producer(self._letters.topic)
        about = {
            "REAL_TOPIC": message.topic_name(),
            "REAL_SUBSCRIPTION": self._name,
            "ORIGIN_MESSAGE_ID": str(message.message_id()),
        }
        key = message.partition_key() if message.has_partition_key() else None
        await self._producer.send(message.data(), message.properties() | about, key)


class ReaderEndpoint(Endpoint):
    """Each text from the peer makes room for another message: it need not be an id."""

    def __init__(self, client: VisitorClient, topic: str, parameters: ReaderParameters) -> None:
        super().__init__(client)
        self._topic = topic
        self._parameters = parameters
        self._pending = 0
        self._changed = asyncio.Event()
        self._consumer: Consumer | None = None

    async def open(self) -> None:
        found = self._parameters
        reader = await self.at_broker.client.create_reader(
            self._topic, found.start, **found.options
        )
        self._consumer = reader.consumer

    async def serve(self, channel: Channel) -> None:
        assert self._consumer is not None
        await together(
            self._deliver(channel, self._consumer),
            self._obey(channel, self._consumer),
            _until_failed(self._consumer),
        )

    async def _deliver(self, channel: Channel, consumer: Consumer) -> None:
        while True:
            while self._pending >= self._parameters.max_pending:
                self._changed.clear()
                await self._changed.wait()
            message = await consumer.receive()
            self._pending += 1
            await channel.send_parts(received(message, False), len(message.data()))
            del message

    async def _obey(self, channel: Channel, consumer: Consumer) -> None:
        while True:
            said: Any = messages.command(await channel.receive())
            if said.type == "isEndOfTopic":
                await channel.send(messages.end_of_topic(consumer.has_reached_end()))
                continue
            if said.txn_id is not None:
                raise NotAllowed("A reader acknowledges nothing, so also not in a transaction")
            self._pending = max(0, self._pending - 1)
            self._changed.set()
