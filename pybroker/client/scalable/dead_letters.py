"""Dead letters of a queue consumer: what was delivered too often goes to another topic.

A message that comes once more is published there, and then acknowledged. If the consumer dies in
between it may be there twice, unless both are in one transaction. Until a message is published it
takes up its place in the receive queue, so there are no more of them than the queue has room for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pybroker.base.names import SCALABLE, any_topic
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.topic_consumer import TopicConsumer
from pybroker.client.errors import PulsarException
from pybroker.client.messages import Message, Outgoing
from pybroker.client.options import ConsumerDeadLetterPolicy
from pybroker.client.producing.producer import Producer
from pybroker.client.transactions.transaction import Transaction

Begin = Callable[[], Awaitable[Transaction]]
Open = Callable[[str], Awaitable[Producer]]
_AT_ONCE: Final = 16
_TRY_AGAIN_S: Final = 1.0

log = logging.getLogger("pybroker.client")


def dead_letter_topic(topic: str) -> str:
    """As the Java SDK calls it. `topic`: the one that is consumed, ordinary or scalable."""
    name = any_topic(topic)
    return str(name._replace(domain=SCALABLE, local=f"{name.local}-DLQ"))


class DeadLetters:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        subscription: str,
        policy: ConsumerDeadLetterPolicy,
        open_producer: Open,
        begin: Begin,
    ) -> None:
        """`open_producer`: of the topic of dead letters; `begin`: a transaction."""
        self._cluster = cluster
        self._subscription = subscription
        self._policy = policy
        self._topic = policy.dead_letter_topic or dead_letter_topic(topic)
        self._open_producer = open_producer
        self._begin = begin
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._is_closed = False

    def sieve(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those that the application gets; the others are taken care of."""
        most = self._policy.max_redeliver_count
        if all(each.redelivery_count() <= most for each in messages):
            return messages
        for each in messages:
            if each.redelivery_count() > most:
                self._cluster.tasks.start(self._bury(each), f"dead letter of {each.topic_name()}")
        return [each for each in messages if each.redelivery_count() <= most]

    async def _bury(self, message: Message) -> None:
        part: TopicConsumer = message.entry.receiver
        async with self._room:
            try:
                await self._move(message, part)
            except PulsarException as error:
                if not self._is_closed:
                    log.warning("%s is no dead letter yet, and comes again: %s", message, error)
                    await asyncio.sleep(_TRY_AGAIN_S)
                    part.negative_acknowledge(message.place)
        if part.takes_back(message):
            part.owe_permits(1)

    async def _move(self, message: Message, part: TopicConsumer) -> None:
        producer, letter = await self._opened(), self._letter(message)
        if not self._policy.in_transaction:
            await producer.send_message(letter)
            part.acknowledge([message.place])
            return
        async with await self._begin() as txn:
            await producer.send_message(letter, txn)
            await part.acknowledge_in(txn, [message])

    async def _opened(self) -> Producer:
        async with self._opening:
            if self._producer is None:
                self._producer = await self._open_producer(self._topic)
            return self._producer

    def _letter(self, message: Message) -> Outgoing:
        """The properties are those of Apache Pulsar's clients."""
        about = {
            "REAL_TOPIC": message.topic_name(),
            "REAL_SUBSCRIPTION": self._subscription,
            "ORIGIN_MESSAGE_ID": str(message.message_id()),
        }
        return message.copied(message.properties() | about)

    async def close(self) -> None:
        self._is_closed = True
        if self._producer is not None:
            await self._producer.close()
