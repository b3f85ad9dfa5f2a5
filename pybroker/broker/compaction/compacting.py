"""Compacts topics as their policies require, one at a time, because the keys take memory."""

import asyncio

from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import COMPACTION_THRESHOLD


class CompactedTopics:
    """Compacts topics at their threshold, one at a time. Implements Actor."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore()

    def follow(self, topic: ServedTopic) -> None:
        if not isinstance(topic, Topic):
            return
        topic.compaction_turn = self._turn
        if topic.policies[COMPACTION_THRESHOLD] > 0:
            topic.compaction.watch()
