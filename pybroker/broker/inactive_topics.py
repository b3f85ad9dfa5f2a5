"""Topics that nobody uses are deleted, as Apache Pulsar does by default.

A topic is active while it has producers or subscriptions (or, in the mode
`delete_when_subscriptions_caught_up`, producers, consumers or a backlog). One that has not been
active for the maximum inactive duration, and for the retention time, goes. Only loaded topics are
looked at; each is visited when it may have become inactive, and not before it may go.

Differs: what an open transaction wrote keeps a topic.
Source: Apache Pulsar, PersistentTopic.checkGC.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from managed_ledger.housekeeper import Housekeeper, Visit
from pybroker.broker.topic import Topic
from pybroker.config import BrokerConfig
from pybroker.names import SYSTEM_NAMESPACE
from pybroker.runtime import Tasks

log = logging.getLogger(__name__)

CAUGHT_UP: Final = "delete_when_subscriptions_caught_up"


class InactiveTopics:
    def __init__(
        self,
        config: BrokerConfig,
        housekeeper: Housekeeper,
        delete: Callable[[Topic], Coroutine[Any, Any, None]],
    ) -> None:
        self._enabled = config.broker_delete_inactive_topics_enabled
        self._caught_up_mode = config.broker_delete_inactive_topics_mode == CAUGHT_UP
        self._frequency_s = config.broker_delete_inactive_topics_frequency_seconds
        self._inactive_s = (
            config.broker_delete_inactive_topics_max_inactive_duration_seconds or self._frequency_s
        )
        self._housekeeper = housekeeper
        self._delete = delete
        self._visits: dict[Topic, Visit] = {}
        self._tasks = Tasks("deletion of inactive topics")

    def loaded(self, topic: Topic) -> None:
        """From now on it is watched."""
        if self._enabled and topic.name.namespace_name != SYSTEM_NAMESPACE:
            topic.on_deserted = self._watch
            topic.deserted()

    async def close(self) -> None:
        for visit in self._visits.values():
            visit.cancel()
        self._visits.clear()
        await self._tasks.close()

    def _watch(self, topic: Topic) -> None:
        if topic not in self._visits and (self._caught_up_mode or not self._is_kept(topic)):
            self._visit_in(topic, self._needed_s(topic))

    def _visit_in(self, topic: Topic, delay_s: float) -> None:
        self._visits[topic] = self._housekeeper.visit_in(delay_s, partial(self._visited, topic))

    def _visited(self, topic: Topic) -> None:
        del self._visits[topic]
        if topic.closed:
            return
        if self._is_kept(topic):
            if self._caught_up_mode:
                topic.deserted()  # active until now, if not for long
            return
        idle_s = asyncio.get_running_loop().time() - topic.deserted_at_s
        needed_s = self._needed_s(topic)
        if idle_s < needed_s:
            self._visit_in(topic, needed_s - idle_s)
        elif topic.busy:
            self._visit_in(topic, self._frequency_s)
        elif topic.ledger.config.retention.time_ms >= 0:
            log.info("%s is deleted: nobody used it for %d seconds", topic.name, idle_s)
            self._tasks.start(self._delete_still_inactive(topic), f"deletion of {topic.name}")

    async def _delete_still_inactive(self, topic: Topic) -> None:
        if not (topic.closed or topic.busy or self._is_kept(topic)):
            await self._delete(topic)

    def _is_kept(self, topic: Topic) -> bool:
        if self._caught_up_mode:
            return topic.in_use or any(s.backlog for s in topic.subscriptions.values())
        return len(topic.producers) > 0 or bool(topic.subscriptions)

    def _needed_s(self, topic: Topic) -> float:
        """How long it has to be inactive."""
        return max(self._inactive_s, topic.ledger.config.retention.time_ms / 1000)
