"""Checks that only the role that began a transaction, or a superuser, uses it.

This comes before everything else: also the outcome of a transaction, the reason of its abort and
its transactional id are for its owner only.
"""

from collections.abc import Iterable

from pybroker.base.errors import AuthorizationError
from pybroker.base.names import TxnId
from pybroker.logs import audit
from pybroker.server.audited import actor_of
from pybroker.server.connections.connection import Connection
from pybroker.transaction.txn_status import TxnAction, TxnStatus


def check_owner(session: Connection, txn_id: TxnId) -> None:
    """Raises AuthorizationError if the transaction belongs to another principal."""
    principal = session.principal
    if principal is None:
        return
    if session.services.coordinators.ever_owner_of(txn_id) not in (None, principal):
        raise AuthorizationError(
            f"Transaction {txn_id} belongs to another principal than {principal!r}"
        )


def note_foreign_ends(session: Connection, txn_ids: Iterable[TxnId], action: TxnAction) -> None:
    """A superuser decides prepared transactions of others: each is a line of the audit log."""
    for txn_id in txn_ids:
        found = session.services.coordinators.begun(txn_id)
        if found is None or found.status is not TxnStatus.PREPARED or found.owner == session.owner:
            continue
        with audit.acting_as(actor_of(session)):
            what = f"{action.name.lower()} prepared transaction"
            audit.done(what, f"{txn_id} of {found.owner or 'nobody'}")
