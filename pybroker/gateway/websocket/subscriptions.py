"""What a consumer endpoint receives from: the topics it names, or all that match a pattern.

The topics of a pattern are asked for at the beginning and then once a minute, as Apache Pulsar's
clients do. The broker compares the names, in time that is bounded (`topic_lists/pattern.py`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from pybroker.base.errors import InvalidTopicName, NotAllowed, PulsarError
from pybroker.base.names import TopicName
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.receive_queue import ReceiveQueue, tell_taken
from pybroker.client.errors import InvalidConfiguration
from pybroker.client.messages import Message, MessageId
from pybroker.client.options import InitialPosition
from pybroker.client.transactions.transaction import Transaction
from pybroker.gateway.clients import VisitorClient

LOOK_S: Final = 60.0
MOST_TOPICS: Final = 2000

log = logging.getLogger(__name__)

Received = Message | MessageId


class Subscription(Protocol):
    @property
    def queue(self) -> ReceiveQueue: ...
    async def receive(self) -> Message: ...
    async def acknowledge(self, message: Received, txn: Transaction | None = None) -> None: ...
    def negative_acknowledge(self, message: Received) -> None: ...
    def has_reached_end(self) -> bool: ...
    async def unsubscribe(self) -> None: ...


class _Part(ReceiveQueue):
    """One topic's share of a queue for many topics, which does not end with it."""

    def __init__(self, shared: ReceiveQueue) -> None:
        super().__init__()
        self._shared = shared

    def __len__(self) -> int:
        return len(self._shared)

    def put(self, messages: Sequence[Message]) -> None:
        self._shared.put(messages)

    def put_back(self, messages: Sequence[Message]) -> None:
        self._shared.put_back(messages)

    def waiting(self, receiver: object) -> list[Message]:
        return self._shared.waiting(receiver)

    def discard(self, receiver: object, among: MessageSet | None = None) -> list[Message]:
        return self._shared.discard(receiver, among)


class PatternSubscription:
    def __init__(
        self,
        at_broker: VisitorClient,
        pattern: str,
        subscription: str,
        options: dict[str, Any],
    ) -> None:
        """Raises InvalidConfiguration if the pattern does not parse."""
        self._at_broker = at_broker
        self._namespace, self._pattern = _namespace_and_pattern(pattern)
        self._subscription = subscription
        self._options = options
        self.queue = at_broker.new_queue()
        self._consumers: dict[str, Consumer] = {}
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises PulsarError if a topic cannot be subscribed to."""
        await self._look(self._options)

    def go_on(self, start: Callable[..., asyncio.Task[None]]) -> None:
        self._looking = start(self._look_again(), f"topics of {self._pattern}")

    async def _look_again(self) -> None:
        """Topics that appear later are read from their beginning."""
        options = self._options | {"initial_position": InitialPosition.Earliest}
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look(options)
            except PulsarError as error:
                log.warning("topics of %s were not looked for: %s", self._pattern, error)

    async def _look(self, options: dict[str, Any]) -> None:
        client = self._at_broker.client
        names = await client.get_topics_of_namespace(self._namespace, self._pattern)
        if len(names) > MOST_TOPICS:
            raise NotAllowed(
                f"{self._pattern} matches {len(names)} topics, and one WebSocket receives from at "
                f"most {MOST_TOPICS}: use several patterns, or a client of the binary protocol"
            )
        self._drop_failed()
        self._at_broker.client.keep_messages_in(lambda: _Part(self.queue))
        for name in names:
            if name not in self._consumers:
                consumer = await client.subscribe(
                    name, self._subscription, **options, create_topic=False
                )
                self._consumers[name] = consumer

    def _drop_failed(self) -> None:
        """Their topics were deleted, or may not be read any more."""
        for name, consumer in list(self._consumers.items()):
            if consumer.queue.failure is not None:
                del self._consumers[name]

    async def receive(self) -> Message:
        message = await self.queue.get(None)
        tell_taken([message])
        return message

    async def acknowledge(self, message: Received, txn: Transaction | None = None) -> None:
        await self._consumer_of(message).acknowledge(message, txn)

    def negative_acknowledge(self, message: Received) -> None:
        self._consumer_of(message).negative_acknowledge(message)

    def _consumer_of(self, message: Received) -> Consumer:
        """Raises InvalidConfiguration if no topic of the pattern delivered the message."""
        consumer = self._consumers.get(message.topic_name())
        if consumer is None:
            raise InvalidConfiguration("This message was not received here, or too long ago")
        return consumer

    def has_reached_end(self) -> bool:
        """More topics may come."""
        return False

    async def unsubscribe(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(each.unsubscribe() for each in self._consumers.values()))


def _namespace_and_pattern(text: str) -> tuple[str, str]:
    """`a.*` is `persistent://public/default/a.*`. Raises InvalidConfiguration."""
    domain, separator, rest = text.rpartition("://")
    parts = rest.split("/", 2)
    if len(parts) == 1 and not separator:
        parts = ["public", "default", rest]
    if len(parts) != 3 or (separator and domain != "persistent"):
        raise InvalidConfiguration(
            "topicsPattern must be tenant/namespace/PATTERN of persistent topics"
        )
    try:
        namespace = TopicName.parse(f"persistent://{parts[0]}/{parts[1]}/t").namespace_name
    except InvalidTopicName as error:
        raise InvalidConfiguration(f"topicsPattern: {error}") from None
    return namespace, f"persistent://{namespace}/{parts[2]}"
