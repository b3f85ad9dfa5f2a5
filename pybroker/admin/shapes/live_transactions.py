"""Live transactions, recently ended ones, the timeline of one transaction; a topic's log by
transactions. A pybroker extension.
"""

from typing import Final

from pybroker.base.json_schema import COUNT, TEXT, choice, fields, list_of, map_of, or_null, record
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.txn_status import TxnStatus

STATUS: Final = choice(*(status.name for status in TxnStatus))
_TALLY: Final = {
    **fields(COUNT, "messages bytes blockedEntries blockedTopics"),
    "blockingMs": or_null(COUNT),
}
_SUMMARY: Final = {
    "txnId": TEXT,
    "status": STATUS,
    **fields(or_null(TEXT), "owner clientAddress clientVersion label"),
    **fields(COUNT, "openTimestamp timeoutMs ageMs"),
    **fields(or_null(COUNT), "timeLeftMs preparedTimestamp decidedTimestamp endTimestamp"),
    "decidedBy": or_null(choice(*(by.value for by in DecidedBy))),
    "abortReason": TEXT,  # empty if the owner requested the abort, or at a timeout
    **fields(COUNT, "topicCount subscriptionCount"),
    "topics": list_of(TEXT, most=None),  # not all
    "subscriptions": list_of(
        record("TransactionSubscription", fields(TEXT, "topic subscription")), most=None
    ),
    # While the transaction is live. Messages from before a restart count once a limit has been
    # checked on the topic.
    **_TALLY,
    **fields(or_null(TEXT), "transactionalId namespace commitsWith preparedName"),
    "epoch": or_null(COUNT),
    "group": list_of(TEXT, most=None),
}
_ONE: Final = record("TransactionSummary", _SUMMARY)
LIVE: Final = record(
    "LiveTransactions",
    {
        **fields(COUNT, "timestamp live matching"),
        "transactions": list_of(_ONE, most=None),
        # The answer to another broker: what each of its transactions holds and blocks here.
        "elsewhere": map_of(record("TransactionTally", _TALLY), most=None),
    },
    optional={"elsewhere"},
)
ENDED: Final = record(
    "EndedTransactions",
    {**fields(COUNT, "timestamp matching"), "transactions": list_of(_ONE, most=None)},
)
_PARTICIPANT: Final = record(
    "TransactionParticipant",
    {
        "topic": TEXT,
        **fields(
            or_null(TEXT),
            "subscription firstPosition markerPosition cumulativeAckPosition lastError",
        ),
        **fields(
            or_null(COUNT), "addedTimestamp followedTimestamp messages bytes acknowledgements"
        ),
        "attempts": COUNT,  # failed attempts to end the transaction there
    },
)
_OUTCOME: Final = {"timestamp": COUNT, "txnId": TEXT, "status": STATUS, "abortReason": TEXT}
TIMELINE: Final = record(
    "TransactionTimeline",
    {**_SUMMARY, **_OUTCOME, "participants": list_of(_PARTICIPANT, most=None)},
    # Long after the end, only the outcome is known.
    optional=set(_SUMMARY) - set(_OUTCOME) | {"participants"},
)
_SEGMENT: Final = record(
    "TransactionSegment",
    {**fields(TEXT, "from to"), "entries": COUNT, "txnId": or_null(TEXT)},
)
_OPEN_THERE: Final = record(
    "TransactionOnTopic",
    {
        "txnId": TEXT,
        **fields(or_null(TEXT), "owner label status firstPosition"),
        **fields(COUNT, "openTimestamp ageMs"),
        **fields(or_null(COUNT), "timeLeftMs messages bytes"),
        "holdsReadersBack": {"type": "boolean"},
    },
)
SEGMENTS: Final = record(
    "TopicByTransactions",
    {
        **fields(TEXT, "topic firstPosition lastStablePosition lastConfirmedEntry"),
        **fields(COUNT, "timestamp readableEntries blockedEntries openTransactions"),
        "cause": or_null(TEXT),
        "transactions": list_of(_OPEN_THERE, most=None),  # the oldest, oldest first
        "segments": list_of(_SEGMENT, most=None),
    },
)
