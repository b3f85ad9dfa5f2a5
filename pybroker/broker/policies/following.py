"""Notifies topics of their policies: at loading, and at every change.

A change that concerns many topics reaches them a few per turn. `told` returns when it has reached
all of them, so that an administrator's answer is true.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.namespaces.tenants import Tenants
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.policies import Policies

_TOPICS_A_TURN: Final = 200
# The namespace (None: all), and the topic if the change concerns only one.
News = tuple[str | None, TopicName | None]


class Actor(Protocol):
    """Enforces some policies."""

    def follow(self, topic: ServedTopic) -> None:
        """The topic was loaded, or its `topic.policies` changed: apply them from now on."""
        ...


class LoadedTopics(Protocol):
    @property
    def tenants(self) -> Tenants: ...
    @property
    def policies(self) -> Policies: ...
    def loaded_names(self) -> list[TopicName]: ...
    def serving(self, name: TopicName) -> Topic | None: ...
    async def unload(self, name: TopicName) -> None: ...
    def loaded_of(self, names: Iterable[TopicName]) -> list[ServedTopic]: ...


class Following:
    def __init__(self, topics: LoadedTopics, actors: Sequence[Actor]) -> None:
        self._topics = topics
        self._actors = actors
        self._news: deque[News] = deque()
        self._telling = False
        self._tasks = Tasks("policies")
        topics.policies.tell(self._heard)

    def loaded(self, topic: ServedTopic) -> None:
        """Apply the current policies, including changes made while the topic was being loaded."""
        topic.policies = self._topics.policies.of(topic.name)
        for actor in self._actors:
            actor.follow(topic)
        if topic.to_be_deduplicated is not (topic.deduplication is not None):
            self._tasks.start(self._load_anew(topic), f"unloading of {topic.name}")

    async def _load_anew(self, topic: ServedTopic) -> None:
        """Deduplication can be switched on or off only when a topic is loaded."""
        if self._topics.serving(topic.name) is topic:
            await self._topics.unload(topic.name)

    def all_again(self) -> None:
        """What policies depend on has changed for all topics."""
        self._heard(None, None)

    async def told(self) -> None:
        """Returns when every loaded topic has received the changes that were durable at the
        call.
        """
        await self._tasks.ended()

    async def close(self) -> None:
        self._news.clear()
        await self._tasks.close()

    def _heard(self, namespace: str | None, topic: TopicName | None) -> None:
        self._news.append((namespace, topic))
        if not self._telling:
            self._telling = True
            self._tasks.start(self._tell(), "telling topics")

    async def _tell(self) -> None:
        pace = Pace(_TOPICS_A_TURN)
        try:
            while self._news:
                for topic in self._concerned(*self._news.popleft()):
                    if not topic.closed:
                        self.loaded(topic)
                    await pace.step()
        finally:  # in the same turn: a later change must start another task
            self._telling = False

    def _concerned(self, namespace: str | None, name: TopicName | None) -> list[ServedTopic]:
        if name is None:
            names = self._topics.loaded_names()
            return self._topics.loaded_of(n for n in names if namespace in (None, n.namespace_name))
        partitions = range(self._topics.tenants.partitions(name))
        return self._topics.loaded_of([name, *map(name.partition_at, partitions)])
