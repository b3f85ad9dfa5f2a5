"""Ledgers with numbers from another storage, and checks for leftovers of earlier ledgers with these
numbers.

BookKeeper assumes that no number is used twice. A bookie frees the entries of a deleted ledger only
after a while, and could then free new entries, too; if the deleted ledger was fenced, it refuses
new entries. The writer of a copy passes fences: nobody else writes to that ledger, and each entry
is the same in every attempt.
"""

import asyncio

from managed_ledger.errors import BadVersion
from managed_ledger.storage.bookkeeper.bookies import Bookies
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore, VersionedMetadata
from managed_ledger.storage.bookkeeper.metadata_record import LedgerMetadata
from managed_ledger.storage.bookkeeper.protocol import LAST_CONFIRMED, Code
from managed_ledger.storage.importing import LedgerExists


async def refuse_leftovers(bookies: Bookies, ledger_id: int) -> None:
    """Raises LedgerExists; BookieFailed if a registered bookie does not answer."""
    asked = bookies.registered
    answers = await asyncio.gather(
        *(bookies.read(bookie, ledger_id, LAST_CONFIRMED) for bookie in asked)
    )
    for bookie, answer in zip(asked, answers, strict=True):
        if answer.code != Code.NO_LEDGER:
            raise LedgerExists(
                f"bookie {bookie} still holds entries of an earlier ledger {ledger_id}, which was "
                "deleted; wait until it has freed them (gcWaitTime), then repeat the command"
            )


async def take_over(
    store: LedgerStore, ledger_id: int, found: VersionedMetadata, metadata: LedgerMetadata
) -> int:
    """Replace the metadata of an incomplete copy by `metadata`, of an open ledger, and return its
    version. BookKeeper's auto-recovery may have fenced and closed the copy while bookies were away.
    Entries on the former bookies no longer belong to the ledger. Raises LedgerExists,
    ZooKeeperError.
    """
    try:
        return await store.change(ledger_id, metadata, found.version)
    except BadVersion:
        raise LedgerExists(
            f"another client is recovering ledger {ledger_id}, whose copy is incomplete: repeat "
            "the command in a moment"
        ) from None
