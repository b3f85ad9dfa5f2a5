"""How entries of a log tell of transactions: what appends must write, and what a scan finds.

Recovery has nothing but the log, so every entry's own metadata names its transaction, also where a
client named it in the SEND command only (the Go client does).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun
from pybroker.errors import NotAllowed
from pybroker.names import TxnId
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import (
    MARKER_TXN_ABORT,
    MARKER_TXN_COMMIT,
    BadEntry,
    marker_entry,
    names_transaction,
    parse_metadata,
    transaction_of,
    with_transaction,
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


def naming_transaction(entries: Sequence[bytes], txn_id: TxnId, fields: bytes) -> list[bytes]:
    """The entries, those that do not name `txn_id` rewritten so that they do.

    `fields` is `transaction_fields(txn_id)`. Raises NotAllowed for metadata that does not parse.
    """
    try:
        return [
            entry if names_transaction(entry, fields) else with_transaction(entry, fields)
            for entry in entries
        ]
    except BadEntry as error:
        raise NotAllowed(f"A message of transaction {txn_id} cannot be stored: {error}") from error


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
