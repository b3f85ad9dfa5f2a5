"""Statistics of a non-persistent topic: Apache Pulsar's NonPersistentTopicStats.

They are those of other topics, with dropped messages and without storage.
"""

from pybroker.admin.stats.rates import Rates
from pybroker.admin.stats.topic import (
    OUT_FIELDS,
    SUBSCRIPTION_WITHOUT,
    TOPIC_OUT_FIELDS,
    TOPIC_WITHOUT,
    TYPE_NAMES,
    Stats,
    Wanted,
    consumer_stats,
    hash_ranges,
    producer_stats,
    total,
    traffic_in,
)
from pybroker.base.runtime import Pace
from pybroker.broker.nonpersistent.dispatch import KeyShared
from pybroker.broker.nonpersistent.subscription import NonPersistentSubscription
from pybroker.broker.nonpersistent.topic import NonPersistentTopic


async def nonpersistent_stats(
    topic: NonPersistentTopic, rates: Rates, pace: Pace, wanted: Wanted
) -> Stats:
    subscriptions = {
        name: await _subscription(subscription, topic, rates, pace, wanted)
        for name, subscription in list(topic.subscriptions.items())
    }
    publishers: list[Stats] = []
    for producer in topic.producers.all() if wanted.publishers else ():
        publishers.append(producer_stats(producer, topic.name, rates) | {"msgDropRate": 0.0})
        await pace.step()
    await pace.step()
    return {
        **TOPIC_WITHOUT,
        **traffic_in((str(topic.name),), topic, rates),
        **{field: total(subscriptions.values(), field) for field in TOPIC_OUT_FIELDS},
        "msgDropRate": total(subscriptions.values(), "msgDropRate"),
        "storageSize": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklogs": 0,
        "msgChunkPublished": topic.chunked,
        "committedTxnCount": 0,
        "abortedTxnCount": 0,
        "ongoingTxnCount": 0,
        "waitingPublishers": topic.producers.waiting,
        "nonContiguousDeletedMessagesRanges": 0,
        "topicCreationTimeStamp": topic.created_at_ms,
        "lastPublishTimeStamp": topic.published_at_ms,
        "topicEpoch": topic.producers.epoch,
        "deduplicationStatus": "Disabled",
        "publishers": publishers,
        "subscriptions": subscriptions,
    }


async def _subscription(
    subscription: NonPersistentSubscription,
    topic: NonPersistentTopic,
    rates: Rates,
    pace: Pace,
    wanted: Wanted,
) -> Stats:
    names = (str(topic.name), subscription.name)
    dispatcher = subscription.dispatcher
    shared = dispatcher if isinstance(dispatcher, KeyShared) else None
    ranges = hash_ranges(shared.ranges()) if shared is not None and wanted.hashes else {}
    consumers: list[Stats] = []
    for consumer in list(subscription.consumers):
        consumers.append(consumer_stats(consumer, names, rates) | ranges.get(consumer, {}))
        await pace.step()
    await pace.step()
    active, times = subscription.active_consumer, subscription.times
    return {
        **SUBSCRIPTION_WITHOUT,
        **{field: total(consumers, field) for field in OUT_FIELDS},
        "msgDropRate": rates.of((*names, "dropped"), subscription.dropped),
        "msgBacklog": 0,
        "msgBacklogNoDelayed": 0,
        "backlogSize": 0,
        "earliestMsgPublishTimeInBacklog": 0,
        "unackedMessages": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
        "type": "None" if subscription.kind is None else TYPE_NAMES[subscription.kind],
        "activeConsumerName": active.name if active else "",
        "consumers": consumers if wanted.consumers else [],
        "isDurable": subscription.durable,
        "durable": subscription.durable,
        "lastConsumedFlowTimestamp": times.flow_ms,
        "lastConsumedTimestamp": times.sent_ms,
        "lastAckedTimestamp": times.acknowledged_ms,
        "lastMarkDeleteAdvancedTimestamp": times.mark_delete_moved_ms,
        "allowOutOfOrderDelivery": shared is not None and shared.policy.allow_out_of_order,
        **({} if shared is None else {"keySharedMode": shared.policy.mode.name}),
        "nonContiguousDeletedMessagesRanges": 0,
        "subscriptionProperties": dict(subscription.properties),
    }
