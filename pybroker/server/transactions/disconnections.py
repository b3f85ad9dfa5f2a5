"""Aborts transactions as soon as the connection that began them closes.

This needs a request: in NEW_TXN (`abort_on_disconnect`, a wire extension), in the policy
transactionLimits of a namespace in which the transaction takes part, or in broker.conf. There is no
grace period. Transactions that are COMMITTING or ABORTING continue. The broker's own stop or crash
aborts nothing: clients reconnect, and from then on only the timeout applies.
"""

import asyncio
import logging
from typing import Final

from pybroker.base.errors import PulsarError, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.policies.table import TRANSACTION_LIMITS
from pybroker.broker.policies.transaction_limits import HasPolicies
from pybroker.server.transactions.begun_transactions import Left
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.txn_status import TxnStatus

_ABORTED_A_TURN: Final = 20
_TRIES: Final = 30  # while a coordinator is being reopened; then the timeout applies
_AGAIN_S: Final = 1.0
_REASON: Final = "it was aborted because the connection that began it closed"

log = logging.getLogger("pybroker.session")


class Disconnections:
    """One for all connections. Aborts nothing after `close`."""

    def __init__(self, coordinators: Coordinators, policies: HasPolicies) -> None:
        self._coordinators = coordinators
        self._policies = policies
        self._closed = False
        self._tasks = Tasks("transactions of connections that closed")

    def left(self, transactions: Left) -> None:
        """Takes over the transactions of a closed connection."""
        if not self._closed:
            self._tasks.start(self._abort(transactions), "abort")

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()

    async def _abort(self, owned: Left) -> None:
        for _ in range(_TRIES):
            owned = await self._tried(owned)
            if not owned:
                return
            await asyncio.sleep(_AGAIN_S)
        log.warning(
            "%d transactions of a closed connection stay open until they time out", len(owned)
        )

    async def _tried(self, owned: Left) -> dict[TxnId, bool]:
        """Returns the transactions that are left because their coordinator is not open."""
        left, pace = {}, Pace(_ABORTED_A_TURN)
        for txn_id, asked in owned.items():
            transaction = self._coordinators.begun(txn_id)
            if transaction is None or transaction.status is not TxnStatus.OPEN:
                continue
            if asked or self._is_wanted(transaction):
                try:
                    coordinator = await self._coordinators.get(txn_id.most)
                    coordinator.abort(txn_id, _REASON, DecidedBy.DISCONNECT)
                except TransactionCoordinatorNotFound:
                    left[txn_id] = asked
                except PulsarError as error:  # something else has just ended it
                    log.info("%s: %s", txn_id, error)
            await pace.step()
        return left

    def _is_wanted(self, transaction: TransactionMetadata) -> bool:
        """To a transaction that takes part in no namespace, only broker.conf applies."""
        namespaces = [*transaction.namespaces, transaction.namespace or ""]
        if len(namespaces) > 1 and not namespaces[-1]:
            del namespaces[-1]
        return any(
            self._policies.of_namespace(namespace)[TRANSACTION_LIMITS]["abortOnDisconnect"]
            for namespace in namespaces
        )
