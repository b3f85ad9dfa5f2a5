"""Groups of Kafka's clients."""

from typing import Final

from pybroker.base.json_schema import COUNT, TEXT, WHOLE, fields, list_of, record, taken, whole

_MOST_OFFSETS: Final = 10_000
_GROUP: Final = {**fields(TEXT, "group kind state"), **fields(COUNT, "members committedPartitions")}
GROUPS: Final = list_of(record("KafkaGroup", _GROUP), None)
_OFFSET: Final = record(
    "KafkaOffset",
    {
        **fields(TEXT, "topic metadata"),
        **fields(COUNT, "partition endOffset lag"),
        "committedOffset": WHOLE,
    },
    optional=("endOffset", "lag"),
)
GROUP: Final = record("KafkaGroupWithOffsets", {**_GROUP, "offsets": list_of(_OFFSET, None)})
ENDS: Final = list_of(record("KafkaEndOffset", fields(COUNT, "partition endOffset")), None)
_SHARE_OFFSET: Final = record(
    "KafkaShareOffset",
    {**fields(COUNT, "partition startOffset lag"), "errorCode": WHOLE, "message": TEXT},
    optional=("startOffset", "lag", "errorCode", "message"),
)
SHARE_OFFSETS: Final = list_of(_SHARE_OFFSET, None)
_MOVED: Final = taken(
    {"partition": whole(0, 2**31 - 1), "offset": whole(-(2**63))},
    required=("partition", "offset"),
    title="MovedKafkaShareOffset",
)
MOVE: Final = taken(
    {"offsets": list_of(_MOVED, _MOST_OFFSETS)},
    required=("offsets",),
    title="MoveKafkaShareOffsets",
)
LOGS: Final = list_of(COUNT, None)
OF_PARTITION: Final = {"partition": whole(0, 2**31 - 1)}
_COMMITTED: Final = taken(
    {
        "topic": TEXT,
        "partition": whole(0, 2**31 - 1),
        "offset": whole(0),
        "metadata": {**TEXT, "maxLength": 4096},
    },
    required=("topic", "partition", "offset"),
    title="CommittedKafkaOffset",
)
COMMIT: Final = taken(
    {
        "group": {**TEXT, "maxLength": 1024},
        "memberId": TEXT,
        "groupInstanceId": TEXT,
        "generation": whole(-1, 2**31 - 1),
        "offsets": list_of(_COMMITTED, _MOST_OFFSETS),
    },
    required=("group", "offsets"),
    title="CommitKafkaOffsets",
)
