"""Apache Pulsar's names of metrics, and where their values come from: the fields of stats, and what
a topic knows of its compactions.

Left out is what this broker has none of (offloading to elsewhere, entry filters, caches of ledgers)
and what would have to be counted with each message (latencies by bucket, sizes of entries).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pybroker.base.metrics import Kind
from pybroker.broker.compaction.compaction import Compaction

# Metric, its kind, and the field of the topic's stats that it shows.
TOPIC_METRICS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("pulsar_rate_in", "gauge", "msgRateIn"),
    ("pulsar_rate_out", "gauge", "msgRateOut"),
    ("pulsar_throughput_in", "gauge", "msgThroughputIn"),
    ("pulsar_throughput_out", "gauge", "msgThroughputOut"),
    ("pulsar_average_msg_size", "gauge", "averageMsgSize"),
    ("pulsar_in_messages_total", "counter", "msgInCounter"),
    ("pulsar_in_bytes_total", "counter", "bytesInCounter"),
    ("pulsar_out_messages_total", "counter", "msgOutCounter"),
    ("pulsar_out_bytes_total", "counter", "bytesOutCounter"),
    ("pulsar_storage_size", "gauge", "storageSize"),
    ("pulsar_storage_logical_size", "gauge", "storageSize"),
    ("pulsar_storage_offloaded_size", "gauge", "offloadedStorageSize"),
    ("pulsar_storage_backlog_size", "gauge", "backlogSize"),
    ("pulsar_storage_backlog_quota_limit", "gauge", "backlogQuotaLimitSize"),
    ("pulsar_storage_backlog_quota_limit_time", "gauge", "backlogQuotaLimitTime"),
    ("pulsar_publish_rate_limit_times", "counter", "publishRateLimitedTimes"),
    ("pulsar_delayed_message_index_size_bytes", "gauge", "delayedMessageIndexSizeInBytes"),
    ("pulsar_txn_tb_active_total", "gauge", "ongoingTxnCount"),
    ("pulsar_txn_tb_committed_total", "counter", "committedTxnCount"),
    ("pulsar_txn_tb_aborted_total", "counter", "abortedTxnCount"),
)
SUBSCRIPTION_METRICS: Final[tuple[tuple[str, str], ...]] = (
    ("pulsar_subscription_back_log", "msgBacklog"),
    ("pulsar_subscription_back_log_no_delayed", "msgBacklogNoDelayed"),
    ("pulsar_subscription_delayed", "msgDelayed"),
    ("pulsar_subscription_delayed_message_index_size_bytes", "delayedMessageIndexSizeInBytes"),
    ("pulsar_subscription_in_replay", "msgInReplay"),
    ("pulsar_subscription_msg_rate_out", "msgRateOut"),
    ("pulsar_subscription_msg_rate_redeliver", "msgRateRedeliver"),
    ("pulsar_subscription_msg_rate_expired", "msgRateExpired"),
    ("pulsar_subscription_msg_throughput_out", "msgThroughputOut"),
    ("pulsar_subscription_total_msg_expired", "totalMsgExpired"),
    ("pulsar_subscription_unacked_messages", "unackedMessages"),
    ("pulsar_subscription_blocked_on_unacked_messages", "blockedSubscriptionOnUnackedMsgs"),
    ("pulsar_subscription_last_expire_timestamp", "lastExpireTimestamp"),
    ("pulsar_subscription_last_acked_timestamp", "lastAckedTimestamp"),
    ("pulsar_subscription_last_consumed_timestamp", "lastConsumedTimestamp"),
    ("pulsar_subscription_last_consumed_flow_timestamp", "lastConsumedFlowTimestamp"),
    (
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "lastMarkDeleteAdvancedTimestamp",
    ),
)
# Of the compactions since the topic was loaded; of what is kept, whenever that was.
COMPACTION_METRICS: Final[Mapping[str, Callable[[Compaction], float]]] = {
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
    """By the last one, which may have been over within a millisecond."""
    results = compaction.results
    return 1000 * size_bytes / max(1, results.duration_ms) if results.succeeded else 0.0


def dropped(subscription: Mapping[str, Any]) -> float | None:
    """Messages a second that nobody could take; None where nothing is ever dropped."""
    rate: float | None = subscription.get("msgDropRate")
    return rate
