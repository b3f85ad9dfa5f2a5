"""A database as a target of exactly_once: the rows of a batch, its messages and its input commit
together, in the driver.

The database decides, as in pybroker.client.database. The checkpoint records the name of the row
beside the transaction. So a driver that takes over asks the database about it first: either it has
committed, or then it never will, also if the predecessor is still at work. Transactions that no
checkpoint knows any more are found by their names.

Each attempt has its own connection: Spark calls from several threads, and what a failed attempt has
left open ends with its connection.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from pybroker.base.errors import TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.client import Client, Transaction
from pybroker.client.database import tables
from pybroker.client.database.commit import Commit
from pybroker.client.database.connections import at_once, connection_of
from pybroker.client.database.recovery import keeper_of
from pybroker.client.database.tables import Verdict

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

    def __init__(self, database: Database, client: Client, recovers: bool) -> None:
        """`recovers`: decide what earlier drivers have left prepared."""
        self._store = database.store
        self._client = client
        self._given = database.connect()
        self._connection = connection_of(self._given)
        self._connection.require_transactions()
        self._keeper = keeper_of(client.core)
        self._database_id = at_once(self._keeper.database_id(self._connection, may_end=True))
        if recovers:
            at_once(self._keeper.recover_now(client, self._connection))

    def row_name(self, txn_id: TxnId) -> str:
        return tables.new_row_name(txn_id, self._keeper.rng)

    def store(self, batch: DataFrame, batch_id: int) -> None:
        at_once(self._connection.begin())
        self._store(self._given, batch, batch_id)

    def commit(self, txn: Transaction, row_name: str) -> None:
        """Raises the database's error if both are undone; DatabaseOutcomeUnknown, CommitPending."""
        commit = Commit(self._keeper, self._connection, txn, self._database_id, row_name)
        at_once(commit.end(None))

    def settle(self, txn_id: TxnId, row_name: str) -> None:
        """Ends what another attempt, or driver, has left: as the database says."""
        now_ms = self._keeper.clock.now_ms()
        verdict = at_once(tables.decide(self._connection, self._database_id, row_name, now_ms))
        txn = self._client.attach_transaction(txn_id)
        with contextlib.suppress(TransactionNotFound):
            if verdict is Verdict.COMMITTED:
                txn.commit()
            else:
                txn.abort()

    def close(self) -> None:
        """The database rolls back what is not committed."""
        self._given.close()


@contextlib.contextmanager
def opened(database: Database | None, client: Client, recovers: bool) -> Iterator[Target | None]:
    """None without a database."""
    if database is None:
        yield None
        return
    with contextlib.closing(Target(database, client, recovers)) as target:
        yield target


def is_away(error: BaseException) -> bool:
    """Whether the database may answer again later: PEP 249 has these two names for that."""
    names = {each.__name__ for each in type(error).__mro__}
    return bool(names & {"OperationalError", "InterfaceError"})
