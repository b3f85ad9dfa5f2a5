"""What brokers ask each other when an ordinary topic is made scalable."""

from typing import Final

from pybroker.base.json_schema import TEXT, fields, list_of, record

_STRANGER: Final = record("MigrationStranger", fields(TEXT, "topic what subscription consumer"))
_MEMBER: Final = list_of(TEXT, 2)
CLIENTS: Final = record(
    "MigrationClients",
    {"strangers": list_of(_STRANGER, None), "members": list_of(_MEMBER, None)},
)
