"""Statistics of a topic, under the field names of Apache Pulsar's TopicStats.

Extensions are the transaction that holds readers back (`lastStablePosition`, `blockedEntries`,
`oldestOpenTransaction`), and its effect on a subscription (`blocking.backlog_parts`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from pybroker.admin.stats.blocking import backlog_parts, blocked_entries
from pybroker.admin.stats.rates import Rates
from pybroker.base.names import TopicName
from pybroker.base.runtime import Pace, iso_time
from pybroker.broker.client_topics import ServedTopic
from pybroker.broker.compaction.compaction import Results
from pybroker.broker.dispatch.key_shared import DrainingSlot
from pybroker.broker.persistent.producers import Producer
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.shapes import AGE, SIZE
from pybroker.broker.policies.table import BACKLOG_QUOTAS
from pybroker.broker.subscriptions import subscription_properties
from pybroker.broker.subscriptions.consumer import Consumer, SubscriptionType
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.broker.subscriptions.waiting_entries import first_readable
from pybroker.wire.message_metadata import BadEntry, parse_metadata

Stats = dict[str, Any]
PARTS_A_TURN: Final = 50  # topics, subscriptions, consumers, producers

TYPE_NAMES: Final = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
# Fields that a topic sums over its subscriptions, and a subscription over its consumers.
TOPIC_OUT_FIELDS: Final = ("msgRateOut", "msgThroughputOut", "msgOutCounter", "bytesOutCounter")
OUT_FIELDS: Final = (
    *TOPIC_OUT_FIELDS,
    "msgRateRedeliver",
    "messageAckRate",
    "chunkedMessageRate",
)
_RANGES: Final = (
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
)
_DRAINING: Final = (
    "drainingHashesCount",
    "drainingHashesClearedTotal",
    "drainingHashesUnackedMessages",
)
NOTHING_DRAINS: Final = dict.fromkeys(_DRAINING, 0)
# Fields without a meaning here, or with one for only some topics.
TOPIC_WITHOUT: Final = {
    "systemTopicBytesInCounter": 0,
    "bytesOutInternalCounter": 0,
    "backlogQuotaLimitSize": -1,
    "backlogQuotaLimitTime": -1,
    "publishRateLimitedTimes": 0,
    "oldestBacklogMessageAgeSeconds": -1,
    "oldestBacklogMessageSubscriptionName": None,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "offloadedStorageSize": 0,
    "lastOffloadLedgerId": 0,
    "lastOffloadSuccessTimeStamp": 0,
    "lastOffloadFailureTimeStamp": 0,
    "delayedMessageIndexSizeInBytes": 0,
    "compaction": {
        "lastCompactionRemovedEventCount": 0,
        "lastCompactionSucceedTimestamp": 0,
        "lastCompactionFailedTimestamp": 0,
        "lastCompactionDurationTimeInMills": 0,
    },
    "replication": {},
}
SUBSCRIPTION_WITHOUT: Final = {
    "msgDelayed": 0,
    "msgInReplay": 0,
    "msgRateExpired": 0.0,
    "msgExpired": 0,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
    "delayedMessageIndexSizeInBytes": 0,
    # Apache Pulsar 4 fills it only for its old Key_Shared dispatcher. Here, slots drain as in the
    # new one.
    "consumersAfterMarkDeletePosition": {},
    **{f"filter{how}MsgCount": 0 for how in ("Processed", "Accepted", "Rejected", "Rescheduled")},
    **{f"dispatchThrottled{what}EventsByBrokerLimit": 0 for what in ("Msg", "Bytes")},
    **{
        f"dispatchThrottled{what}EventsBy{limit}Limit": 0
        for what in ("Msg", "Bytes")
        for limit in ("Subscription", "Topic")
    },
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "allowOutOfOrderDelivery": False,
    **NOTHING_DRAINS,
    "isReplicated": False,
    "replicated": False,
}
# Fields that are not simply added over partitions.
_MERGED_BY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "lastPublishTimeStamp": max,
    "topicCreationTimeStamp": min,
    "lastConsumedFlowTimestamp": max,
    "lastConsumedTimestamp": max,
    "lastAckedTimestamp": max,
    "lastMarkDeleteAdvancedTimestamp": max,
    "earliestMsgPublishTimeInBacklog": lambda left, right: _earlier(left, right),
    "earliestMsgPublishTimeInBacklogs": lambda left, right: _earlier(left, right),
    "oldestBacklogMessageAgeSeconds": max,
    "backlogQuotaLimitSize": max,
    "backlogQuotaLimitTime": max,
    "topicEpoch": lambda left, _: left,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The caller's choices: the query parameters of Apache Pulsar's stats."""

    publishers: bool = True
    consumers: bool = True
    backlog_size: bool = True
    earliest_time: bool = False
    hashes: bool = True  # for Key_Shared consumers


async def topic_stats(
    topic: Topic, rates: Rates, now_ms: int, pace: Pace, wanted: Wanted = Wanted()
) -> Stats:
    subscriptions = {
        name: await subscription_stats(subscription, topic, rates, pace, wanted)
        for name, subscription in list(topic.subscriptions.items())
    }
    publishers: list[Stats] = []
    for producer in topic.producers.all() if wanted.publishers else ():
        publishers.append(producer_stats(producer, topic.name, rates))
        await pace.step()
    await pace.step()
    earliest, whose = _oldest(subscriptions)
    return {
        **TOPIC_WITHOUT,
        **traffic_in((str(topic.name),), topic, rates),
        **{field: total(subscriptions.values(), field) for field in TOPIC_OUT_FIELDS},
        **_limits(topic),
        "delayedMessageIndexSizeInBytes": total(
            subscriptions.values(), "delayedMessageIndexSizeInBytes"
        ),
        "storageSize": topic.ledger.total_size_bytes + topic.buffer.aside_bytes,
        "backlogSize": max((s["backlogSize"] for s in subscriptions.values()), default=0),
        "earliestMsgPublishTimeInBacklogs": earliest,
        "oldestBacklogMessageSubscriptionName": whose,
        "oldestBacklogMessageAgeSeconds": max(0, now_ms - earliest) // 1000 if earliest > 0 else -1,
        "compaction": _compaction(topic),
        "msgChunkPublished": topic.chunked,
        "committedTxnCount": topic.committed,
        "abortedTxnCount": topic.aborted,
        "waitingPublishers": topic.producers.waiting,
        **{field: total(subscriptions.values(), field) for field in _RANGES},
        "topicCreationTimeStamp": topic.ledger.created_at_ms,
        "lastPublishTimeStamp": topic.published_at_ms,
        "topicEpoch": topic.producers.epoch,
        "deduplicationStatus": "Enabled" if topic.deduplication else "Disabled",
        "publishers": publishers,
        "subscriptions": subscriptions,
        **_transactions(topic, now_ms),
    }


async def subscription_stats(
    subscription: Subscription, topic: Topic, rates: Rates, pace: Pace, wanted: Wanted
) -> Stats:
    names = (str(topic.name), subscription.name)
    consumers: list[Stats] = []
    hashes = _hashes(subscription) if wanted.hashes else {}
    for consumer in list(subscription.consumers):
        consumers.append(consumer_stats(consumer, names, rates) | hashes.get(consumer, {}))
        await pace.step()
    await pace.step()
    cursor, kind = subscription.cursor, subscription.kind
    backlog, active = subscription.backlog, subscription.dispatch.active_consumer
    times = subscription.times
    return {
        **SUBSCRIPTION_WITHOUT,
        **{field: total(consumers, field) for field in OUT_FIELDS},
        "msgBacklog": backlog,
        "msgDelayed": subscription.dispatch.delayed_messages,
        "delayedMessageIndexSizeInBytes": subscription.dispatch.delayed_bytes,
        "msgBacklogNoDelayed": max(0, backlog - subscription.dispatch.delayed_messages),
        "backlogSize": size_of(backlog, topic) if wanted.backlog_size else -1,
        "earliestMsgPublishTimeInBacklog": (
            await _earliest_publish_time(topic, subscription) if wanted.earliest_time else 0
        ),
        "unackedMessages": subscription.dispatch.unacked_messages,
        "blockedSubscriptionOnUnackedMsgs": any(
            c["blockedConsumerOnUnackedMsgs"] for c in consumers
        ),
        "type": "None" if kind is None else TYPE_NAMES[kind],
        "activeConsumerName": active.name if active else "",
        "consumers": consumers if wanted.consumers else [],
        "isDurable": cursor.durable,
        "durable": cursor.durable,
        "msgExpired": times.expired,
        "totalMsgExpired": times.expired,
        "msgRateExpired": rates.of((*names, "expired"), times.expired),
        "msgInReplay": subscription.dispatch.in_replay,
        "lastExpireTimestamp": times.expired_ms,
        "lastConsumedFlowTimestamp": times.flow_ms,
        "lastConsumedTimestamp": times.sent_ms,
        "lastAckedTimestamp": times.acknowledged_ms,
        "lastMarkDeleteAdvancedTimestamp": times.mark_delete_moved_ms,
        **_key_shared(subscription, consumers),
        "nonContiguousDeletedMessagesRanges": cursor.unacked_ranges_count,
        "nonContiguousDeletedMessagesRangesSerializedSize": cursor.unacked_ranges_size,
        **_held_back(subscription),
        **backlog_parts(subscription, topic, backlog),
        "subscriptionProperties": subscription_properties.shown(cursor),
        "isReplicated": subscription_properties.is_replicated(cursor),
        "replicated": subscription_properties.is_replicated(cursor),
    }


def _limits(topic: Topic) -> Stats:
    quotas, gate = topic.policies[BACKLOG_QUOTAS], topic.gate
    return {
        "backlogQuotaLimitSize": quotas[SIZE]["limitSize"],
        "backlogQuotaLimitTime": quotas[AGE]["limitTime"],
        "publishRateLimitedTimes": gate.rate.refused if gate and gate.rate else 0,
    }


def _key_shared(subscription: Subscription, consumers: list[Stats]) -> Stats:
    dispatcher = subscription.dispatch.key_shared
    if dispatcher is None:
        return {}
    policy = dispatcher.policy
    return {
        "allowOutOfOrderDelivery": policy.allow_out_of_order,
        "keySharedMode": policy.mode.name,
        **{field: total(consumers, field) for field in _DRAINING},
    }


def _hashes(subscription: Subscription) -> dict[Consumer, Stats]:
    dispatcher = subscription.dispatch.key_shared
    if dispatcher is None:
        return {}
    ranges, draining = hash_ranges(dispatcher.hash_ranges()), dispatcher.draining()
    return {
        consumer: {
            **_draining(draining.get(consumer, ())),
            **ranges.get(consumer, {"keyHashRanges": [], "keyHashRangeArrays": []}),
        }
        for consumer in subscription.consumers
    }


def _draining(slots: Sequence[DrainingSlot]) -> Stats:
    """Slots that wait for their last owner's acknowledgements. Source: PIP-379."""
    return {
        "drainingHashesCount": len(slots),
        "drainingHashesUnackedMessages": sum(slot.held for slot in slots),
        "drainingHashes": [
            {"hash": slot.slot, "unackMsgs": slot.held, "blockedAttempts": slot.waiting}
            for slot in slots
        ],
    }


def hash_ranges(owned: Iterable[tuple[int, int, Consumer]]) -> dict[Consumer, Stats]:
    found: dict[Consumer, Stats] = {}
    for start, end, owner in owned:
        of_owner = found.setdefault(owner, {"keyHashRanges": [], "keyHashRangeArrays": []})
        of_owner["keyHashRanges"].append(f"[{start}, {end}]")
        of_owner["keyHashRangeArrays"].append([start, end])
    return found


def _held_back(subscription: Subscription) -> Stats:
    """How many times dispatch waited for the subscription's own rate, and for the rate that the
    topic's subscriptions share.
    """
    if subscription.dispatch.pace is None:
        return {}
    held_back = subscription.dispatch.pace.held_back
    return {
        "dispatchThrottledMsgEventsBySubscriptionLimit": held_back.messages_by_own,
        "dispatchThrottledBytesEventsBySubscriptionLimit": held_back.bytes_by_own,
        "dispatchThrottledMsgEventsByTopicLimit": held_back.messages_by_topic,
        "dispatchThrottledBytesEventsByTopicLimit": held_back.bytes_by_topic,
    }


async def _earliest_publish_time(topic: Topic, subscription: Subscription) -> int:
    """The publish time (ms) of the first unacknowledged message that is readable; -1 if there is
    none.
    """
    first = await first_readable(topic.ledger, subscription.cursor, topic.hidden)
    try:
        return -1 if first is None else parse_metadata(first).publish_time
    except BadEntry:
        return -1


def _oldest(subscriptions: Mapping[str, Stats]) -> tuple[int, str | None]:
    """The publish time (ms) of the oldest unacknowledged message, and its subscription. 0 and None
    if it was not requested or there is no such message.
    """
    times = {name: s["earliestMsgPublishTimeInBacklog"] for name, s in subscriptions.items()}
    earliest = reduce(_earlier, times.values(), 0)
    return earliest, next((n for n, at in times.items() if at == earliest > 0), None)


def _earlier(left: int, right: int) -> int:
    """The earlier of two times, ignoring unknown ones."""
    return min(left, right) if left > 0 and right > 0 else max(left, right)


def consumer_stats(consumer: Consumer, subscription: tuple[str, str], rates: Rates) -> Stats:
    request = consumer.request
    # Names instead of the consumer, because rates must not keep objects alive.
    counter = (*subscription, consumer.name, request.address, str(consumer.consumer_id))
    times = consumer.times
    entry = consumer.messages_out / max(consumer.entries_out, 1)
    acknowledged = rates.of((*counter, "acknowledged"), consumer.entries_acknowledged)
    return {
        **NOTHING_DRAINS,
        "drainingHashesClearedTotal": consumer.slots_drained,
        "messageAckRate": acknowledged * entry,
        "chunkedMessageRate": 0.0,  # outgoing messages are not examined
        "appId": request.app_id,
        "readPositionWhenJoining": None,  # this holds no consumer back
        "msgRateOut": rates.of((*counter, "messages out"), consumer.messages_out),
        "msgThroughputOut": rates.of((*counter, "bytes out"), consumer.bytes_out),
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgRateRedeliver": rates.of((*counter, "redelivered"), consumer.messages_redelivered),
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked.messages,
        "avgMessagesPerEntry": round(entry),
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": request.address,
        "connectedSince": iso_time(request.connected_since_ms),
        "clientVersion": request.client_version,
        "lastAckedTimestamp": times.acknowledged_ms,
        "lastConsumedTimestamp": times.sent_ms,
        "firstMessagesSentTimestamp": times.first_sent_ms,
        "lastConsumedFlowTimestamp": times.flow_ms,
        "firstConsumedFlowTimestamp": times.first_flow_ms,
        "lastAckedTime": iso_time(times.acknowledged_ms) if times.acknowledged_ms else None,
        "lastConsumedTime": iso_time(times.sent_ms) if times.sent_ms else None,
        "metadata": dict(request.properties),
    }


def producer_stats(producer: Producer, topic: TopicName, rates: Rates) -> Stats:
    traffic = traffic_in((str(topic), producer.name), producer, rates)
    return {
        "msgRateIn": traffic["msgRateIn"],
        "msgThroughputIn": traffic["msgThroughputIn"],
        "averageMsgSize": traffic["averageMsgSize"],
        "chunkedMessageRate": rates.of((str(topic), producer.name, "chunks"), producer.chunks_in),
        "supportsPartialProducer": producer.supports_partial,
        "accessMode": producer.access_mode.name.title().replace("_", ""),
        "producerId": producer.producer_id,
        "producerName": producer.name,
        "address": producer.address,
        "connectedSince": iso_time(producer.connected_since_ms),
        "clientVersion": producer.client_version,
        "metadata": dict(producer.properties),
    }


def _compaction(topic: Topic) -> Stats:
    results = Results() if topic.compacted is None else topic.compacted.results
    return {
        "lastCompactionRemovedEventCount": results.left_out,
        "lastCompactionSucceedTimestamp": results.succeeded_ms,
        "lastCompactionFailedTimestamp": results.failed_ms,
        "lastCompactionDurationTimeInMills": results.duration_ms,
    }


def merged_stats(partitions: Iterable[Stats]) -> Stats:
    """Adds numbers, merges subscriptions by name, and takes all else from the first partition."""
    merged: Stats = {}
    for stats in partitions:
        for field, value in stats.items():
            by = _MERGED_BY.get(field, _merged)
            merged[field] = by(merged[field], value) if field in merged else value
    return merged


def _merged(left: Any, right: Any) -> Any:
    if isinstance(left, dict) and isinstance(right, dict):
        return merged_stats([left, right])
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return left + right if _is_number(left) and _is_number(right) else left


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def traffic_in(counter: tuple[str, ...], source: ServedTopic | Producer, rates: Rates) -> Stats:
    messages, size_bytes = source.messages_in, source.bytes_in
    return {
        "msgRateIn": rates.of((*counter, "messages in"), messages),
        "msgThroughputIn": rates.of((*counter, "bytes in"), size_bytes),
        "msgInCounter": messages,
        "bytesInCounter": size_bytes,
        "averageMsgSize": size_bytes / messages if messages else 0.0,
    }


def _transactions(topic: Topic, now_ms: int) -> Stats:
    oldest = topic.buffer.oldest()
    stats: Stats = {
        "ongoingTxnCount": topic.buffer.open_count,
        "lastStablePosition": str(topic.max_read_position),
        "blockedEntries": blocked_entries(topic),
    }
    if oldest is not None:
        stats["oldestOpenTransaction"] = {
            "txnId": str(oldest.txn_id),
            "startPosition": None if oldest.first_position is None else str(oldest.first_position),
            "ageMs": max(0, now_ms - oldest.opened_at_ms),
        }
    return stats


def size_of(entries: int, topic: Topic) -> int:
    """The bytes of that many entries of average size: an estimate, because looking them up costs
    too much.
    """
    ledger = topic.ledger
    all_entries = sum(info.entries for info in ledger.ledgers())
    return ledger.total_size_bytes * entries // all_entries if all_entries else 0


def total(parts: Iterable[Stats], field: str) -> Any:
    return sum(part[field] for part in parts)
