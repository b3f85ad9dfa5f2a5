"""Metrics of the whole broker: sums over its topics, connections, lookups, topic loads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add
from typing import Final

from pybroker.admin.metrics.distributions import add_summary, quantile
from pybroker.admin.metrics.rows import rows
from pybroker.admin.metrics.windows import Windows
from pybroker.admin.services import AdminServices
from pybroker.admin.stats.sums import Share
from pybroker.base.metrics import Exposition
from pybroker.base.names import SYSTEM_NAMESPACE
from pybroker.base.version import version
from pybroker.broker.policies.shapes import AGE, SIZE

_SUMS: Final = rows(
    "gauge",
    "",
    """
pulsar_broker_topics_count | sum | Topics in memory.
pulsar_broker_subscriptions_count | sum | Subscriptions of all topics.
pulsar_broker_producers_count | sum | Connected producers.
pulsar_broker_consumers_count | sum | Connected consumers.
pulsar_broker_rate_in | sum | Messages published per second.
pulsar_broker_rate_out | sum | Messages sent to consumers per second.
pulsar_broker_throughput_in | sum | Bytes published per second.
pulsar_broker_throughput_out | sum | Bytes sent to consumers per second.
pulsar_broker_storage_size | sum | Size of the entries in bytes.
pulsar_broker_storage_logical_size | sum | Size of the entries in bytes, without replicas; pybroker has none.
pulsar_broker_msg_backlog | sum | Unacknowledged entries of all subscriptions.
pulsar_broker_storage_write_rate | sum | Entries written per second.
pulsar_broker_storage_read_rate | sum | Entries read per second.
pulsar_broker_storage_read_cache_misses_rate | sum | Entries read from the disk per second.
pybroker_txn_blocked_topics | sum | Topics where an open transaction blocks readers.
""",
)
_SUMMED: Final[Mapping[str, str]] = {
    "pulsar_broker_topics_count": "topics",
    "pulsar_broker_subscriptions_count": "subscriptions",
    "pulsar_broker_producers_count": "producers",
    "pulsar_broker_consumers_count": "consumers",
    "pulsar_broker_rate_in": "messages_in_rate",
    "pulsar_broker_rate_out": "messages_out_rate",
    "pulsar_broker_throughput_in": "bytes_in_rate",
    "pulsar_broker_throughput_out": "bytes_out_rate",
    "pulsar_broker_storage_size": "stored_bytes",
    "pulsar_broker_storage_logical_size": "stored_bytes",
    "pulsar_broker_msg_backlog": "backlog",
    "pybroker_txn_blocked_topics": "blocked",
}
_BYTES: Final = (
    *rows(
        "gauge",
        "system_topic",
        """
pulsar_broker_in_bytes_total | sum | Bytes published to the topics in memory; the broker's own topics are separate.
""",
    ),
    *rows(
        "gauge",
        "system_subscription",
        """
pulsar_broker_out_bytes_total | sum | Bytes sent to the connected consumers.
""",
    ),
)
_CONNECTIONS: Final = rows(
    "gauge",
    "broker metric",
    """
pulsar_active_connections | server | Connections of the binary protocol.
pulsar_connection_created_total_count | server | Connections accepted since the start.
pulsar_connection_create_success_count | server | Connections that have logged in since the start.
pulsar_connection_create_fail_count | server | Connections refused, or closed before they had logged in, since the start.
pulsar_connection_closed_total_count | server | Connections closed since the start.
pulsar_health | health check | 1: the last health check stored a message and read it back; 0: it could not.
pulsar_topic_load_rate_s | topic loads | Topics loaded per second in the last minute.
pulsar_topic_load_failed_count | topic loads | Topics that could not be loaded, since the start.
pulsar_topic_load_time_mean_ms | topic loads | Mean time to load a topic in the last minute.
pulsar_topic_load_time_median_ms | topic loads | Median time to load a topic in the last minute.
pulsar_topic_load_time_75percentile_ms | topic loads | 75th percentile of the time to load a topic in the last minute.
pulsar_topic_load_time_95percentile_ms | topic loads | 95th percentile of the time to load a topic in the last minute.
pulsar_topic_load_time_99_percentile_ms | topic loads | 99th percentile of the time to load a topic in the last minute.
pulsar_topic_load_time_99_9_percentile_ms | topic loads | 99.9th percentile of the time to load a topic in the last minute.
pulsar_topic_load_time_99_99_percentile_ms | topic loads | 99.99th percentile of the time to load a topic in the last minute.
""",
)
_PLAIN: Final = (
    *rows(
        "gauge",
        "",
        """
pulsar_broker_throttled_connections | server | Connections that the broker does not read because their producers are too fast.
pulsar_broker_pending_bytes_to_dispatch | server | Bytes waiting in the send buffers of connections.
pulsar_broker_topic_load_pending_requests | topic loads | Topics that are being loaded.
pulsar_broker_lookup_pending_requests | lookups | Lookups that are not answered yet.
pybroker_loop_lag_seconds_max | event loop | Longest delay of the event loop since the last scrape of the same kind (with topics, or without).
pybroker_metrics_render_seconds | this scrape | Duration of rendering the previous scrape.
""",
    ),
    *rows(
        "counter",
        "",
        """
pulsar_broker_lookup_answers_total | lookups | Lookups answered with the broker that serves the topic.
pulsar_broker_lookup_redirects_total | lookups | Lookups sent on to the broker that should take the topic.
pulsar_broker_lookup_failures_total | lookups | Lookups that failed.
topic_load_failed_total | topic loads | Topics that could not be loaded.
""",
    ),
    *rows(
        "gauge",
        "quota_type",
        """
pulsar_broker_storage_backlog_quota_exceeded_evictions_total | housekeeping | Evictions of messages from backlogs beyond their quota, by size or by time (of the oldest message), since the start.
""",
    ),
    *rows(
        "counter",
        "limit",
        """
pybroker_limit_refusals_total | limits | Requests refused because of a limit, by the limit's name in broker.conf or its policy.
""",
    ),
    *rows(
        "gauge",
        "version",
        """
pulsar_version_info | version | 1; the version is a label.
""",
    ),
)
_SUMMARIES: Final = (
    *rows(
        "summary",
        "quantile",
        """
pulsar_broker_publish_latency | run by run | Milliseconds from the arrival of an entry until its receipt.
pulsar_instance_publish_latency | run by run | Milliseconds from the arrival of an entry until its receipt; older dashboards use this name.
pulsar_broker_lookup | lookups | Milliseconds of a lookup.
pulsar_topic_load_times | topic loads | Milliseconds of loading a topic.
topic_load_times | topic loads | Milliseconds of loading a topic; older dashboards use this name.
""",
    ),
    *rows(
        "summary",
        "namespace quantile",
        """
pulsar_schema_get_ops_latency | schemas | Milliseconds of reading a schema for a client.
""",
    ),
)
ROWS: Final = (*_SUMS, *_BYTES, *_CONNECTIONS, *_PLAIN, *_SUMMARIES)

_PUBLISH_SHARES: Final = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
_LOAD_SHARES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999)
_LOOKUP_SHARES: Final = (0.5, 0.99, 0.999, 1.0)
_LOAD_PERCENTILES: Final = {
    "median": 0.5,
    "75percentile": 0.75,
    "95percentile": 0.95,
    "99_percentile": 0.99,
    "99_9_percentile": 0.999,
    "99_99_percentile": 0.9999,
}


class BrokerSums:
    """Sums over the topics of one scrape, including topics without samples of their own."""

    def __init__(self) -> None:
        self._sums: Sequence[float] = (0,) * len(Share._fields)
        self._system_bytes_in = 0
        self._topics: Counter[str] = Counter()

    def add(self, namespace: str, share: Share) -> None:
        self._topics[namespace] += 1
        self._sums = tuple(map(add, self._sums, share))
        if namespace == SYSTEM_NAMESPACE:
            self._system_bytes_in += share.bytes_in

    def show(self, exposition: Exposition, storage: Mapping[str, float]) -> None:
        """Adds the samples. `storage` has the sums of `pulsar_storage_…_rate`."""
        for namespace, count in self._topics.items():
            exposition.add("pulsar_topics_count", count, exposition.labels(namespace=namespace))
        sums = dict(zip(Share._fields, self._sums, strict=True))
        for name, field in _SUMMED.items():
            exposition.add(name, sums[field])
        for name, total in storage.items():
            exposition.add(name.replace("pulsar_", "pulsar_broker_"), total)
        own = self._system_bytes_in
        for system, total in (("true", own), ("false", sums["bytes_in"] - own)):
            labels = exposition.labels(system_topic=system)
            exposition.add("pulsar_broker_in_bytes_total", total, labels)
        labels = exposition.labels(system_subscription="false")
        exposition.add("pulsar_broker_out_bytes_total", sums["bytes_out"], labels)


def add_broker(
    exposition: Exposition, services: AdminServices, windows: Windows, loop_lag_s: float
) -> None:
    exposition.add("pulsar_version_info", 1, exposition.labels(version=version()))
    exposition.add("pybroker_loop_lag_seconds_max", loop_lag_s)
    _add_connections(exposition, services)
    _add_lookups(exposition, services, windows)
    _add_loads(exposition, services, windows)
    published = services.topics.measures.publish_ms
    names = ("pulsar_broker_publish_latency", "pulsar_instance_publish_latency")
    add_summary(exposition, windows, names, published, _PUBLISH_SHARES)
    for kind, quota_type in ((SIZE, "size"), (AGE, "time")):
        labels = exposition.labels(quota_type=quota_type)
        evictions = services.topics.measures.evictions[kind]
        exposition.add(
            "pulsar_broker_storage_backlog_quota_exceeded_evictions_total", evictions, labels
        )
    for limit, refused in services.counts.refused.items():
        labels = exposition.labels(limit=limit)
        exposition.add("pybroker_limit_refusals_total", refused, labels)


def _host(services: AdminServices) -> str:
    return services.broker_id.rpartition(":")[0]


def _add_connections(exposition: Exposition, services: AdminServices) -> None:
    counts = services.counts
    labels = exposition.labels(broker=_host(services), metric="broker_connection")
    exposition.add("pulsar_active_connections", services.connections(), labels)
    exposition.add("pulsar_connection_created_total_count", counts.connections_created, labels)
    exposition.add("pulsar_connection_create_success_count", counts.connections_logged_in, labels)
    exposition.add("pulsar_connection_create_fail_count", counts.connections_failed, labels)
    exposition.add("pulsar_connection_closed_total_count", counts.connections_closed, labels)
    exposition.add("pulsar_broker_throttled_connections", services.throttled_connections())
    exposition.add("pulsar_broker_pending_bytes_to_dispatch", services.undelivered_bytes())
    if (is_well := services.health.last_ok) is not None:
        labels = exposition.labels(broker=_host(services), metric="broker_health")
        exposition.add("pulsar_health", int(is_well), labels)


def _add_lookups(exposition: Exposition, services: AdminServices, windows: Windows) -> None:
    counts = services.counts
    redirected = counts.lookups_redirected
    exposition.add("pulsar_broker_lookup_answers_total", counts.lookup_ms.count - redirected)
    exposition.add("pulsar_broker_lookup_redirects_total", redirected)
    exposition.add("pulsar_broker_lookup_pending_requests", counts.lookups_pending)
    exposition.add("pulsar_broker_lookup_failures_total", counts.lookups_failed)
    names = ("pulsar_broker_lookup",)
    add_summary(exposition, windows, names, counts.lookup_ms, _LOOKUP_SHARES)
    for namespace, histogram in counts.schema_get_ms.items():
        names = ("pulsar_schema_get_ops_latency",)
        add_summary(exposition, windows, names, histogram, _LOOKUP_SHARES, namespace=namespace)


def _add_loads(exposition: Exposition, services: AdminServices, windows: Windows) -> None:
    measures = services.topics.measures
    loads, failed = measures.load_ms, measures.failed_loads
    exposition.add("topic_load_failed_total", failed)
    exposition.add("pulsar_broker_topic_load_pending_requests", measures.loading)
    names = ("pulsar_topic_load_times", "topic_load_times")
    add_summary(exposition, windows, names, loads, _LOAD_SHARES)
    labels = exposition.labels(broker=_host(services), metric="topic_load")
    exposition.add("pulsar_topic_load_failed_count", failed, labels)
    counts, (total_ms,) = windows.of(names[0], loads.counts), windows.of("load ms", (loads.total,))
    exposition.add("pulsar_topic_load_rate_s", sum(counts) / 60, labels)
    if any(counts):
        exposition.add("pulsar_topic_load_time_mean_ms", total_ms / sum(counts), labels)
        for name, share in _LOAD_PERCENTILES.items():
            value = quantile(loads.bounds, counts, share)
            exposition.add(f"pulsar_topic_load_time_{name}_ms", value, labels)
