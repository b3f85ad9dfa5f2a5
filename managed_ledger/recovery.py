"""Opens a managed ledger: completes what the last writer left, and fences that writer.

Recover the last ledger (which fences its writer) -> drop empty ledgers -> compare-and-set the list,
which creates a new ledger -> recover the cursors. Nothing is acknowledged before the
compare-and-set.
"""

import asyncio
import logging
from dataclasses import replace

from managed_ledger.deletion import delete_managed_ledger
from managed_ledger.empty_ledgers import noted_empty
from managed_ledger.errors import LedgerNotFound
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo, ledgers_key
from managed_ledger.list_record import ListRecord
from managed_ledger.steady_time import SteadyTime
from managed_ledger.storage.backend import Backend

log = logging.getLogger(__name__)

CREATED_AT_MS = "managed-ledger.created-at-ms"  # a property


async def recover_list(
    name: str, backend: Backend, time: SteadyTime
) -> tuple[LedgerIndex, ListRecord]:
    await backend.metadata.refresh(ledgers_key(name))
    record = ListRecord(backend.metadata, ledgers_key(name))
    if record.queued.deleted:
        await delete_managed_ledger(name, backend, record)
        record = ListRecord(backend.metadata, ledgers_key(name))
    found = record.queued
    settled = [await settle(info, name, backend, time) for info in found.ledgers]
    kept = tuple(info for info in settled if info.entries)
    dropped = tuple(info.ledger_id for info in settled if not info.entries)
    # First delete the ledgers that the last opening left; otherwise each opening grows the list.
    await asyncio.gather(*map(backend.delete_ledger, found.deleting))
    await backend.number_above(max((info.ledger_id for info in found.ledgers), default=-1))
    current_id = backend.new_ledger_id()
    if not found.ledgers:  # the managed ledger is new
        properties = {**found.properties, CREATED_AT_MS: str(time.now_ms())}
        found = replace(found, properties=properties)
    elif all(info.closed_at_ms is not None and not info.entries for info in settled):
        found = replace(found, properties=noted_empty(found, current_id))
    listed = replace(found, ledgers=(*kept, LedgerInfo(current_id)), deleting=dropped)
    await record.write(listed, new_ledger_id=current_id)
    await asyncio.gather(*map(backend.delete_ledger, dropped))
    record.forget_deleted(dropped)
    return LedgerIndex(kept, current_id), record


async def settle(info: LedgerInfo, name: str, backend: Backend, time: SteadyTime) -> LedgerInfo:
    """The ledger with its final counts: those of the last writer's current ledger come from its
    recovery, the list has the others.
    """
    if info.closed_at_ms is not None:
        return replace(info, closed_at_ms=min(info.closed_at_ms, time.now_ms()))
    try:
        summary = await backend.recover_ledger(info.ledger_id)
    except LedgerNotFound:
        log.error(
            "%s lists ledger %d, which does not exist; the ledger is dropped", name, info.ledger_id
        )
        return info
    entries = summary.last_entry_id + 1
    return LedgerInfo(info.ledger_id, entries, summary.size_bytes, time.now_ms())
