"""SENDs that wait until their topic takes part in a transaction that spans its namespace."""

from collections.abc import Callable

from pybroker.base.names import TxnId
from pybroker.server.connection import Connection
from pybroker.server.held_runs import HeldRoom, HeldRuns
from pybroker.server.joiners import ConnectionJoins
from pybroker.server.slots import ProducerSlot
from pybroker.server.transaction_owner import check_owner
from pybroker.transaction.coordinator.joining import Joined
from pybroker.wire.frames import SendRun


class _PublishRoom(HeldRoom):
    """Counts waiting SENDs as being written, for back-pressure: they wait only for one write."""

    def __init__(self, session: Connection) -> None:
        super().__init__()
        self._session = session

    def take(self, size_bytes: int) -> bool:
        self._session.spend_budget(size_bytes)
        return True

    def give_back(self, size_bytes: int) -> None:
        self._session.services.budget.give_back(size_bytes)


def joining(session: Connection, slot: ProducerSlot, txn_id: TxnId) -> Joined | None:
    """None: the topic already takes part, or the SEND will get an error. Raises AuthorizationError
    or TransactionNotFound (the transaction belongs to another principal), NotAllowed (no room).
    """
    if session.login is not None:
        check_owner(session, txn_id)
    joins = session.services.coordinators.joining
    if not joins.are_any:
        return None
    return joins.partition(txn_id, slot.topic.name, ConnectionJoins(session))


def hold_until(
    session: Connection,
    slot: ProducerSlot,
    run: SendRun,
    joined: Joined,
    go_on: Callable[[HeldRuns], None],
    too_long: Callable[[], None],
) -> None:
    """Holds `run` and the producer's later runs; closing the producer waits for them."""
    held = slot.held = HeldRuns(_PublishRoom(session), too_long)
    held.by_rate = True
    held.keep(run)
    joined.add_done_callback(lambda _: go_on(held))
