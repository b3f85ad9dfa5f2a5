"""Messages that visitors receive over HTTP, with the fields of Apache Pulsar's WebSocket API."""

from typing import Final

from pybroker.admin.shapes.common import PROPERTIES
from pybroker.admin.shapes.transacting import TXN
from pybroker.base.json_schema import COUNT, TEXT, choice, fields, list_of, record, taken, whole

MOST_MESSAGES: Final = 1000
MOST_WAIT_MS: Final = 30_000
MOST_BYTES: Final = 1024 * 1024
_HOUR_MS: Final = 3_600_000
TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
_ID: Final = {**TEXT, "maxLength": 200}

_HOW: Final = {"subscriptionType": choice(*TYPES)}
RECEIVE: Final = taken(
    {
        "maxMessages": whole(1, MOST_MESSAGES),
        "maxBytes": whole(1, MOST_BYTES),
        "waitMs": whole(0, MOST_WAIT_MS),
        "visibilityMs": whole(1000, _HOUR_MS),
        **_HOW,
        "subscriptionInitialPosition": choice("Latest", "Earliest"),
    },
    title="Receive",
)
RECEIVED: Final = record(
    "ReceivedMessages",
    {
        "messages": list_of(
            record(
                "ReceivedMessage",
                {
                    **fields(TEXT, "messageId payload publishTime key eventTime"),
                    "properties": PROPERTIES,
                    "redeliveryCount": COUNT,
                },
                optional=("key", "eventTime"),
            ),
            most=None,
        )
    },
)
ACKNOWLEDGE: Final = taken(
    {"messageIds": list_of(_ID, most=MOST_MESSAGES), "txn": TXN, **_HOW},
    required=("messageIds",),
    title="Acknowledge",
)
GIVE_BACK: Final = taken(
    {"messageIds": list_of(_ID, most=MOST_MESSAGES), **_HOW},
    required=("messageIds",),
    title="NegativeAcknowledge",
)
