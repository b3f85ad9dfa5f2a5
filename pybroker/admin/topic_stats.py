"""What the admin API says of a topic, under the field names of Apache Pulsar's TopicStats.

`lastStablePosition` and `oldestOpenTransaction` are ours: which transaction holds readers back.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from managed_ledger.cursor import ManagedCursor
from pybroker.admin.rates import Rates
from pybroker.broker.consumer import Consumer, SubscriptionType
from pybroker.broker.producers import Producer
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic

Stats = dict[str, Any]

_TYPE_NAMES: Final = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
_NO_LEDGER: Final = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False}


def topic_stats(topic: Topic, rates: Rates, now_ms: int) -> Stats:
    subscriptions = {
        name: subscription_stats(subscription, rates)
        for name, subscription in topic.subscriptions.items()
    }
    publishers = [producer_stats(producer, topic, rates) for producer in topic.producers.all()]
    return {
        **_traffic_in(topic, topic, rates),
        "msgRateOut": _total(subscriptions.values(), "msgRateOut"),
        "msgThroughputOut": _total(subscriptions.values(), "msgThroughputOut"),
        "msgOutCounter": _total(subscriptions.values(), "msgOutCounter"),
        "bytesOutCounter": _total(subscriptions.values(), "bytesOutCounter"),
        "storageSize": topic.ledger.total_size,
        "backlogSize": max((s["backlogSize"] for s in subscriptions.values()), default=0),
        "offloadedStorageSize": 0,
        "waitingPublishers": topic.producers.waiting,
        "topicEpoch": topic.producers.epoch,
        "deduplicationStatus": "Enabled" if topic.deduplication else "Disabled",
        "ownerBroker": topic.config.cluster_name,
        "publishers": publishers,
        "subscriptions": subscriptions,
        "replication": {},
        **_transactions(topic, now_ms),
    }


def subscription_stats(subscription: Subscription, rates: Rates) -> Stats:
    consumers = [consumer_stats(consumer, rates) for consumer in subscription.consumers]
    cursor, kind = subscription.cursor, subscription.kind
    backlog = subscription.backlog
    return {
        **_traffic_out(subscription, subscription, rates),
        "msgRateRedeliver": _total(consumers, "msgRateRedeliver"),
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "backlogSize": _size_of(subscription, backlog),
        "msgDelayed": 0,
        "unackedMessages": _total(consumers, "unackedMessages"),
        "blockedSubscriptionOnUnackedMsgs": subscription.blocked,
        "type": "None" if kind is None else _TYPE_NAMES[kind],
        "activeConsumerName": subscription.active_consumer_name,
        "consumers": consumers,
        "isDurable": cursor.durable,
        "isReplicated": False,
        "durable": cursor.durable,
        "replicated": False,
        "msgRateExpired": 0.0,
        "nonContiguousDeletedMessagesRanges": cursor.unacked_ranges_count,
        "subscriptionProperties": dict(cursor.properties),
    }


def consumer_stats(consumer: Consumer, rates: Rates) -> Stats:
    return {
        **_traffic_out(consumer, consumer, rates),
        "msgRateRedeliver": rates.of((consumer, "redelivered"), consumer.messages_redelivered),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked.messages,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "clientVersion": consumer.client_version,
        "metadata": dict(consumer.properties),
    }


def producer_stats(producer: Producer, topic: Topic, rates: Rates) -> Stats:
    traffic = _traffic_in((topic, producer.name), producer, rates)
    return {
        "msgRateIn": traffic["msgRateIn"],
        "msgThroughputIn": traffic["msgThroughputIn"],
        "averageMsgSize": traffic["averageMsgSize"],
        "accessMode": producer.access_mode.name.title().replace("_", ""),
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": producer.client_version,
        "metadata": {},
    }


def internal_stats(topic: Topic) -> Stats:
    ledgers = [
        {"ledgerId": l.ledger_id, "entries": l.entries, "size": l.size_bytes, "offloaded": False}
        for l in topic.ledger.ledgers()
    ]
    return {
        "entriesAddedCounter": topic.entries_added,
        "numberOfEntries": sum(ledger["entries"] for ledger in ledgers),
        "totalSize": topic.ledger.total_size,
        "currentLedgerEntries": ledgers[-1]["entries"],
        "currentLedgerSize": ledgers[-1]["size"],
        "lastConfirmedEntry": str(topic.ledger.last_confirmed),
        "state": "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {
            name: _cursor(subscription.cursor, topic)
            for name, subscription in topic.subscriptions.items()
        },
        "schemaLedgers": [],
        "compactedLedger": _NO_LEDGER,
    }


def merged_stats(partitions: Iterable[Stats]) -> Stats:
    """Numbers added, subscriptions merged by name, everything else from the first partition."""
    merged: Stats = {}
    for stats in partitions:
        for field, value in stats.items():
            merged[field] = _merged(merged[field], value) if field in merged else value
    return merged


def _merged(left: Any, right: Any) -> Any:
    if isinstance(left, dict) and isinstance(right, dict):
        return merged_stats([left, right])
    if isinstance(left, bool) or isinstance(right, bool):
        return left
    if isinstance(left, int | float | list) and isinstance(right, type(left)):
        return left + right
    return left


def iso_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _cursor(cursor: ManagedCursor, topic: Topic) -> Stats:
    return {
        "markDeletePosition": str(cursor.mark_delete_position),
        "readPosition": str(topic.ledger.next_position(cursor.mark_delete_position)),
        "individuallyDeletedMessages": "[]",
        "totalNonContiguousDeletedMessagesRange": cursor.unacked_ranges_count,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog(topic.ledger.last_confirmed),
        "messagesConsumedCounter": cursor.individually_deleted_count,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "state": "Open",
        "properties": {},
    }


def _traffic_in(counter: object, source: Topic | Producer, rates: Rates) -> Stats:
    messages, size_bytes = source.messages_in, source.bytes_in
    return {
        "msgRateIn": rates.of((counter, "messages in"), messages),
        "msgThroughputIn": rates.of((counter, "bytes in"), size_bytes),
        "msgInCounter": messages,
        "bytesInCounter": size_bytes,
        "averageMsgSize": size_bytes / messages if messages else 0.0,
    }


def _traffic_out(counter: object, source: Subscription | Consumer, rates: Rates) -> Stats:
    messages, size_bytes = source.messages_out, source.bytes_out
    return {
        "msgRateOut": rates.of((counter, "messages out"), messages),
        "msgThroughputOut": rates.of((counter, "bytes out"), size_bytes),
        "msgOutCounter": messages,
        "bytesOutCounter": size_bytes,
    }


def _transactions(topic: Topic, now_ms: int) -> Stats:
    ongoing = topic.buffer.ongoing()
    stats: Stats = {
        "ongoingTxnCount": len(ongoing),
        "lastStablePosition": str(topic.max_read_position),
    }
    if ongoing:
        txn_id, position, opened_at_ms = ongoing[0]
        stats["oldestOpenTransaction"] = {
            "txnId": str(txn_id),
            "startPosition": str(position),
            "ageMs": max(0, now_ms - opened_at_ms),
        }
    return stats


def _size_of(subscription: Subscription, entries: int) -> int:
    """Of that many average entries: which ones they are is not worth looking up."""
    ledger = subscription.topic.ledger
    all_entries = sum(info.entries for info in ledger.ledgers())
    return ledger.total_size * entries // all_entries if all_entries else 0


def _total(parts: Iterable[Stats], field: str) -> Any:
    return sum(part[field] for part in parts)
