"""A broker in test mode: fault points, their rules, and the clock. A pybroker extension."""

from typing import Final

from pybroker.base.json_schema import (
    COUNT,
    NUMBER,
    TEXT,
    TRUTH,
    any_of,
    fields,
    list_of,
    map_of,
    or_null,
    record,
    taken,
    whole,
)

POINTS: Final = list_of(
    record(
        "FaultPoint",
        {
            **fields(TEXT, "name state"),
            **fields(list_of(TEXT), "actions predicates"),
        },
    )
)
RULE: Final = record(
    "FaultRule",
    {
        "rule": COUNT,
        **fields(TEXT, "point action"),
        **fields(or_null(TEXT), "topic subscription producer transaction error"),
        "message": TEXT,
        **fields(COUNT, "every after"),
        "times": or_null(COUNT),
        "seconds": NUMBER,
        **fields(COUNT, "hits matched holding"),
        "spent": TRUTH,  # the rule will strike no more
    },
)
RULES: Final = list_of(RULE)
NEW_RULE: Final = taken(
    {
        **fields(TEXT, "point action topic subscription producer transaction error message"),
        "once": TRUTH,
        **fields(whole(0), "every after times"),
        "seconds": NUMBER,
    },
    required=("point", "action"),
    title="NewFaultRule",
)
HIT: Final = record("FaultHit", {"struck": TRUTH, "rule": RULE})
_PASSING: Final = record(
    "FaultPassing",
    {
        **fields(COUNT, "number timestamp"),
        **fields(TEXT, "point topic subscription producer transaction client"),
        "connection": or_null(COUNT),
        "positions": list_of(TEXT),  # the first, as ledger:entry
        "messages": COUNT,
        **fields(TEXT, "detail error struck"),
    },
)
PASSINGS: Final = record(
    "FaultPassings",
    {"counts": map_of(COUNT), "passings": list_of(_PASSING, most=None)},
)
ADVANCE: Final = taken({"by": any_of(TEXT, NUMBER)}, required=("by",), title="ClockAdvance")
CLOCK: Final = record("Clock", fields(COUNT, "timestamp aheadMs"))
