"""Closes a topic whose log was fenced; its next use opens all of its logs again.

A log is fenced if another broker has taken over the topic while this one still served it, or if the
list of the log's ledgers could not be written. Without this the topic would refuse everything.
"""

import logging

from pybroker.base.names import TopicName, topic_of_log
from pybroker.base.runtime import Tasks
from pybroker.broker.topics import Topics

log = logging.getLogger(__name__)


class LostLogs:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._tasks = Tasks("topics whose logs were fenced")
        self._closing: set[TopicName] = set()
        self._closed = False

    def lost(self, log_name: str) -> None:
        """Called when the managed ledger of this name was fenced."""
        name = topic_of_log(log_name)
        if name is not None and name not in self._closing and not self._closed:
            self._closing.add(name)
            self._tasks.start(self._close(name), f"closing {name}")

    async def _close(self, name: TopicName) -> None:
        try:
            log.warning("%s is closed, because one of its logs was fenced", name)
            await self._topics.unload(name, "one of its logs was fenced")
        finally:
            self._closing.discard(name)

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()
