"""The producer that stands for all Kafka clients among a topic's producers.

So the modes of access, the quotas and the console see Kafka's clients, too. It leaves when nobody
has written for a while.
"""

import asyncio
from typing import Final

from pybroker.broker.persistent.producers import Producer, ProducerState
from pybroker.broker.persistent.topic import Topic

IDLE_S: Final = 60.0
_VERSION: Final = "Kafka"
_NAME: Final = "kafka-clients"  # Pulsar's brokers name producers otherwise


class Publisher:
    """Implements ProducerOwner."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._producer: Producer | None = None
        self._joining: asyncio.Task[Producer] | None = None
        self._used_s = 0.0

    @property
    def admitted(self) -> Producer | None:
        """The producer, if it may write."""
        producer = self._producer
        if producer is None or producer.state is not ProducerState.WRITING:
            return None
        self._used_s = asyncio.get_running_loop().time()
        return producer

    async def join(self) -> Producer:
        """Raises ProducerBusy, QuotaExceededError, QuotaExceededException, MetadataError,
        TopicTerminated, ServiceNotReady.
        """
        if (admitted := self.admitted) is not None:
            return admitted
        if self._joining is None or self._joining.done():
            self._joining = asyncio.ensure_future(self._join())
        return await asyncio.shield(self._joining)

    async def _join(self) -> Producer:
        producer = Producer(
            producer_id=0,
            name=_NAME,
            owner=self,
            user_provided_name=False,
            client_version=_VERSION,
            connected_since_ms=self._topic.clock.now_ms(),
        )
        await self._topic.add_producer(producer, _never_waits)
        self._producer = producer
        loop = asyncio.get_running_loop()
        self._used_s = loop.time()
        loop.call_later(IDLE_S, self._leave_if_idle, producer)
        return producer

    def close_producer(self, producer: Producer, reason: str) -> None:
        if self._producer is producer:
            self._producer = None

    def _leave_if_idle(self, producer: Producer) -> None:
        if self._producer is not producer or self._topic.closed:
            return
        loop = asyncio.get_running_loop()
        idle_s = loop.time() - self._used_s
        if idle_s < IDLE_S:
            loop.call_later(IDLE_S - idle_s, self._leave_if_idle, producer)
        else:
            self._producer = None
            self._topic.tasks.start(self._topic.producers.remove(producer), "Kafka's clients idle")


def _never_waits(error: Exception | None) -> None:
    """A shared producer is admitted at once or not at all."""
