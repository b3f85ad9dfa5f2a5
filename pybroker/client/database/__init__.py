"""One commit for a broker's transaction and a database's: both, or neither, whatever dies.

    recover(client, connection)  # when the program starts: decides what a crash has left
    while True:
        order = orders.receive()
        with transaction(client, connection) as txn:
            connection.execute("INSERT INTO invoices VALUES (?)", (order.data(),))
            invoices.send(order.data(), txn=txn)
            orders.acknowledge(order, txn=txn)

`connection` is a PEP 249 connection (sqlite3, psycopg, …), or a Session or Connection of
SQLAlchemy. `pybroker.client.database.aio` is the version for asyncio. What belongs here is only
what a database and a broker need to commit together. Source: PIP-31; "last resource" of two-phase
commit. Differs: needs prepared transactions, which Apache Pulsar does not have.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from pybroker.client.blocking.client import Client
from pybroker.client.blocking.transaction import Transaction
from pybroker.client.database.commit import Commit
from pybroker.client.database.connections import at_once, connection_of, only_block
from pybroker.client.database.errors import CommitPending, DatabaseOutcomeUnknown
from pybroker.client.database.recovery import Keeper, Recovered, keeper_of
from pybroker.client.database.tables import TABLES

__all__ = [
    "TABLES",
    "CommitPending",
    "DatabaseOutcomeUnknown",
    "Recovered",
    "new_identity",
    "recover",
    "transaction",
]


@contextlib.contextmanager
def transaction(
    client: Client, connection: Any, timeout_ms: int = 60_000, abort_on_disconnect: bool = False
) -> Iterator[Transaction]:
    """What `connection` executes in the block, and what is sent and acknowledged with the
    transaction, commits at the end of the block, or none of it. An exception undoes both.

    Do not call `connection.commit()` in the block. `timeout_ms`: the broker undoes its part if the
    block takes longer; then the database rolls back, too. `abort_on_disconnect`: also if the
    connection breaks in the block, so that another process need not wait for the time-out of one
    that died. The first call with a database creates
    two tables there (TABLES) and recovers; so does one a minute.

    Raises what the block or the database raised, after both are undone; DatabaseOutcomeUnknown and
    CommitPending, after which the work must not be repeated; NotAllowed if the broker cannot
    prepare transactions; InvalidConfiguration for a connection that commits each statement by
    itself, or is in such a block already.
    """
    keeper, given = _keeper(client), connection_of(connection)
    with only_block(given):
        given.require_transactions()
        database_id = at_once(keeper.database_id(given))
        at_once(keeper.recover_in_time(client, given, database_id))
        txn = client.new_transaction(timeout_ms, abort_on_disconnect=abort_on_disconnect)
        commit = Commit(keeper, given, txn, database_id)
        try:
            at_once(given.begin())
            yield txn
            at_once(commit.end(None))
        except BaseException as error:
            at_once(commit.end(error))
            raise


def recover(client: Client, connection: Any) -> Recovered:
    """Commits or aborts at the broker what processes have left prepared with this database, as the
    database says. Call it when a program starts, before it receives: a message that was
    acknowledged in such a transaction comes again only after its end. Any number of processes may
    call it at once.

    Uses `connection` for transactions of its own, so nothing may be open there.
    """
    return at_once(_keeper(client).recover_now(client, connection_of(connection)))


def new_identity(client: Client, connection: Any) -> str:
    """Call it once on a copy of a database, before anything else uses the copy with the same
    broker: otherwise the copy decides transactions of the original. Returns the new id.
    """
    return at_once(_keeper(client).new_identity(connection_of(connection)))


def _keeper(client: Client) -> Keeper:
    return keeper_of(client.core)
