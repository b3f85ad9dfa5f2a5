"""What the admin API says of a topic, under the field names of Apache Pulsar's TopicStats.

`lastStablePosition` and `oldestOpenTransaction` are ours: which transaction holds readers back.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from pybroker.admin.rates import Rates
from pybroker.broker.consumer import Consumer, SubscriptionType
from pybroker.broker.producers import Producer
from pybroker.broker.subscription import Subscription
from pybroker.broker.topic import Topic
from pybroker.runtime import Pace

Stats = dict[str, Any]
PARTS_A_TURN: Final = 50  # topics, subscriptions, consumers, producers

_TYPE_NAMES: Final = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
# What a subscription has of its consumers, and a topic of its subscriptions.
_OUT_FIELDS: Final = (
    "msgRateOut",
    "msgThroughputOut",
    "msgOutCounter",
    "bytesOutCounter",
    "msgRateRedeliver",
)
_NO_LEDGER: Final = {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False}


async def topic_stats(topic: Topic, rates: Rates, now_ms: int, pace: Pace) -> Stats:
    subscriptions = {
        name: await subscription_stats(subscription, topic, rates, pace)
        for name, subscription in list(topic.subscriptions.items())
    }
    publishers: list[Stats] = []
    for producer in topic.producers.all():
        publishers.append(producer_stats(producer, topic, rates))
        await pace.step()
    await pace.step()
    return {
        **_traffic_in((str(topic.name),), topic, rates),
        **{field: _total(subscriptions.values(), field) for field in _OUT_FIELDS},
        "storageSize": topic.ledger.total_size_bytes,
        "backlogSize": max((s["backlogSize"] for s in subscriptions.values()), default=0),
        "offloadedStorageSize": 0,
        "topicEpoch": topic.producers.epoch,
        "deduplicationStatus": "Enabled" if topic.deduplication else "Disabled",
        "publishers": publishers,
        "subscriptions": subscriptions,
        "replication": {},
        **_transactions(topic, now_ms),
    }


async def subscription_stats(
    subscription: Subscription, topic: Topic, rates: Rates, pace: Pace
) -> Stats:
    names = (str(topic.name), subscription.name)
    consumers: list[Stats] = []
    for consumer in list(subscription.consumers):
        consumers.append(consumer_stats(consumer, names, rates))
        await pace.step()
    await pace.step()
    cursor, kind = subscription.cursor, subscription.kind
    backlog, active = subscription.backlog, subscription.active_consumer
    return {
        **{field: _total(consumers, field) for field in _OUT_FIELDS},
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "backlogSize": _size_of(backlog, topic),
        "msgDelayed": 0,
        "unackedMessages": subscription.unacked_messages,
        "blockedSubscriptionOnUnackedMsgs": any(
            c["blockedConsumerOnUnackedMsgs"] for c in consumers
        ),
        "type": "None" if kind is None else _TYPE_NAMES[kind],
        "activeConsumerName": active.name if active else "",
        "consumers": consumers,
        "isDurable": cursor.durable,
        "isReplicated": False,
        "durable": cursor.durable,
        "replicated": False,
        "msgRateExpired": 0.0,
        "nonContiguousDeletedMessagesRanges": cursor.unacked_ranges_count,
        "subscriptionProperties": dict(cursor.properties),
    }


def consumer_stats(consumer: Consumer, subscription: tuple[str, str], rates: Rates) -> Stats:
    # Names, not the consumer: rates must keep nobody alive.
    counter = (*subscription, consumer.name, consumer.address, str(consumer.consumer_id))
    return {
        "msgRateOut": rates.of((*counter, "messages out"), consumer.messages_out),
        "msgThroughputOut": rates.of((*counter, "bytes out"), consumer.bytes_out),
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgRateRedeliver": rates.of((*counter, "redelivered"), consumer.messages_redelivered),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked.messages,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.address,
        "connectedSince": iso_time(consumer.connected_since_ms),
        "metadata": dict(consumer.properties),
    }


def producer_stats(producer: Producer, topic: Topic, rates: Rates) -> Stats:
    traffic = _traffic_in((str(topic.name), producer.name), producer, rates)
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
        "metadata": dict(producer.properties),
    }


def internal_stats(topic: Topic) -> Stats:
    ledgers = [
        {
            "ledgerId": ledger.ledger_id,
            "entries": ledger.entries,
            "size": ledger.size_bytes,
            "offloaded": False,
        }
        for ledger in topic.ledger.ledgers()
    ]
    return {
        "numberOfEntries": sum(ledger["entries"] for ledger in ledgers),
        "totalSize": topic.ledger.total_size_bytes,
        "currentLedgerEntries": ledgers[-1]["entries"],
        "currentLedgerSize": ledgers[-1]["size"],
        "lastConfirmedEntry": str(topic.ledger.last_confirmed),
        "state": "LedgerOpened",
        "ledgers": ledgers,
        "cursors": {
            name: _cursor(subscription, topic) for name, subscription in topic.subscriptions.items()
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
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return left + right if _is_number(left) and _is_number(right) else left


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def iso_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _cursor(subscription: Subscription, topic: Topic) -> Stats:
    cursor = subscription.cursor
    return {
        "markDeletePosition": str(cursor.mark_delete_position),
        "readPosition": str(subscription.read_position),
        "totalNonContiguousDeletedMessagesRange": cursor.unacked_ranges_count,
        "numberOfEntriesSinceFirstNotAckedMessage": cursor.backlog(topic.ledger.last_confirmed),
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "state": "Open",
        "properties": {},
    }


def _traffic_in(counter: tuple[str, ...], source: Topic | Producer, rates: Rates) -> Stats:
    messages, size_bytes = source.messages_in, source.bytes_in
    return {
        "msgRateIn": rates.of((*counter, "messages in"), messages),
        "msgThroughputIn": rates.of((*counter, "bytes in"), size_bytes),
        "msgInCounter": messages,
        "bytesInCounter": size_bytes,
        "averageMsgSize": size_bytes / messages if messages else 0.0,
    }


def _transactions(topic: Topic, now_ms: int) -> Stats:
    ongoing = topic.buffer.ongoing()
    stats: Stats = {
        "ongoingTxnCount": len(ongoing),
        "lastStablePosition": str(topic.max_read_position),
    }
    if ongoing:
        oldest = ongoing[0]
        stats["oldestOpenTransaction"] = {
            "txnId": str(oldest.txn_id),
            "startPosition": None if oldest.first_position is None else str(oldest.first_position),
            "ageMs": max(0, now_ms - oldest.opened_at_ms),
        }
    return stats


def _size_of(entries: int, topic: Topic) -> int:
    """Of that many average entries: which ones they are is not worth looking up."""
    ledger = topic.ledger
    all_entries = sum(info.entries for info in ledger.ledgers())
    return ledger.total_size_bytes * entries // all_entries if all_entries else 0


def _total(parts: Iterable[Stats], field: str) -> Any:
    return sum(part[field] for part in parts)
