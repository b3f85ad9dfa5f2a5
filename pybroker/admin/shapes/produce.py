"""Messages published over HTTP, and their results: Apache Pulsar's ProducerMessages and
ProducerAcks.
"""

from typing import Final

from pybroker.admin.shapes.common import PROPERTIES_TAKEN
from pybroker.base.json_schema import (
    ANYTHING,
    COUNT,
    LONG,
    TEXT,
    TRUTH,
    WHOLE,
    Schema,
    any_of,
    fields,
    list_of,
    record,
    taken,
    whole,
)

MAX_MESSAGES: Final = 1000
MESSAGE: Final = taken(
    {
        "payload": TEXT,
        "key": TEXT,
        "properties": PROPERTIES_TAKEN,
        "eventTime": any_of(whole(0), TEXT),
        "replicationClusters": list_of(TEXT),
        "disableReplication": TRUTH,
        # Numbers the following messages too, up to the next one with a number.
        "sequenceId": whole(0, LONG - MAX_MESSAGES),
        **fields(whole(0), "deliverAt deliverAfterMs"),
    },
    required=("payload",),
    title="ProducerMessage",
)


def _messages(message: Schema) -> Schema:
    return taken(
        {
            "schemaVersion": whole(-1),
            **fields(TEXT, "keySchema valueSchema producerName"),
            "messages": list_of(message, most=MAX_MESSAGES),
        },
        required=("messages",),
        title="ProducerMessages",
    )


MESSAGES: Final = _messages(MESSAGE)
# The messages are unchecked, because an invalid one fails alone.
UNSEEN_MESSAGES: Final = _messages(ANYTHING)
ACKS: Final = record(
    "ProducerAcks",
    {
        "messagePublishResults": list_of(
            record(
                "ProducerAck",
                {"messageId": TEXT, "errorCode": COUNT, "errorMsg": TEXT, "schemaVersion": WHOLE},
                optional=("messageId", "errorMsg"),
            ),
            most=None,
        ),
        "schemaVersion": WHOLE,
    },
)
