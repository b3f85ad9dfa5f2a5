"""Checks that only the role that began a transaction, or a superuser, uses it.

This comes before everything else: also the outcome of a transaction, the reason of its abort and
its transactional id are for its owner only.
"""

from pybroker.base.errors import AuthorizationError
from pybroker.base.names import TxnId
from pybroker.server.connection import Connection


def check_owner(session: Connection, txn_id: TxnId) -> None:
    """Raises AuthorizationError."""
    principal = session.principal
    if principal is None:
        return
    if session.services.coordinators.ever_owner_of(txn_id) not in (None, principal):
        raise AuthorizationError(
            f"Transaction {txn_id} belongs to another principal than {principal!r}"
        )
