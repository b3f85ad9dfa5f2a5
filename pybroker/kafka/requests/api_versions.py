"""ApiVersions: what the broker speaks; every client's first request.

- 0 to 2: the table; 1 adds the throttle time, 2 changes nothing in the bytes.
- 3 (KIP-511): flexible; the client says its name and version; features (KIP-584).
- 4: the minimum of a supported feature may be 0.

A version that is too new is answered in version 0 with UNSUPPORTED_VERSION and the whole table, so
that the client can choose (`unsupported`); the connection does this, as it cannot read the request.
"""

import re
from typing import Any, Final

from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.requests.table import ROWS, Row
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Request, Session

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]{0,200}[a-zA-Z0-9])?")
_FIRST_FLEXIBLE: Final = 3
# Levels that are in force, and with that what clients may use: name, level. KIP-584.
FEATURES: Final[dict[str, int]] = {
    "group.version": 1,  # KIP-848
    "share.version": 1,  # KIP-932
    "transaction.version": 2,  # KIP-890
}


async def handle(services: KafkaServices, session: Session, request: Request) -> dict[str, Any]:
    if request.version >= _FIRST_FLEXIBLE:
        named = request["client_software_name"], request["client_software_version"]
        if not all(map(_SOFTWARE.fullmatch, named)):
            return {"error_code": ErrorCode.INVALID_REQUEST}
        session.software_name, session.software_version = named
    return _table() | {
        "supported_features": [
            {"name": name, "min_version": 0 if request.version > 3 else 1, "max_version": level}
            for name, level in FEATURES.items()
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in FEATURES.items()
        ],
    }


def unsupported() -> dict[str, Any]:
    """For a client whose version is too new."""
    return _table() | {"error_code": ErrorCode.UNSUPPORTED_VERSION}


def _table() -> dict[str, Any]:
    return {"api_keys": [_versions(row) for row in sorted(ROWS.values(), key=lambda row: row.key)]}


def _versions(row: Row) -> dict[str, int]:
    first = row.first if row.advertised is None else row.advertised
    return {"api_key": row.key, "min_version": first, "max_version": row.last}
