"""Schemas that many routes use."""

from typing import Final

from pybroker.base.errors import AuthenticationError, PulsarError
from pybroker.base.json_schema import (
    COUNT,
    LONG,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    any_of,
    fields,
    list_of,
    map_of,
    or_null,
    record,
    taken,
    whole,
)

# Without limits: for answers of the broker, and for values with limits of their own.
TEXTS: Final = list_of(TEXT, most=None)
PROPERTIES: Final = map_of(TEXT, most=None)
PROPERTIES_TAKEN: Final = map_of(TEXT, most=5000)
TIME: Final = or_null(TEXT)  # ISO 8601
REFUSAL: Final = record("Refusal", {"reason": TEXT, "advice": TEXT}, optional=("advice",))
_ID: Final = whole(-LONG - 1)

MESSAGE_ID: Final = record(
    "MessageId",
    {**fields(WHOLE, "ledgerId entryId partitionIndex"), "batchIndex": COUNT},
    optional=("partitionIndex", "batchIndex"),
)
A_MESSAGE_ID: Final = taken({"ledgerId": _ID, "entryId": _ID}, ("ledgerId", "entryId"))
RESET_CURSOR: Final = taken(
    {
        **fields(_ID, "ledgerId entryId partitionIndex batchIndex"),
        "excluded": TRUTH,
        "isExcluded": TRUTH,
        "properties": PROPERTIES_TAKEN,
    },
    required=("ledgerId", "entryId"),
    title="ResetCursorData",
)

PARTITIONED: Final = record(
    "PartitionedTopicMetadata",
    {"partitions": COUNT, "deleted": TRUTH, "properties": PROPERTIES},
    optional=("properties",),
)
PARTITION_COUNT: Final = any_of(
    whole(-(2**31), 2**31 - 1),
    taken(
        {"partitions": whole(-(2**31), 2**31 - 1), "properties": PROPERTIES_TAKEN}, ("partitions",)
    ),
)


def refusal(error: PulsarError) -> dict[str, str]:
    """The body of an error. `reason` is Apache Pulsar's sentence if it has one, because clients
    compare it.
    """
    is_secret = isinstance(error, AuthenticationError)
    advice = {"advice": error.advice} if error.advice and not is_secret else {}
    return {"reason": error.sentence} | advice


def process_status(title: str, *more: str) -> Schema:
    return record(
        title,
        {
            "status": {"type": "string", "enum": ["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]},
            "lastError": TEXT,
            **fields(or_null(TEXT), " ".join(more)),
        },
    )
