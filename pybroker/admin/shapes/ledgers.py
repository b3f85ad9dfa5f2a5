"""Statistics of logs, alone and as part of a topic's or a transaction's statistics."""

from typing import Final

from pybroker.admin.shapes.common import PARTITIONED, PROPERTIES, TIME
from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    fields,
    list_of,
    map_of,
    or_null,
    record,
)

_LEDGER: Final = record(
    "LedgerInfo",
    {
        **fields(WHOLE, "ledgerId entries size"),  # -1: none
        **fields(TRUTH, "offloaded underReplicated"),
        "metadata": or_null(TEXT),
        "properties": PROPERTIES,
        # A pybroker extension: the entries known to be unreadable.
        "damaged": list_of(record("DamagedEntries", fields(COUNT, "from to")), most=None),
    },
    optional=("damaged",),
)
_CURSOR: Final = record(
    "CursorStats",
    {
        **fields(TEXT, "markDeletePosition readPosition individuallyDeletedMessages state"),
        "lastLedgerSwitchTimestamp": TIME,
        **fields(TRUTH, "waitingReadOp active"),
        **fields(TRUTH, "subscriptionHavePendingRead subscriptionHavePendingReplayRead"),
        **fields(
            COUNT,
            "pendingReadOps messagesConsumedCounter numberOfEntriesSinceFirstNotAckedMessage "
            "totalNonContiguousDeletedMessagesRange",
        ),
        **fields(WHOLE, "cursorLedger cursorLedgerLastEntry"),
        "properties": map_of(WHOLE, most=None),
    },
)
_STATS: Final = {
    **fields(COUNT, "entriesAddedCounter numberOfEntries totalSize"),
    **fields(COUNT, "currentLedgerEntries currentLedgerSize"),
    **fields(COUNT, "waitingCursorsCount pendingAddEntriesCount"),
    **fields(TIME, "lastLedgerCreatedTimestamp lastLedgerCreationFailureTimestamp"),
    **fields(or_null(TEXT), "lastConfirmedEntry state"),
    "ledgers": list_of(_LEDGER, most=None),
    "cursors": map_of(_CURSOR, most=None),
    "properties": PROPERTIES,
}
LEDGER_STATS: Final = record("ManagedLedgerInternalStats", _STATS)
INTERNAL_STATS: Final = record(
    "PersistentTopicInternalStats",
    {**_STATS, "schemaLedgers": list_of(_LEDGER, most=None), "compactedLedger": _LEDGER},
)
PARTITIONED_INTERNAL_STATS: Final = record(
    "PartitionedTopicInternalStats",
    {"metadata": PARTITIONED, "partitions": map_of(INTERNAL_STATS, most=None)},
)
LOG_STATS: Final = record(
    "TransactionLogStats",
    {"managedLedgerName": TEXT, "managedLedgerInternalStats": LEDGER_STATS},
)

# -- stored data, and its unacknowledged part

_POSITION: Final = record("PositionInfo", fields(WHOLE, "ledgerId entryId"))
_STORED: Final = record(
    "StoredLedger",
    {**fields(COUNT, "ledgerId entries size timestamp"), "isOffloaded": TRUTH},
)
INFO: Final = record(
    "ManagedLedgerInfo",
    {
        "version": COUNT,
        **fields(TEXT, "creationDate modificationDate"),
        "ledgers": list_of(_STORED, most=None),
        "cursors": map_of(
            record(
                "CursorInfo", {"version": COUNT, "cursorsLedgerId": WHOLE, "markDelete": _POSITION}
            ),
            most=None,
        ),
    },
)
PARTITIONED_INFO: Final = record(
    "PartitionedManagedLedgerInfo", {"version": COUNT, "partitions": map_of(INFO, most=None)}
)
BACKLOG: Final = record(
    "PersistentOfflineTopicStats",
    {
        **fields(COUNT, "storageSize totalMessages messageBacklog"),
        "averageMsgSize": NUMBER,
        **fields(TEXT, "topicName brokerName statGeneratedAt"),
        "dataLedgerDetails": list_of(_STORED, most=None),
        "cursorDetails": map_of(record("CursorDetails", {"cursorBacklog": COUNT}), most=None),
    },
)
ANALYZED: Final = record(
    "AnalyzeSubscriptionBacklogResult",
    {
        **fields(COUNT, "entries messages filterAcceptedEntries filterAcceptedMessages"),
        **fields(COUNT, "filterRejectedEntries filterRejectedMessages"),
        **fields(COUNT, "filterRescheduledEntries filterRescheduledMessages"),
        "aborted": TRUTH,
        **fields(or_null(TEXT), "firstMessageId lastMessageId"),
    },
)
