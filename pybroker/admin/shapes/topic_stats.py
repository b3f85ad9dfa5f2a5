"""Statistics of topics, subscriptions, consumers and producers."""

from collections.abc import Mapping
from typing import Final

from pybroker.admin.shapes.blocking import BACKLOG_PARTS
from pybroker.admin.shapes.common import PARTITIONED, PROPERTIES, TEXTS, TIME
from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    OBJECT,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    choice,
    fields,
    list_of,
    map_of,
    or_null,
    record,
)

_DRAINING: Final = fields(
    COUNT, "drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages"
)
_DRAINING_HASH: Final = record("DrainingHash", fields(COUNT, "hash unackMsgs blockedAttempts"))
_OUT: Final = {
    **fields(
        NUMBER, "msgRateOut msgThroughputOut msgRateRedeliver messageAckRate chunkedMessageRate"
    ),
    **fields(COUNT, "bytesOutCounter msgOutCounter"),
}
CONSUMER: Final = record(
    "ConsumerStats",
    {
        **_OUT,
        **_DRAINING,
        "drainingHashes": list_of(_DRAINING_HASH, most=None),
        "keyHashRangeArrays": list_of(list_of(COUNT), most=None),
        "keyHashRanges": TEXTS,
        "availablePermits": WHOLE,
        "blockedConsumerOnUnackedMsgs": TRUTH,
        "metadata": PROPERTIES,
        **fields(COUNT, "unackedMessages avgMessagesPerEntry"),
        **fields(TEXT, "consumerName address connectedSince clientVersion"),
        **fields(or_null(TEXT), "appId readPositionWhenJoining"),
        **fields(
            COUNT,
            "lastAckedTimestamp lastConsumedTimestamp firstMessagesSentTimestamp "
            "lastConsumedFlowTimestamp firstConsumedFlowTimestamp",
        ),
        **fields(TIME, "lastAckedTime lastConsumedTime"),
    },
    optional=("keyHashRangeArrays", "keyHashRanges", "drainingHashes"),  # for Key_Shared
)


def _subscription(title: str, more: Mapping[str, Schema]) -> Schema:
    by = ("BySubscriptionLimit", "ByTopicLimit", "ByBrokerLimit")
    return record(
        title,
        {
            **_OUT,
            **_DRAINING,
            "type": choice("None", "Exclusive", "Shared", "Failover", "Key_Shared"),
            "keySharedMode": choice("AUTO_SPLIT", "STICKY"),
            "activeConsumerName": TEXT,
            "consumers": list_of(CONSUMER, most=None),
            "consumersAfterMarkDeletePosition": PROPERTIES,
            "subscriptionProperties": PROPERTIES,
            "msgRateExpired": NUMBER,
            **fields(WHOLE, "backlogSize earliestMsgPublishTimeInBacklog"),  # -1: unknown
            **fields(
                COUNT,
                "msgBacklog msgBacklogNoDelayed msgDelayed msgInReplay unackedMessages msgExpired "
                "totalMsgExpired delayedMessageIndexSizeInBytes nonContiguousDeletedMessagesRanges "
                "nonContiguousDeletedMessagesRangesSerializedSize lastExpireTimestamp "
                "lastConsumedFlowTimestamp lastConsumedTimestamp lastAckedTimestamp "
                "lastMarkDeleteAdvancedTimestamp filterProcessedMsgCount filterAcceptedMsgCount "
                "filterRejectedMsgCount filterRescheduledMsgCount",
            ),
            **{f"dispatchThrottled{of}Events{who}": COUNT for of in ("Msg", "Bytes") for who in by},
            **fields(
                TRUTH,
                "blockedSubscriptionOnUnackedMsgs allowOutOfOrderDelivery isDurable durable "
                "isReplicated replicated",
            ),
            **more,
        },
        optional=("keySharedMode",),
    )


SUBSCRIPTION: Final = _subscription("SubscriptionStats", BACKLOG_PARTS)


def _publisher(title: str, more: Mapping[str, Schema]) -> Schema:
    return record(
        title,
        {
            "accessMode": choice("Shared", "Exclusive", "ExclusiveWithFencing", "WaitForExclusive"),
            **fields(NUMBER, "msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate"),
            "producerId": COUNT,
            "supportsPartialProducer": TRUTH,
            **fields(TEXT, "producerName address connectedSince clientVersion"),
            "metadata": PROPERTIES,
            **more,
        },
    )


_COMPACTION: Final = record(
    "CompactionStats",
    fields(
        COUNT,
        "lastCompactionRemovedEventCount lastCompactionSucceedTimestamp "
        "lastCompactionFailedTimestamp lastCompactionDurationTimeInMills",
    ),
)
_OF_TOPIC: Final = {
    **fields(
        NUMBER,
        "msgRateIn msgThroughputIn msgRateOut msgThroughputOut averageMsgSize",
    ),
    **fields(
        COUNT,
        "bytesInCounter msgInCounter systemTopicBytesInCounter bytesOutCounter msgOutCounter "
        "bytesOutInternalCounter storageSize publishRateLimitedTimes offloadedStorageSize "
        "lastOffloadLedgerId lastOffloadSuccessTimeStamp lastOffloadFailureTimeStamp "
        "ongoingTxnCount abortedTxnCount committedTxnCount waitingPublishers "
        "nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize "
        "delayedMessageIndexSizeInBytes topicCreationTimeStamp lastPublishTimeStamp",
    ),
    # -1: unknown, none, no limit
    **fields(
        WHOLE,
        "backlogSize backlogQuotaLimitSize backlogQuotaLimitTime oldestBacklogMessageAgeSeconds "
        "earliestMsgPublishTimeInBacklogs",
    ),
    "oldestBacklogMessageSubscriptionName": or_null(TEXT),
    "topicEpoch": or_null(COUNT),
    "msgChunkPublished": TRUTH,
    "deduplicationStatus": choice("Enabled", "Disabled"),
    "compaction": _COMPACTION,
    "ownerBroker": TEXT,
    "replication": OBJECT,
}
_PUBLISHER: Final = _publisher("PublisherStats", {})
# Extensions: the transaction that holds readers back.
OURS: Final = {
    "lastStablePosition": TEXT,
    "blockedEntries": COUNT,
    "oldestOpenTransaction": record(
        "OpenTransaction",
        {"txnId": TEXT, "startPosition": or_null(TEXT), "ageMs": COUNT},
    ),
}
_PERSISTENT: Final = {
    **_OF_TOPIC,
    **OURS,
    "publishers": list_of(_PUBLISHER, most=None),
    "subscriptions": map_of(SUBSCRIPTION, most=None),
}
_DROPPED: Final = {"msgDropRate": NUMBER}
_NON_PERSISTENT: Final = {
    **_OF_TOPIC,
    **_DROPPED,
    "publishers": list_of(_publisher("NonPersistentPublisherStats", _DROPPED), most=None),
    "subscriptions": map_of(_subscription("NonPersistentSubscriptionStats", _DROPPED), most=None),
}
_SOMETIMES: Final = ("oldestOpenTransaction",)
TOPIC: Final = record("TopicStats", _PERSISTENT, _SOMETIMES)
NON_PERSISTENT_TOPIC: Final = record("NonPersistentTopicStats", _NON_PERSISTENT)
PARTITIONED_TOPIC: Final = record(
    "PartitionedTopicStats",
    {**_PERSISTENT, "metadata": PARTITIONED, "partitions": map_of(TOPIC, most=None)},
    _SOMETIMES,
)
PARTITIONED_NON_PERSISTENT_TOPIC: Final = record(
    "PartitionedNonPersistentTopicStats",
    {
        **_NON_PERSISTENT,
        "metadata": PARTITIONED,
        "partitions": map_of(NON_PERSISTENT_TOPIC, most=None),
    },
)
