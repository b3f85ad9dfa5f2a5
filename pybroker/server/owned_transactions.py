"""Transactions that are aborted at once when the connection that began them closes.

NEW_TXN asks for it (`abort_on_disconnect`, an extension of the wire), the policy transactionLimits
does, of a namespace in which the transaction takes part, or broker.conf. There is no grace: who
wants that wants nobody to wait. What is COMMITTING or ABORTING goes on. The broker's own stop and
its crash abort nothing: clients come back, and from then on the timeout alone counts.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pybroker.base.errors import PulsarError, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Pace, Tasks
from pybroker.broker.policies.table import TRANSACTION_LIMITS
from pybroker.broker.policies.transaction_limits import HasPolicies
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.metadata_store import TransactionMetadata
from pybroker.transaction.txn_status import TxnStatus

_LOOK_FROM: Final = 1000  # transactions of a connection: which of them have ended by now?
_ABORTED_A_TURN: Final = 20
_TRIES: Final = 30  # for a coordinator that is being opened again; then the timeout does it
_AGAIN_S: Final = 1.0
_REASON: Final = "it was aborted because the connection that began it closed"

log = logging.getLogger("pybroker.session")


class OwnedTransactions:
    """Those that one connection began and did not end; True are those that asked for it."""

    __slots__ = ("_asked", "_look_at")

    def __init__(self) -> None:
        self._asked: dict[TxnId, bool] = {}
        self._look_at = _LOOK_FROM

    def __len__(self) -> int:
        return len(self._asked)

    def add(self, txn_id: TxnId, asked: bool, coordinators: Coordinators) -> None:
        """Others may end it, too: whether they have is looked up now and then."""
        self._asked[txn_id] = asked
        if len(self._asked) >= self._look_at:
            live = {t: a for t, a in self._asked.items() if coordinators.begun(t) is not None}
            self._asked, self._look_at = live, max(_LOOK_FROM, 2 * len(live))

    def ended(self, txn_id: TxnId) -> None:
        self._asked.pop(txn_id, None)

    def take(self) -> Mapping[TxnId, bool]:
        taken, self._asked = self._asked, {}
        return taken


class Disconnections:
    """Of all connections. Once it is closed, nothing is aborted any more."""

    def __init__(self, coordinators: Coordinators, policies: HasPolicies) -> None:
        self._coordinators = coordinators
        self._policies = policies
        self._closed = False
        self._tasks = Tasks("transactions of connections that closed")

    def closed(self, owned: OwnedTransactions) -> None:
        """A connection was."""
        if len(owned) and not self._closed:
            self._tasks.start(self._abort(owned.take()), "abort")

    async def close(self) -> None:
        self._closed = True
        await self._tasks.close()

    async def _abort(self, owned: Mapping[TxnId, bool]) -> None:
        for _ in range(_TRIES):
            owned = await self._tried(owned)
            if not owned:
                return
            await asyncio.sleep(_AGAIN_S)
        log.warning("%d transactions of a closed connection stay until they time out", len(owned))

    async def _tried(self, owned: Mapping[TxnId, bool]) -> dict[TxnId, bool]:
        """What is left to do: of coordinators that are not open."""
        left, pace = {}, Pace(_ABORTED_A_TURN)
        for txn_id, asked in owned.items():
            transaction = self._coordinators.begun(txn_id)
            if transaction is None or transaction.status is not TxnStatus.OPEN:
                continue
            if asked or self._is_wanted(transaction):
                try:
                    coordinator = await self._coordinators.get(txn_id.most)
                    coordinator.abort(txn_id, _REASON)
                except TransactionCoordinatorNotFound:
                    left[txn_id] = asked
                except PulsarError as error:  # it has just been ended otherwise
                    log.info("%s: %s", txn_id, error)
            await pace.step()
        return left

    def _is_wanted(self, transaction: TransactionMetadata) -> bool:
        """Where it takes part nowhere, broker.conf says it: no namespace has a policy for it."""
        namespaces = [*transaction.namespaces, transaction.namespace or ""]
        if len(namespaces) > 1 and not namespaces[-1]:
            del namespaces[-1]
        return any(
            self._policies.of_namespace(namespace)[TRANSACTION_LIMITS]["abortOnDisconnect"]
            for namespace in namespaces
        )
