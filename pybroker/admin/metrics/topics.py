"""Metrics of topics and subscriptions: fields of their stats under Apache Pulsar's names, and
metrics of compactions and open transactions.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pybroker.admin.metrics.rows import rows
from pybroker.admin.stats.topic import Stats
from pybroker.base.metrics import Exposition
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.compaction.compaction import Compaction
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.subscription import Subscription

_OF_TOPIC: Final = "namespace topic"
_OF_SUBSCRIPTION: Final = "namespace topic subscription"

# The source is the field of the topic's stats.
TOPIC_GAUGES: Final = rows(
    "gauge",
    _OF_TOPIC,
    """
pulsar_rate_in | msgRateIn | Messages published per second.
pulsar_rate_out | msgRateOut | Messages sent to consumers per second.
pulsar_throughput_in | msgThroughputIn | Bytes published per second.
pulsar_throughput_out | msgThroughputOut | Bytes sent to consumers per second.
pulsar_average_msg_size | averageMsgSize | Average message size in bytes since the topic was loaded.
pulsar_storage_size | storageSize | Size of the topic's entries in bytes.
pulsar_storage_logical_size | storageSize | Size of the topic's entries in bytes, without replicas; pybroker has none.
pulsar_storage_backlog_size | backlogSize | Backlog of the slowest subscription in bytes.
pulsar_storage_backlog_quota_limit | backlogQuotaLimitSize | Backlog quota in bytes; -1: no limit.
pulsar_storage_backlog_quota_limit_time | backlogQuotaLimitTime | Backlog quota in seconds, by the oldest message; -1: no limit.
pulsar_delayed_message_index_size_bytes | delayedMessageIndexSizeInBytes | Memory of the index of delayed messages in bytes.
pulsar_publish_rate_limit_times | publishRateLimitedTimes | Times that producers waited for the publish rate.
pulsar_txn_tb_active_total | ongoingTxnCount | Open transactions that have written to the topic.
""",
)
TOPIC_COUNTERS: Final = rows(
    "counter",
    _OF_TOPIC,
    """
pulsar_in_messages_total | msgInCounter | Messages published since the topic was loaded.
pulsar_in_bytes_total | bytesInCounter | Bytes published since the topic was loaded.
pulsar_txn_tb_committed_total | committedTxnCount | Transactions that committed on the topic since it was loaded.
pulsar_txn_tb_aborted_total | abortedTxnCount | Transactions that aborted on the topic since it was loaded.
""",
)
# The source is the field of the subscription's stats.
SUBSCRIPTION_GAUGES: Final = rows(
    "gauge",
    _OF_SUBSCRIPTION,
    """
pulsar_subscription_back_log | msgBacklog | Unacknowledged entries.
pulsar_subscription_back_log_no_delayed | msgBacklogNoDelayed | Unacknowledged entries that are not delayed.
pulsar_subscription_delayed | msgDelayed | Delayed messages that are not due yet.
pulsar_subscription_delayed_message_index_size_bytes | delayedMessageIndexSizeInBytes | Memory of the index of the subscription's delayed messages in bytes.
pulsar_subscription_in_replay | msgInReplay | Entries that wait for redelivery.
pulsar_subscription_msg_rate_out | msgRateOut | Messages sent to consumers per second.
pulsar_subscription_msg_ack_rate | messageAckRate | Messages acknowledged per second.
pulsar_subscription_msg_rate_redeliver | msgRateRedeliver | Messages redelivered per second.
pulsar_subscription_msg_rate_expired | msgRateExpired | Entries that expired per second.
pulsar_subscription_msg_throughput_out | msgThroughputOut | Bytes sent to consumers per second.
pulsar_subscription_unacked_messages | unackedMessages | Messages that consumers have received and not acknowledged.
pulsar_subscription_blocked_on_unacked_messages | blockedSubscriptionOnUnackedMsgs | 1: a consumer has too many unacknowledged messages.
pulsar_subscription_last_expire_timestamp | lastExpireTimestamp | Time of the last expiry, ms since 1970; 0: never.
pulsar_subscription_last_acked_timestamp | lastAckedTimestamp | Time of the last acknowledgement, ms since 1970; 0: never.
pulsar_subscription_last_consumed_timestamp | lastConsumedTimestamp | Time of the last message sent, ms since 1970; 0: never.
pulsar_subscription_last_consumed_flow_timestamp | lastConsumedFlowTimestamp | Time of the last flow permits from a consumer, ms since 1970; 0: never.
pulsar_subscription_last_mark_delete_advanced_timestamp | lastMarkDeleteAdvancedTimestamp | Time when the mark-delete position last moved, ms since 1970; 0: never.
pulsar_subscription_total_msg_expired | totalMsgExpired | Entries that expired.
pulsar_out_messages_total | msgOutCounter | Messages sent to the connected consumers.
pulsar_out_bytes_total | bytesOutCounter | Bytes sent to the connected consumers.
""",
)
_THROTTLED: Final = rows(
    "gauge",
    f"{_OF_SUBSCRIPTION} reason",
    """
pulsar_subscription_dispatch_throttled_msg_events | dispatchThrottledMsgEventsBy… | Times that dispatch waited for a message rate of the subscription or the topic.
pulsar_subscription_dispatch_throttled_bytes_events | dispatchThrottledBytesEventsBy… | Times that dispatch waited for a byte rate of the subscription or the topic.
""",
)
_COUNTED: Final = (
    *rows(
        "gauge",
        _OF_TOPIC,
        """
pulsar_subscriptions_count | subscriptions | Subscriptions of the topic.
pulsar_producers_count | publishers | Connected producers.
pulsar_consumers_count | consumers | Connected consumers.
pulsar_msg_backlog | msgBacklog | Unacknowledged entries of all subscriptions.
pybroker_txn_blocked_entries | blockedEntries | Entries that readers cannot see until a transaction ends.
pybroker_txn_oldest_blocking_seconds | oldestOpenTransaction | Age of the oldest transaction that blocks readers.
pybroker_txn_held_messages | held contents | Messages in the topic from open transactions.
pybroker_txn_held_bytes | held contents | Bytes in the topic from open transactions.
""",
    ),
    *rows(
        "gauge",
        _OF_SUBSCRIPTION,
        """
pulsar_subscription_consumers_count | consumers | Connected consumers.
pulsar_subscription_msg_drop_rate | msgDropRate | Messages of non-persistent topics dropped per second because no consumer had room.
""",
    ),
    *rows(
        "gauge",
        "namespace",
        """
pulsar_topics_count | topics in memory | Topics of the namespace that are in memory.
""",
    ),
)
# Counts cover the compactions since the topic was loaded. The compacted log may be older.
COMPACTION: Final = rows(
    "gauge",
    _OF_TOPIC,
    """
pulsar_compaction_removed_event_count | compaction | Messages removed by compactions.
pulsar_compaction_succeed_count | compaction | Compactions that succeeded.
pulsar_compaction_failed_count | compaction | Compactions that failed.
pulsar_compaction_duration_time_in_mills | compaction | Duration of the last compaction in milliseconds.
pulsar_compaction_read_throughput | compaction | Bytes that the last compaction read per second.
pulsar_compaction_write_throughput | compaction | Bytes that the last compaction wrote per second.
pulsar_compaction_compacted_entries_count | compaction | Entries of the compacted log.
pulsar_compaction_compacted_entries_size | compaction | Bytes in the compacted log.
""",
)
ROWS: Final = (
    *TOPIC_GAUGES,
    *TOPIC_COUNTERS,
    *SUBSCRIPTION_GAUGES,
    *_THROTTLED,
    *_COUNTED,
    *COMPACTION,
)
_COMPACTION_VALUES: Final[Mapping[str, Callable[[Compaction], float]]] = {
    "pulsar_compaction_removed_event_count": lambda c: c.results.left_out_in_all,
    "pulsar_compaction_succeed_count": lambda c: c.results.succeeded,
    "pulsar_compaction_failed_count": lambda c: c.results.failed,
    "pulsar_compaction_duration_time_in_mills": lambda c: c.results.duration_ms,
    "pulsar_compaction_read_throughput": lambda c: _per_s(c.results.read_bytes, c),
    "pulsar_compaction_write_throughput": lambda c: _per_s(c.kept_size[1], c),
    "pulsar_compaction_compacted_entries_count": lambda c: c.kept_size[0],
    "pulsar_compaction_compacted_entries_size": lambda c: c.kept_size[1],
}


def _per_s(size_bytes: int, compaction: Compaction) -> float:
    """The rate of the last compaction, which may have taken less than a millisecond."""
    results = compaction.results
    return 1000 * size_bytes / max(1, results.duration_ms) if results.succeeded else 0.0


def add_topic(exposition: Exposition, topic: Topic, stats: Stats) -> None:
    labels = exposition.labels(namespace=topic.name.namespace_name, topic=str(topic.name))
    add_served(exposition, topic, stats)
    exposition.add("pybroker_txn_blocked_entries", stats["blockedEntries"], labels)
    if (oldest := stats.get("oldestOpenTransaction")) is not None:
        exposition.add("pybroker_txn_oldest_blocking_seconds", oldest["ageMs"] / 1000, labels)
    if topic.buffer.has_open:
        held = topic.buffer.contents.total
        exposition.add("pybroker_txn_held_messages", held.messages, labels)
        exposition.add("pybroker_txn_held_bytes", held.size_bytes, labels)
    for subscription in topic.each_subscription():
        _add_throttled(exposition, topic, subscription)
    if (compaction := topic.compacted) is not None:
        for name, value_of in _COMPACTION_VALUES.items():
            exposition.add(name, value_of(compaction), labels)


def add_served(exposition: Exposition, topic: ServedTopic, stats: Stats) -> None:
    namespace, name = topic.name.namespace_name, str(topic.name)
    labels = exposition.labels(namespace=namespace, topic=name)
    for metric in (*TOPIC_GAUGES, *TOPIC_COUNTERS):
        exposition.add(metric.name, stats[metric.source], labels)
    subscriptions = stats["subscriptions"]
    exposition.add("pulsar_subscriptions_count", len(subscriptions), labels)
    exposition.add("pulsar_producers_count", len(stats["publishers"]), labels)
    exposition.add("pulsar_consumers_count", consumer_count(stats), labels)
    exposition.add("pulsar_msg_backlog", backlog(stats), labels)
    for subscription, fields in subscriptions.items():
        names = {"namespace": namespace, "topic": name, "subscription": subscription}
        _add_subscription(exposition, names, fields)


def _add_subscription(exposition: Exposition, names: dict[str, str], fields: Stats) -> None:
    labels = exposition.labels(**names)
    for metric in SUBSCRIPTION_GAUGES:
        exposition.add(metric.name, +fields[metric.source], labels)
    exposition.add("pulsar_subscription_consumers_count", len(fields["consumers"]), labels)
    if (drop_rate := dropped(fields)) is not None:
        exposition.add("pulsar_subscription_msg_drop_rate", drop_rate, labels)


def _add_throttled(exposition: Exposition, topic: Topic, subscription: Subscription) -> None:
    """Adds nothing if no dispatch rate applies."""
    if subscription.dispatch.pace is None:
        return
    held_back = subscription.dispatch.pace.held_back
    by_own = held_back.messages_by_own, held_back.bytes_by_own
    by_topic = held_back.messages_by_topic, held_back.bytes_by_topic
    for reason, events in (("subscription", by_own), ("topic", by_topic)):
        labels = exposition.labels(
            namespace=topic.name.namespace_name,
            topic=str(topic.name),
            subscription=subscription.name,
            reason=reason,
        )
        for metric, count in zip(_THROTTLED, events, strict=True):
            exposition.add(metric.name, count, labels)


def consumer_count(topic: Stats) -> int:
    return sum(len(subscription["consumers"]) for subscription in topic["subscriptions"].values())


def backlog(topic: Stats) -> int:
    return sum(subscription["msgBacklog"] for subscription in topic["subscriptions"].values())


def dropped(subscription: Mapping[str, Any]) -> float | None:
    """Messages per second for which no consumer had room; None if the topic never drops any."""
    rate: float | None = subscription.get("msgDropRate")
    return rate
