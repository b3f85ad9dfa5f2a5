"""`pybroker.client.database` for asyncio, with the client of `pybroker.client.aio`.

    async with transaction(client, connection) as txn:
        await connection.execute("INSERT INTO invoices VALUES (%s)", (order.data(),))
        await invoices.send(order.data(), txn=txn)

`connection`: psycopg's AsyncConnection, aiosqlite's Connection, SQLAlchemy's AsyncSession or
AsyncConnection. Blocking connections work, too, and block the event loop.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pybroker.client.aio import Client
from pybroker.client.database.commit import Commit
from pybroker.client.database.connections import connection_of, only_block
from pybroker.client.database.errors import CommitPending, DatabaseOutcomeUnknown
from pybroker.client.database.recovery import Recovered, keeper_of
from pybroker.client.database.tables import TABLES
from pybroker.client.transactions.transaction import Transaction

__all__ = [
    "TABLES",
    "CommitPending",
    "DatabaseOutcomeUnknown",
    "Recovered",
    "new_identity",
    "recover",
    "transaction",
]


@contextlib.asynccontextmanager
async def transaction(
    client: Client, connection: Any, timeout_ms: int = 60_000, abort_on_disconnect: bool = False
) -> AsyncIterator[Transaction]:
    """See pybroker.client.database. One block at a time for each connection."""
    keeper, given = keeper_of(client), connection_of(connection)
    with only_block(given):
        given.require_transactions()
        database_id = await keeper.database_id(given)
        await keeper.recover_in_time(client, given, database_id)
        txn = await client.new_transaction(timeout_ms, abort_on_disconnect=abort_on_disconnect)
        commit = Commit(keeper, given, txn, database_id)
        try:
            await given.begin()
            yield txn
            await commit.end(None)
        except BaseException as error:
            await commit.end(error)
            raise


async def recover(client: Client, connection: Any) -> Recovered:
    """See pybroker.client.database."""
    return await keeper_of(client).recover_now(client, connection_of(connection))


async def new_identity(client: Client, connection: Any) -> str:
    """See pybroker.client.database."""
    return await keeper_of(client).new_identity(connection_of(connection))
