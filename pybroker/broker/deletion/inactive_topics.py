"""Deletes inactive topics, as Apache Pulsar does by default.

A topic is active while it has producers or subscriptions (or, in the mode
`delete_when_subscriptions_caught_up`, producers, consumers or a backlog). A topic that has been
inactive for the maximum inactive duration of its policy, and for the retention time, is deleted.
Only loaded topics are checked. When a topic may have become inactive, a visit is scheduled for the
time at which it may be deleted. Topics due within the same second share one visit of the
housekeeper, which handles a few per turn.

Segments of scalable topics stay with their topic.

Differs: messages of an open transaction keep a topic, and some names do (`is_kept_by_its_name`). A
topic that Kafka's clients use is never inactive, as in Kafka.
Source: Apache Pulsar, PersistentTopic.checkGC.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from managed_ledger.housekeeper import VISITS_A_TURN, Housekeeper
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import SEGMENT, is_kept_by_its_name
from pybroker.base.runtime import Tasks
from pybroker.broker.client_topics import ServedTopic, used_by_kafka
from pybroker.broker.policies.shapes import CAUGHT_UP
from pybroker.broker.policies.table import INACTIVE_TOPICS
from pybroker.logs import audit

_TOGETHER_S: Final = 1.0


class InactiveTopics:
    def __init__(
        self,
        config: BrokerConfig,
        housekeeper: Housekeeper,
        delete: Callable[[ServedTopic], Coroutine[Any, Any, None]],
    ) -> None:
        self._frequency_s = config.broker_delete_inactive_topics_frequency_seconds
        self._housekeeper = housekeeper
        self._delete = delete
        self._watched: dict[ServedTopic, int] = {}  # the second of the scheduled visit
        # By the second of the visit. Not plain dicts: getting the first item of one walks over all
        # items removed before it.
        self._turns: dict[int, OrderedDict[ServedTopic, None]] = {}
        self._on_deserted = self._watch  # one bound method for all topics
        self._tasks = Tasks("deletion of inactive topics")

    def follow(self, topic: ServedTopic) -> None:
        """Call when the topic has been loaded, and when its policies have changed: it may now be
        due sooner.
        """
        if topic.name.system or topic.name.domain == SEGMENT or is_kept_by_its_name(topic.name):
            return
        if topic.on_deserted is not self._on_deserted:
            self._housekeeper.start()  # perhaps no ledger has been opened yet
            topic.on_deserted = self._on_deserted
            topic.deserted()
        else:
            self.forget(topic)  # the scheduled visit follows the old policy
            self._watch(topic)

    def forget(self, topic: ServedTopic) -> None:
        """Cancels the topic's scheduled visit."""
        if (second := self._watched.pop(topic, None)) is not None:
            self._turns[second].pop(topic, None)

    async def close(self) -> None:
        self._turns.clear()
        self._watched.clear()
        await self._tasks.close()

    def _watch(self, topic: ServedTopic) -> None:
        if topic in self._watched or not topic.policies[INACTIVE_TOPICS]["deleteWhileInactive"]:
            return
        if _caught_up_mode(topic) or not self._is_kept(topic):
            idle_s = asyncio.get_running_loop().time() - topic.deserted_at_s
            self._visit_in(topic, max(0.0, self._needed_s(topic) - idle_s))

    def _visit_in(self, topic: ServedTopic, delay_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        second = math.ceil((now_s + delay_s) / _TOGETHER_S)
        if second not in self._turns:
            self._turns[second] = OrderedDict()
            self._turn_in(second * _TOGETHER_S - now_s, second)
        self._turns[second][topic] = None
        self._watched[topic] = second

    def _turn_in(self, delay_s: float, second: int) -> None:
        self._housekeeper.visit_in(delay_s, partial(self._turn, second))

    def _turn(self, second: int) -> None:
        if (topics := self._turns.get(second)) is None:
            return  # `close` was called
        try:
            for _ in range(min(VISITS_A_TURN, len(topics))):
                topic, _ = topics.popitem(last=False)
                self._visited(topic)
        finally:
            if topics:
                self._turn_in(0, second)
            else:
                del self._turns[second]

    def _visited(self, topic: ServedTopic) -> None:
        del self._watched[topic]
        if topic.closed or not topic.policies[INACTIVE_TOPICS]["deleteWhileInactive"]:
            return
        if self._is_kept(topic):
            if _caught_up_mode(topic):
                topic.deserted()  # counts as active until now
            return
        idle_s = asyncio.get_running_loop().time() - topic.deserted_at_s
        needed_s = self._needed_s(topic)
        if idle_s < needed_s:
            self._visit_in(topic, needed_s - idle_s)
        elif topic.busy:
            self._visit_in(topic, self._frequency_s)
        elif topic.retention_ms >= 0:
            self._tasks.start(self._delete_still_inactive(topic), f"deletion of {topic.name}")

    async def _delete_still_inactive(self, topic: ServedTopic) -> None:
        """Checks again, because the topic's use and policies may have changed in between."""
        if topic.closed or topic.busy or self._is_kept(topic) or topic.retention_ms < 0:
            return
        idle_s = asyncio.get_running_loop().time() - topic.deserted_at_s
        goes = topic.policies[INACTIVE_TOPICS]["deleteWhileInactive"]
        if goes and idle_s >= self._needed_s(topic):
            why = f"it was unused for {idle_s:.0f} s"
            with audit.acting_as(audit.Actor(audit.BROKER.who, why=why)):
                await self._delete(topic)

    def _is_kept(self, topic: ServedTopic) -> bool:
        if used_by_kafka(topic):
            return True
        if _caught_up_mode(topic):
            return topic.in_use or any(s.backlog for s in topic.subscriptions.values())
        return len(topic.producers) > 0 or bool(topic.subscriptions)

    def _needed_s(self, topic: ServedTopic) -> float:
        """How long the topic must have been inactive."""
        inactive_s: int = topic.policies[INACTIVE_TOPICS]["maxInactiveDurationSeconds"]
        return max(inactive_s, topic.retention_ms / 1000)


def _caught_up_mode(topic: ServedTopic) -> bool:
    return bool(topic.policies[INACTIVE_TOPICS]["inactiveTopicDeleteMode"] == CAUGHT_UP)
