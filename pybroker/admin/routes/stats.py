"""Statistics of topics, partitioned or not."""

from contextlib import suppress
from typing import Any

from starlette.requests import Request

from pybroker.admin.finding import each_served, partitioned, served
from pybroker.admin.http.hanging_up import unless_gone
from pybroker.admin.operation import DescribedRoute, flags
from pybroker.admin.routing import TOPIC, flag, partitioned_metadata, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import ledgers
from pybroker.admin.shapes import topic_stats as shapes
from pybroker.admin.stats.ledger import internal_stats, no_internal_stats
from pybroker.admin.stats.nonpersistent import nonpersistent_stats
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.topic import PARTS_A_TURN, Stats, Wanted, merged_stats, topic_stats
from pybroker.base.errors import PersistenceError, ServiceNotReady
from pybroker.base.json_schema import any_of
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.nonpersistent.topic import NonPersistentTopic
from pybroker.broker.persistent.topic import Topic


class StatsRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._clock = services.clock
        self._broker_id = services.broker_id
        self._rates = Rates(services.clock)

    def routes(self) -> list[DescribedRoute]:
        wanted = flags(
            "getPreciseBacklog",
            "subscriptionBacklogSize",
            "getEarliestTimeInBacklog",
            "excludePublishers",
            "excludeConsumers",
        )
        one = any_of(shapes.TOPIC, shapes.NON_PERSISTENT_TOPIC)
        all_parts = any_of(shapes.PARTITIONED_TOPIC, shapes.PARTITIONED_NON_PERSISTENT_TOPIC)
        return [
            route("GET", f"{TOPIC}/stats", self.stats, one, query=wanted),
            route(
                "GET",
                f"{TOPIC}/internalStats",
                self.internal,
                ledgers.INTERNAL_STATS,
                query=flags("metadata"),
            ),
            route(
                "GET",
                f"{TOPIC}/partitioned-stats",
                self.partitioned,
                all_parts,
                query=wanted | flags("perPartition"),
            ),
            route(
                "GET",
                f"{TOPIC}/partitioned-internalStats",
                self.partitioned_internal,
                ledgers.PARTITIONED_INTERNAL_STATS,
            ),
        ]

    async def stats(self, request: Request) -> dict[str, Any]:
        topic = await self._topic(topic_of(request))
        return await self._stats(topic, Pace(PARTS_A_TURN), _wanted(request))

    async def internal(self, request: Request) -> dict[str, Any]:
        return await _internal(await self._topic(topic_of(request)))

    async def partitioned(self, request: Request) -> dict[str, Any]:
        """The sums over the partitions, and each partition's stats unless ?perPartition=false."""
        return await unless_gone(request.receive, self._partitioned(request))

    async def _partitioned(self, request: Request) -> dict[str, Any]:
        name = topic_of(request)
        pace = Pace(PARTS_A_TURN)
        by_partition: dict[str, Stats] = {}
        answer: Stats = {}
        for topic in await self._partitions(name):
            stats = by_partition[str(topic.name)] = await self._stats(topic, pace, _wanted(request))
            answer = merged_stats([answer, stats])
        answer["metadata"] = self._metadata(name)
        answer["partitions"] = by_partition if flag(request, "perPartition", default=True) else {}
        return answer

    async def partitioned_internal(self, request: Request) -> dict[str, Any]:
        return await unless_gone(request.receive, self._partitioned_internal(request))

    async def _partitioned_internal(self, request: Request) -> dict[str, Any]:
        name = topic_of(request)
        pace = Pace(PARTS_A_TURN)
        by_partition: dict[str, Stats] = {}
        for topic in await self._partitions(name):
            by_partition[str(topic.name)] = await _internal(topic)
            await pace.step()
        return {"metadata": self._metadata(name), "partitions": by_partition}

    def _metadata(self, name: TopicName) -> dict[str, Any]:
        tenants = self._topics.tenants
        return partitioned_metadata(tenants.partitions(name), tenants.partitioned_properties(name))

    async def _stats(self, topic: ServedTopic, pace: Pace, wanted: Wanted) -> Stats:
        if isinstance(topic, NonPersistentTopic):
            stats = await nonpersistent_stats(topic, self._rates, pace, wanted)
        else:
            await replayed(topic)
            stats = await topic_stats(topic, self._rates, self._clock.now_ms(), pace, wanted)
        return stats | {"ownerBroker": self._broker_id}

    async def _topic(self, name: TopicName) -> ServedTopic:
        hint = "; it is partitioned: use partitioned-stats"
        return await served(
            self._topics, name, hint if self._topics.tenants.partitions(name) else ""
        )

    async def _partitions(self, name: TopicName) -> list[ServedTopic]:
        partitioned(self._topics, name)
        return [topic async for topic in each_served(self._topics, name)]


async def _internal(topic: ServedTopic) -> Stats:
    if isinstance(topic, NonPersistentTopic):
        return no_internal_stats()
    await replayed(topic)
    return internal_stats(topic)


async def replayed(topic: Topic) -> None:
    """Replays pending acknowledgements, except where they cannot be read now."""
    for subscription in list(topic.subscriptions.values()):
        with suppress(PersistenceError, ServiceNotReady):
            await subscription.replayed()


def _wanted(request: Request) -> Wanted:
    """The request's parameters. Backlogs are always precise, regardless of getPreciseBacklog."""
    return Wanted(
        publishers=not flag(request, "excludePublishers"),
        consumers=not flag(request, "excludeConsumers"),
        backlog_size=flag(request, "subscriptionBacklogSize", default=True),
        earliest_time=flag(request, "getEarliestTimeInBacklog"),
    )
