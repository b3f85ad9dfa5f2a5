"""Statistics of transactions: coordinators, single transactions, their participants."""

from typing import Final

from pybroker.admin.shapes.ledgers import LOG_STATS
from pybroker.base.json_schema import (
    COUNT,
    TEXT,
    TRUTH,
    WHOLE,
    choice,
    fields,
    list_of,
    map_of,
    or_null,
    record,
)

_RECOVERY: Final = fields(COUNT, "recoverStartTime recoverEndTime")
COORDINATORS: Final = list_of(
    record("TransactionCoordinatorInfo", {"id": COUNT, "brokerServiceUrl": TEXT}), most=None
)
_RETRY: Final = record(  # an extension: a participant that does not know the end yet
    "TransactionRetry",
    {
        **fields(TEXT, "txnId participant topic"),
        **fields(or_null(TEXT), "subscription lastError"),
        "attempts": COUNT,
    },
)
COORDINATOR: Final = record(
    "TransactionCoordinatorStats",
    {
        "state": TEXT,
        **fields(WHOLE, "lowWaterMark leastSigBits"),
        "ongoingTxnSize": COUNT,
        **_RECOVERY,
        # extensions
        **fields(COUNT, "createdCount committedCount abortedCount timeoutCount"),
        "retries": list_of(_RETRY, most=None),
        "givenUp": list_of(_RETRY, most=None),
    },
)
COORDINATORS_STATS: Final = map_of(COORDINATOR, most=None)
COORDINATOR_INTERNAL: Final = record(
    "TransactionCoordinatorInternalStats", {"transactionLogStats": LOG_STATS}
)
IN_BUFFER: Final = record(
    "TransactionInBufferStats", {"startPosition": or_null(TEXT), "aborted": TRUTH}
)
IN_PENDING_ACK: Final = record(
    "TransactionInPendingAckStats", {"cumulativeAckPosition": or_null(TEXT)}
)
METADATA: Final = record(
    "TransactionMetadata",
    {
        **fields(TEXT, "txnId status"),
        "openTimestamp": COUNT,
        "timeoutAt": COUNT,
        "owner": or_null(TEXT),
        "producedPartitions": map_of(IN_BUFFER, most=None),
        "ackedPartitions": map_of(map_of(IN_PENDING_ACK, most=None), most=None),
        "abortReason": TEXT,  # an extension; absent or empty if the owner requested the abort
    },
    # Only the outcome of an ended transaction is known.
    optional=(
        "openTimestamp",
        "timeoutAt",
        "owner",
        "producedPartitions",
        "ackedPartitions",
        "abortReason",
    ),
)
SLOW: Final = map_of(METADATA, most=None)
TRANSACTIONAL_ID: Final = record(  # an extension
    "TransactionalId",
    {
        "transactionalId": TEXT,
        "owner": or_null(TEXT),
        **fields(COUNT, "epoch lastUseTimestamp"),
        "openTransactions": list_of(TEXT, most=None),
    },
)
TRANSACTIONAL_IDS: Final = list_of(TRANSACTIONAL_ID, most=None)
_LOW_WATER_MARKS: Final = or_null(map_of(WHOLE, most=None))
BUFFER: Final = record(
    "TransactionBufferStats",
    {
        **fields(TEXT, "state maxReadPosition"),
        "snapshotType": choice("Single"),
        "lastSnapshotTimestamps": COUNT,
        "lowWaterMarks": _LOW_WATER_MARKS,
        **fields(COUNT, "ongoingTxnSize totalAbortedTransactions"),
        **_RECOVERY,
        "segmentsStats": {"type": "null"},
    },
)
BUFFER_INTERNAL: Final = record(
    "TransactionBufferInternalStats",
    {
        "snapshotType": choice("Single"),
        **fields(
            {"type": "null"},
            "singleSnapshotSystemTopicInternalStats segmentInternalStats segmentIndexInternalStats",
        ),
    },
)
PENDING_ACK: Final = record(
    "TransactionPendingAckStats",
    {"state": TEXT, "lowWaterMarks": _LOW_WATER_MARKS, "ongoingTxnSize": COUNT, **_RECOVERY},
)
PENDING_ACK_INTERNAL: Final = record(
    "TransactionPendingAckInternalStats", {"pendingAckLogStats": LOG_STATS}
)
IN_PENDING_ACK_STATE: Final = record(
    "PositionInPendingAckStats",
    {
        "state": choice(
            "PendingAck", "MarkDelete", "NotInPendingAck", "PendingAckNotReady", "InvalidPosition"
        )
    },
)
