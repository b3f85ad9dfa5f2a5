"""A subscription's properties, and its replication setting.

Both are stored with the cursor; nothing is replicated here, but the setting is shown.
"""

from collections.abc import Mapping
from typing import Final

from managed_ledger.cursor import ManagedCursor
from pybroker.broker.subscriptions import isolation

_REPLICATED: Final = "pulsar.replicated.subscription"


def shown(cursor: ManagedCursor) -> dict[str, str]:
    return {key: value for key, value in cursor.properties.items() if key != _REPLICATED}


def is_replicated(cursor: ManagedCursor) -> bool:
    return _REPLICATED in cursor.properties


async def replace(cursor: ManagedCursor, properties: Mapping[str, str]) -> None:
    """Durable when it returns. The isolation level and the replication setting stay, whether or not
    `properties` has them. Raises NotAllowed for another isolation level.
    """
    asked = isolation.asked_for(properties)
    isolation.check_stays(isolation.kept_in(cursor.properties), asked, f"{cursor.name}")
    fixed = (_REPLICATED, isolation.PROPERTY)
    kept = {key: cursor.properties[key] for key in fixed if key in cursor.properties}
    said = {key: value for key, value in properties.items() if key != _REPLICATED}
    await cursor.replace_properties(said | kept)


async def replicate(cursor: ManagedCursor) -> None:
    """Mark the subscription as replicated, because a consumer asked for it. Durable when it
    returns.
    """
    if not is_replicated(cursor):
        await set_replicated(cursor, True)


async def set_replicated(cursor: ManagedCursor, replicated: bool) -> None:
    """Durable when it returns."""
    said = {_REPLICATED: "true"} if replicated else {}
    await cursor.replace_properties(shown(cursor) | said)
