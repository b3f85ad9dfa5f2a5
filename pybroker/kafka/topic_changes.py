"""Changes to topics that may concern several brokers; filled in by the composition root."""

from typing import Protocol

from pybroker.base.names import TopicName
from pybroker.broker.topics import Topics


class TopicChanges(Protocol):
    """Everything raises KafkaError, PulsarError, ManagedLedgerError."""

    async def delete(self, name: TopicName) -> None:
        """Delete the topic with its partitions, even if it is in use."""
        ...

    async def grow(self, name: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        ...


class ChangesAlone:
    """Implements TopicChanges for a broker without others."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def delete(self, name: TopicName) -> None:
        if self._topics.tenants.partitions(name):
            await self._topics.delete_partitioned(name, force=True)
        else:
            await self._topics.delete(name, force=True)

    async def grow(self, name: TopicName, partitions: int) -> None:
        await self._topics.partitioned.grow(name, partitions)
