"""The transactions that hold readers back; a pybroker extension."""

from typing import Final

from pybroker.base.json_schema import COUNT, TEXT, choice, fields, list_of, map_of, or_null, record

_OPEN: Final = record(
    "BlockingTransaction",
    {
        **fields(TEXT, "txnId status"),
        **fields(or_null(TEXT), "owner label startPosition"),
        **fields(COUNT, "blockedEntries openTimestamp ageMs"),
        "topics": list_of(TEXT, most=None),  # not all
        **fields(or_null(COUNT), "timeLeftMs topicCount subscriptionCount"),
    },
)
_OF_TOPIC: Final = {
    **fields(TEXT, "topic lastStablePosition lastConfirmedEntry"),
    **fields(COUNT, "blockedEntries openTransactions"),
}
BLOCKING: Final = record(
    "BlockingTransactions",
    {
        **fields(COUNT, "timestamp blockedTopics blockedEntries"),
        "topics": list_of(
            record("BlockedTopicAndTransaction", {**_OF_TOPIC, "blocking": _OPEN}), most=None
        ),
    },
)
# Next to msgBacklog; also in a subscription's stats.
BACKLOG_PARTS: Final = {
    "isolationLevel": choice("read_committed", "read_uncommitted"),
    "lastStablePosition": TEXT,
    **fields(COUNT, "committedBacklog blockedBacklog"),
}
BLOCKED_TOPIC: Final = record(
    "BlockedTopic",
    {
        **_OF_TOPIC,
        "timestamp": COUNT,
        "transactions": list_of(_OPEN, most=None),
        "subscriptions": map_of(
            record("BlockedSubscription", {"msgBacklog": COUNT, **BACKLOG_PARTS}), most=None
        ),
    },
)
