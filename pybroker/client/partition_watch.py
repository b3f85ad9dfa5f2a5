"""Checks for partitions that are added to topics in use.

Like the official clients, this asks for the number of partitions from time to time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from pybroker.base.names import TopicName
from pybroker.client.connection.cluster import Cluster
from pybroker.client.errors import PulsarException

log = logging.getLogger("pybroker.client")

Grow = Callable[[Sequence[str]], Awaitable[None]]


class PartitionWatch:
    """Periodically calls `grow` with all partitions of a topic, in order."""

    def __init__(self, cluster: Cluster, topics: Sequence[str], interval_s: float, grow: Grow):
        self._cluster = cluster
        self._topics = topics
        self._interval_s = interval_s
        self._grow = grow
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._topics and self._interval_s > 0:
            name = f"partitions of {', '.join(self._topics)}"
            self._task = self._cluster.tasks.start(self._watch(), name)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for topic in self._topics:
                try:
                    partitions = await self._cluster.partition_topics(topic, create=False)
                    if TopicName.parse(partitions[0]).partition >= 0:  # else it was deleted
                        await self._grow(partitions)
                except PulsarException as error:
                    log.warning(
                        "The check for new partitions of %s failed and will be repeated: %s",
                        topic,
                        error,
                    )
