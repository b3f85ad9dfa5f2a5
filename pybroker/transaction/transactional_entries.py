"""How entries of a log tell of transactions: what appends must write, and what a scan finds.

Recovery has nothing but the log, so every entry's own metadata names its transaction, also where a
client named it in the SEND command only (the Go client does).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.names import TxnId
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    MARKER_TXN_COMMIT,
    BadEntry,
    marker_entry,
    parse_metadata,
    transaction_of,
)

_MARKER_TYPES: Final = {TxnAction.COMMIT: MARKER_TXN_COMMIT, TxnAction.ABORT: MARKER_TXN_ABORT}
_ACTIONS: Final = {marker_type: action for action, marker_type in _MARKER_TYPES.items()}


class TransactionalEntry(NamedTuple):
    """`action` None: a message of the transaction; else the marker that ends it."""

    txn_id: TxnId
    action: TxnAction | None
    position: Position


def marker(txn_id: TxnId, action: TxnAction, publish_time_ms: int) -> bytes:
    return marker_entry(txn_id, _MARKER_TYPES[action], publish_time_ms)


def transactional_entries(run: EntryRun) -> Iterator[TransactionalEntry]:
    for entry_id, entry in enumerate(run.entries, run.first_entry_id):
        try:
            metadata = parse_metadata(entry)
        except BadEntry:
            continue  # stored as it was sent; it can name no transaction
        txn_id = transaction_of(metadata)
        if txn_id is not None:
            action = _ACTIONS.get(metadata.marker_type)
            yield TransactionalEntry(txn_id, action, Position(run.ledger_id, entry_id))
