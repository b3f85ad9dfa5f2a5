"""/metrics under Apache Pulsar's own names, so that its dashboards work, and a few of our own."""

from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from managed_ledger.storage.fullness import Fullness
from pybroker.admin.operation import Answer, DescribedRoute
from pybroker.admin.routing import route
from pybroker.admin.services import AdminServices
from pybroker.admin.shared_answer import Renderings, SharedAnswer
from pybroker.admin.stats.metric_names import (
    COMPACTION_METRICS,
    SUBSCRIPTION_METRICS,
    TOPIC_METRICS,
    dropped,
)
from pybroker.admin.stats.nonpersistent import nonpersistent_stats
from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.topic import PARTS_A_TURN, Stats, Wanted, topic_stats
from pybroker.base.json_schema import TEXT
from pybroker.base.metrics import CONTENT_TYPE, Exposition
from pybroker.base.runtime import Pace
from pybroker.base.version import version
from pybroker.broker.served import ServedTopic
from pybroker.broker.topic import Topic
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator

_WANTED: Final = Wanted(hashes=False)
_BROKER_SUMS: Final[Mapping[str, Callable[[Stats], float]]] = {
    "pulsar_broker_topics_count": lambda topic: 1,
    "pulsar_broker_subscriptions_count": lambda topic: len(topic["subscriptions"]),
    "pulsar_broker_producers_count": lambda topic: len(topic["publishers"]),
    "pulsar_broker_consumers_count": lambda topic: consumer_count(topic),
    "pulsar_broker_rate_in": itemgetter("msgRateIn"),
    "pulsar_broker_rate_out": itemgetter("msgRateOut"),
    "pulsar_broker_throughput_in": itemgetter("msgThroughputIn"),
    "pulsar_broker_throughput_out": itemgetter("msgThroughputOut"),
    "pulsar_broker_in_bytes_total": itemgetter("bytesInCounter"),
    "pulsar_broker_out_bytes_total": itemgetter("bytesOutCounter"),
    "pulsar_broker_storage_size": itemgetter("storageSize"),
    "pulsar_broker_storage_logical_size": itemgetter("storageSize"),
    "pulsar_broker_msg_backlog": lambda topic: backlog(topic),
    "pybroker_txn_blocked_topics": lambda topic: int(topic.get("blockedEntries", 0) > 0),
}


class MetricsRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._rates = Rates(services.clock)
        self._renderings = Renderings(self._render, services.config.metrics_cache_ms / 1000)

    def routes(self) -> list[DescribedRoute]:
        samples = Answer(TEXT, media=CONTENT_TYPE)
        return [route("GET", path, self.metrics, samples) for path in ("/metrics", "/metrics/")]

    async def metrics(self, _: Request) -> Response:
        return SharedAnswer(self._renderings, CONTENT_TYPE)

    async def _render(self) -> list[bytes]:
        pace = Pace(PARTS_A_TURN)
        await pace.turn()
        exposition = Exposition({"cluster": self._services.config.cluster_name})
        await self._add_all(exposition, pace)
        pieces = []
        for piece in exposition.pieces():
            pieces.append(piece.encode())
            await pace.step(PARTS_A_TURN)
        return pieces

    async def _add_all(self, exposition: Exposition, pace: Pace) -> None:
        services = self._services
        exposition.add("pulsar_version_info", "gauge", 1, exposition.labels(version=version()))
        exposition.add("pulsar_active_connections", "gauge", services.connections())
        lag_s = services.loop_lag_s()
        exposition.add("pybroker_loop_lag_seconds_max", "gauge", lag_s)
        add_storage(exposition, services.ledgers.fullness)
        now_ms = services.clock.now_ms()
        sums: dict[str, float] = dict.fromkeys(_BROKER_SUMS, 0)
        topics_of: Counter[str] = Counter()
        for topic in services.topics.loaded():
            stats = await topic_stats(topic, self._rates, now_ms, pace, _WANTED)
            topics_of[topic.name.namespace_name] += 1
            add_topic(exposition, topic, stats)
            for name, value_of in _BROKER_SUMS.items():
                sums[name] += value_of(stats)
            await pace.step(1 + len(stats["subscriptions"]))
        for kept_nothing in services.topics.loaded_nonpersistent():
            stats = await nonpersistent_stats(kept_nothing, self._rates, pace, _WANTED)
            topics_of[kept_nothing.name.namespace_name] += 1
            add_served(exposition, kept_nothing, stats)
            for name, value_of in _BROKER_SUMS.items():
                sums[name] += value_of(stats)
            await pace.step(1 + len(stats["subscriptions"]))
        for namespace, count in topics_of.items():
            exposition.add(
                "pulsar_topics_count", "gauge", count, exposition.labels(namespace=namespace)
            )
        for name, total in sums.items():
            exposition.add(name, "gauge", total)
        for coordinator in services.coordinators.served():
            add_coordinator(exposition, coordinator, now_ms)
            await pace.step(PARTS_A_TURN)


def add_storage(exposition: Exposition, fullness: Fullness) -> None:
    exposition.add("pybroker_storage_full", "gauge", int(fullness.is_full))
    exposition.add("pybroker_storage_refused_writes_total", "counter", fullness.refused)
    if fullness.free_bytes is not None:
        exposition.add("pybroker_storage_free_bytes", "gauge", fullness.free_bytes)


def add_topic(exposition: Exposition, topic: Topic, stats: Stats) -> None:
    namespace, name_of_topic = topic.name.namespace_name, str(topic.name)
    labels = exposition.labels(namespace=namespace, topic=name_of_topic)
    add_served(exposition, topic, stats)
    exposition.add("pybroker_txn_blocked_entries", "gauge", stats["blockedEntries"], labels)
    if (oldest := stats.get("oldestOpenTransaction")) is not None:
        age_s = oldest["ageMs"] / 1000
        exposition.add("pybroker_txn_oldest_blocking_seconds", "gauge", age_s, labels)
    if (compaction := topic.compacted) is not None:
        for name, value_of in COMPACTION_METRICS.items():
            exposition.add(name, "gauge", value_of(compaction), labels)


def add_served(exposition: Exposition, topic: ServedTopic, stats: Stats) -> None:
    namespace, name_of_topic = topic.name.namespace_name, str(topic.name)
    labels = exposition.labels(namespace=namespace, topic=name_of_topic)
    for name, kind, field in TOPIC_METRICS:
        exposition.add(name, kind, stats[field], labels)
    subscriptions = stats["subscriptions"]
    exposition.add("pulsar_subscriptions_count", "gauge", len(subscriptions), labels)
    exposition.add("pulsar_producers_count", "gauge", len(stats["publishers"]), labels)
    exposition.add("pulsar_consumers_count", "gauge", consumer_count(stats), labels)
    exposition.add("pulsar_msg_backlog", "gauge", backlog(stats), labels)
    for subscription, fields in subscriptions.items():
        labels = exposition.labels(
            namespace=namespace, topic=name_of_topic, subscription=subscription
        )
        for name, field in SUBSCRIPTION_METRICS:
            exposition.add(name, "gauge", +fields[field], labels)
        consumers = len(fields["consumers"])
        exposition.add("pulsar_subscription_consumers_count", "gauge", consumers, labels)
        if (drop_rate := dropped(fields)) is not None:
            exposition.add("pulsar_subscription_msg_drop_rate", "gauge", drop_rate, labels)


def consumer_count(topic: Stats) -> int:
    return sum(len(subscription["consumers"]) for subscription in topic["subscriptions"].values())


def backlog(topic: Stats) -> int:
    return sum(subscription["msgBacklog"] for subscription in topic["subscriptions"].values())


def add_coordinator(
    exposition: Exposition, coordinator: TransactionCoordinator, now_ms: int
) -> None:
    stats = coordinator.stats()
    labels = exposition.labels(coordinator_id=str(stats.coordinator_id))
    exposition.add("pulsar_txn_active_count", "gauge", stats.active, labels)
    exposition.add("pulsar_txn_created_count", "counter", stats.opened, labels)
    exposition.add("pulsar_txn_committed_count", "counter", stats.committed, labels)
    exposition.add("pulsar_txn_aborted_count", "counter", stats.aborted, labels)
    exposition.add("pulsar_txn_timeout_count", "counter", stats.timed_out, labels)
    oldest_ms = min((txn.opened_at_ms for txn in coordinator.live()), default=now_ms)
    age_s = max(0, now_ms - oldest_ms) / 1000
    exposition.add("pybroker_txn_oldest_open_seconds", "gauge", age_s, labels)
