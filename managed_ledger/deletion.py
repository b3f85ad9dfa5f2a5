"""Deletes managed ledgers; a crash leaves each either complete or certain to be deleted.

First the list of the managed ledger becomes a tombstone: that write is the decision. Then the data,
the cursors and, last, the list are deleted. At start `sweep` finishes deletions that a crash
interrupted, and deletes ledgers without a list, which were released just before a crash.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.ledger_metadata import LEDGERS_PREFIX, LedgerList, cursors_prefix, ledgers_key
from managed_ledger.list_record import ListRecord
from managed_ledger.storage.backend import Backend, KeyAt, MetadataStore

log = logging.getLogger(__name__)


async def delete_managed_ledger(
    name: str, backend: Backend, record: ListRecord, only_while: KeyAt | None = None
) -> None:
    """Call when there is no writer any more. Raises ManagedLedgerError: then try again. Raises
    BadVersion if another process has taken over the managed ledger, or `only_while` does not hold.
    """
    found = record.queued
    ids = (*found.deleting, *(info.ledger_id for info in found.ledgers))
    tombstone = LedgerList(deleting=ids, deleted=True)
    if not found.deleted and backend.is_shared:
        # If another process has taken over the managed ledger, this fails: the ledgers belong to
        # it.
        await record.write(tombstone, only_while=only_while)
        found = tombstone
    # Not bound to a name: see `all_done`.
    await all_done(
        [
            *(() if found.deleted else (record.write(tombstone, only_while=only_while),)),
            *map(backend.delete_ledger, ids),
        ]
    )
    metadata = backend.metadata
    keys = [*metadata.keys(cursors_prefix(name)), ledgers_key(name)]
    await all_done(_forget(metadata, key, only_while) for key in keys)


async def _forget(metadata: MetadataStore, key: str, only_while: KeyAt | None = None) -> None:
    """Delete a key, unless another process has recreated it after finishing the deletion."""
    try:
        known = metadata.get(key)
    except CorruptStorage:
        await metadata.delete(key, only_while=only_while)
        return
    if known is None:  # a delete without a version could hit a newer value
        return
    try:
        await metadata.delete(key, known.version, only_while)
    except BadVersion:
        log.info("%s is not deleted here: another process has written it meanwhile", key)


async def sweep(backend: Backend) -> None:
    """Finish interrupted deletions and delete ledgers without a list. Runs before any managed
    ledger is opened. Raises ManagedLedgerError. A list that cannot be decoded stops the sweep,
    because its ledgers are unknown.

    On a shared storage this does nothing, because other processes may be creating and deleting
    ledgers: there the next process that opens a managed ledger finishes its deletion.
    """
    if backend.is_shared:
        return
    lists = {
        key: ListRecord(backend.metadata, key) for key in backend.metadata.keys(LEDGERS_PREFIX)
    }
    counted = {info.ledger_id for record in lists.values() for info in record.queued.ledgers}
    for key, record in lists.items():
        for info in record.queued.ledgers:
            for span in backend.damaged(info.ledger_id):
                name = key.removeprefix(LEDGERS_PREFIX)
                log.error("%s lacks entries %d to %d of ledger %d", name, *span, info.ledger_id)
    orphans = [ledger_id for ledger_id in backend.ledger_ids() if ledger_id not in counted]
    if orphans:
        log.info("deleting %d ledgers that no managed ledger lists", len(orphans))
    await all_done(map(backend.delete_ledger, orphans))
    for key, record in lists.items():
        if record.queued.deleted:
            await delete_managed_ledger(key.removeprefix(LEDGERS_PREFIX), backend, record)


async def all_done(work: Iterable[Awaitable[object]]) -> None:
    """Wait until all have ended; raises the first failure.

    The failure's traceback refers to this frame and those of its callers. None of these frames may
    refer to the failure or to its future: only the garbage collector could free such a cycle.
    """
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    failed = next((each for each in outcomes if isinstance(each, BaseException)), None)
    if failed is not None:
        try:
            raise failed
        finally:
            del work, outcomes, failed
