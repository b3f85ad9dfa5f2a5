"""Ledgers that begin while too few bookies are available have fewer copies than wanted.

When such a ledger is closed, its metadata state the copies that are wanted. The places of the
missing ones have the ids of bookies that do not exist: auto-recovery does not write to a bookie
that an ensemble names already. Readers ask these last, and pass over them. The ledger is also
listed as under-replicated, as BookKeeper's auditor lists those of a lost bookie. So auto-recovery
makes the missing copies as soon as there are bookies for them.

Source: ZkLedgerUnderreplicationManager, UnderreplicatedLedgerFormat.
"""

import logging
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.storage.bookkeeper.ledger_store import LedgerStore
from managed_ledger.storage.bookkeeper.metadata_record import NO_ENTRY, LedgerMetadata
from managed_ledger.storage.bookkeeper.quorums import Quorums
from managed_ledger.storage.zookeeper.errors import ConnectionLoss, NodeExists

log = logging.getLogger(__name__)
_NO_BOOKIE: Final = "missing-copy"
_LISTED: Final = "underreplication/ledgers"


def lacks_copies(quorums: Quorums, wanted: Quorums) -> bool:
    return quorums.write < wanted.write and not quorums.is_striped


def is_missing(bookie: str) -> bool:
    """Whether the id stands for a missing copy."""
    return bookie.startswith(f"{_NO_BOOKIE}-")


def with_copies(closed: LedgerMetadata, wanted: Quorums) -> LedgerMetadata:
    """The metadata of a closed ledger, with as many copies as wanted."""
    quorums = closed.quorums
    if not lacks_copies(quorums, wanted) or closed.last_entry_id == NO_ENTRY:
        return closed
    return closed.with_more(_places(quorums, wanted))


def _places(written: Quorums, wanted: Quorums) -> tuple[str, ...]:
    return tuple(f"{_NO_BOOKIE}-{number}" for number in range(written.write, wanted.write))


async def list_missing(
    ledger_id: int, closed: LedgerMetadata, written: Quorums, store: LedgerStore
) -> None:
    """List the ledger as under-replicated, if auto-recovery has ever run. `written` are the quorums
    before `with_copies`. Failures are logged: auto-recovery finds the ledger later.
    """
    if closed.quorums == written:
        return
    bookies = closed.segments[0].bookies[written.ensemble :]
    digits = f"{ledger_id:016x}"
    folder = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    value = "".join(f'replica: "{each}"\n' for each in bookies).encode()
    root = f"{store.root}/{_LISTED}"
    try:
        if await store.exists(root):
            await store.create_below(root, f"{folder}/urL{ledger_id:010}", value)
    except (NodeExists, ConnectionLoss):
        pass
    except ManagedLedgerError as why:
        log.info("ledger %d is not listed as under-replicated: %s", ledger_id, why)
