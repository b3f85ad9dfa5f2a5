"""Compacts topics as their policies require, one at a time, because the keys take memory."""

import asyncio

from pybroker.broker.policies.table import COMPACTION_THRESHOLD
from pybroker.broker.served import ServedTopic
from pybroker.broker.topic import Topic


class CompactedTopics:
    """An Actor."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore()

    def follow(self, topic: ServedTopic) -> None:
        if not isinstance(topic, Topic):
            return
        topic.compaction_turn = self._turn
        if topic.policies[COMPACTION_THRESHOLD] > 0:
            topic.compaction.watch()
