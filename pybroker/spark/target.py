"""A database as a target of exactly_once: the rows of a batch, its messages and its input commit
together, in the driver.

The database decides, as in pybroker.client.database. The checkpoint records the name of the row
beside the transaction. So a driver that takes over asks the database about it first: either it has
committed, or then it never will, also if the predecessor is still at work. Another database does
not know, so it must not decide. Transactions that no checkpoint knows any more are found by their
names.

Each attempt has its own connection: Spark calls from several threads, and what a failed attempt has
left open ends with its connection.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from pybroker.base.errors import InvalidTxnStatus, NotAllowed, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.client import Client, Transaction
from pybroker.client.database import tables
from pybroker.client.database.commit import Commit
from pybroker.client.database.connections import at_once, connection_of
from pybroker.client.database.recovery import keeper_of
from pybroker.client.database.tables import Verdict
from pybroker.client.errors import InvalidConfiguration
from pybroker.spark.checkpoint import LeftOpen
from pybroker.spark.decision import BatchRefused
from pybroker.spark.work import Work

log = logging.getLogger("pybroker.spark")

Store = Callable[[Any, DataFrame, int], None]


@dataclass(frozen=True, slots=True)
class Database:
    """`connect` opens a PEP 249 connection, or that of `jdbc`. `store(connection, batch, batch_id)`
    executes there, on the driver, what the batch writes; it does not commit, and may be called
    again for the same batch after the database has rolled back.
    """

    connect: Callable[[], Any]
    store: Store


class Target:
    """A connection of one attempt."""

    def __init__(self, given: Any, store: Store, client: Client, recovers: bool) -> None:
        """`recovers`: decide what earlier drivers have left prepared."""
        self._store = store
        self._client = client
        self._given = given
        self._connection = connection_of(given)
        self._connection.require_transactions()
        self._keeper = keeper_of(client.core)
        self._database_id = at_once(self._keeper.database_id(self._connection, may_end=True))
        if recovers:
            at_once(self._keeper.recover_now(client, self._connection))

    def to_leave_open(self, txn_id: TxnId, batch_id: int) -> LeftOpen:
        """What the checkpoint notes before the transaction is used."""
        row_name = tables.new_row_name(txn_id, self._keeper.rng)
        return LeftOpen(txn_id, row_name, self._database_id, batch_id)

    def knows(self, left_open: LeftOpen) -> bool:
        """Whether it is the database that decides."""
        return left_open.database_id in ("", self._database_id)

    def store(self, batch: DataFrame, batch_id: int) -> None:
        """Raises InvalidConfiguration if that has ended the database's transaction, as far as the
        driver tells: its rows would be there again after each failure.
        """
        at_once(self._connection.begin())
        before = self._connection.pending(), self._changes()
        self._store(self._given, batch, batch_id)
        if self._has_ended(*before):
            raise InvalidConfiguration(
                "store has committed, rolled back or closed the connection: leave that to "
                'exactly_once (with sqlite3 and psycopg, "with connection:" does it, too)'
            )

    def _changes(self) -> int:
        return getattr(self._given, "total_changes", 0)  # of sqlite3

    def _has_ended(self, was_pending: bool | None, changes: int) -> bool:
        given = self._given
        if getattr(given, "closed", False) and not getattr(given, "broken", False):
            return True
        if self._connection.pending() is not False:
            return False
        return bool(was_pending) or self._changes() > changes

    def commit(self, txn: Transaction, row_name: str) -> None:
        """Raises the database's error if both are undone; DatabaseOutcomeUnknown, CommitPending."""
        commit = Commit(self._keeper, self._connection, txn, self._database_id, row_name)
        at_once(commit.end(None))

    def settle(self, left_open: LeftOpen) -> bool:
        """Ends what another attempt, or driver, has left: as the database says. Returns whether the
        database has committed.
        """
        now_ms, row_name = self._keeper.clock.now_ms(), left_open.row_name
        verdict = at_once(tables.decide(self._connection, self._database_id, row_name, now_ms))
        is_committed = verdict is Verdict.COMMITTED
        txn = self._client.attach_transaction(left_open.txn_id)
        try:
            if is_committed:
                txn.commit()
            else:
                txn.abort()
        except TransactionNotFound:  # it has ended long ago
            pass
        except InvalidTxnStatus as error:
            log.error("The database has %s it, but: %s", verdict.value, error)
        return is_committed

    def require_rows_once(self, work: Work, stored: LeftOpen | None) -> None:
        """Call it if the batch is to run; `stored`: what the database was found to have committed.
        Raises BatchRefused.
        """
        if stored is None or stored.batch_id != work.batch_id or not self.knows(stored):
            return
        raise BatchRefused(
            f"Batch {work.batch_id} of query {work.query_id} has its rows in the database, but the "
            "broker's part was aborted (by an administrator, or by "
            "abortPreparedTransactionsAfterMaxAge), so its messages are missing and its input is "
            "not acknowledged. Delete the rows of this batch, and the row of "
            f"pybroker_transactions with the name {stored.row_name}, and start the query again: "
            "then it runs again"
        )


@contextlib.contextmanager
def opened(database: Database, client: Client, recovers: bool) -> Iterator[Target]:
    """Closes the connection, and with that the database rolls back what is not committed."""
    given = database.connect()
    try:
        yield Target(given, database.store, client, recovers)
    finally:
        try:
            given.close()
        except Exception as error:  # what it would hide decides whether the batch is repeated
            log.warning("The connection to the database could not be closed: %s", error)


def settle(client: Client, target: Target | None, left_open: LeftOpen) -> bool:
    """As Target.settle. Without the database that decides, what is prepared must stay so, and what
    is not prepared times out: to abort it could be too late. Raises NotAllowed.
    """
    if target is not None and target.knows(left_open):
        return target.settle(left_open)
    if any(each.txn_id == left_open.txn_id for each in client.prepared_transactions()):
        raise NotAllowed(
            "The last driver of this checkpoint wrote to a database, which knows whether its last "
            "batch has committed: pass exactly_once the same database, until a batch has "
            "committed without a failure"
        )
    return False


def is_away(error: BaseException) -> bool:
    """Whether the database may answer again later: PEP 249 has these two names for that."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"OperationalError", "InterfaceError"})
