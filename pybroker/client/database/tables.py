"""The two tables that a database keeps for its transactions with brokers, and what asks them.

`pybroker_database` has one row: the id that this database has in the names of prepared
transactions. `pybroker_transactions` has a row for each transaction that committed here, or that
never will: its primary key decides. The row is inserted in the transaction that it stands for,
before PREPARE. So whoever inserts a row of the same name afterwards waits until the first one is
committed, which is a conflict, or gone, and then the first one can never come.

The statements are plain SQL without parameters, for any driver: names are checked before.
"""

import logging
import random
import re
from enum import Enum
from typing import Any, Final

from pybroker.base.names import TxnId
from pybroker.client.database.connections import Connection
from pybroker.client.errors import InvalidConfiguration

log = logging.getLogger(__name__)

TABLES: Final = (
    "CREATE TABLE pybroker_transactions (name VARCHAR(80) NOT NULL PRIMARY KEY, "
    "verdict VARCHAR(10) NOT NULL, at_ms NUMERIC(19) NOT NULL)",
    "CREATE TABLE pybroker_database (singleton INTEGER NOT NULL PRIMARY KEY, "
    "database_id VARCHAR(32) NOT NULL)",
)
MAX_LISTED: Final = 200  # old rows that one recovery looks at

_PREFIX: Final = "database:"
_ROW_NAME: Final = re.compile(r"\d{1,20}-\d{1,20}-[0-9a-f]{16}")
_DATABASE_ID: Final = re.compile(r"[0-9a-f]{32}")
_READ_ID: Final = "SELECT database_id FROM pybroker_database WHERE singleton = 1"
_MISSING: Final = (
    "The tables of pybroker.client.database are not there: call recover(client, connection) when "
    "the program starts, which creates them"
)


class Verdict(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"


def new_row_name(txn_id: TxnId, rng: random.Random) -> str:
    """Brokers that were set up anew give the same ids again, so the id alone is not enough."""
    return f"{txn_id.most}-{txn_id.least}-{rng.getrandbits(64):016x}"


def prepared_name(database_id: str, row_name: str) -> str:
    """Under this name the transaction is prepared."""
    return f"{_PREFIX}{database_id}:{row_name}"


def row_name_in(prepared: str, database_id: str) -> str | None:
    """None if a transaction of this name has nothing to do with this database."""
    row_name = prepared.removeprefix(f"{_PREFIX}{database_id}:")
    return row_name if _ROW_NAME.fullmatch(row_name) else None


async def database_id(connection: Connection, may_end: bool) -> str | None:
    """None if the tables are not there yet. `may_end`: nobody needs what the connection has open.

    Raises InvalidConfiguration if the tables are not there, and somebody does.
    """
    try:
        rows = await connection.query(_READ_ID)
    except Exception as error:
        log.debug("The tables cannot be read: %s", error)  # the first time they are not there
        if not may_end:
            raise InvalidConfiguration(f"{_MISSING} ({error})") from error
        rows = []
    if may_end:
        await connection.rollback()
    elif not rows:
        raise InvalidConfiguration(_MISSING)
    return _checked_id(rows[0][0]) if rows else None


def _checked_id(stored: Any) -> str:
    text = _text(stored)
    if not _DATABASE_ID.fullmatch(text):
        raise InvalidConfiguration(
            f"pybroker_database has the id {text!r}, which pybroker has not written: call "
            "pybroker.client.database.new_identity"
        )
    return text


async def create(connection: Connection, rng: random.Random) -> str:
    """Creates what is missing; several processes may do so at once. Returns the database's id."""
    fresh = f"INSERT INTO pybroker_database VALUES (1, '{rng.getrandbits(128):032x}')"
    refusal: Exception | None = None
    for statement in (*TABLES, fresh):
        try:
            await connection.change(statement)
            await connection.commit()
        except Exception as error:  # it is there already, or another process is faster
            await connection.rollback()
            refusal = error
    if (found := await database_id(connection, may_end=True)) is not None:
        return found
    raise InvalidConfiguration(
        f"The tables of pybroker.client.database could not be created: {refusal}. Let an "
        "administrator of the database execute pybroker.client.database.TABLES"
    ) from refusal


async def replace_id(connection: Connection, rng: random.Random) -> str:
    fresh = f"{rng.getrandbits(128):032x}"
    await connection.change(f"UPDATE pybroker_database SET database_id = '{fresh}'")
    await connection.commit()
    return fresh


async def insert(
    connection: Connection, database_id: str, row_name: str, verdict: Verdict, now_ms: int
) -> bool:
    """False if the connection is at a database with another id: then nothing was inserted."""
    count = await connection.change(
        f"INSERT INTO pybroker_transactions (name, verdict, at_ms) SELECT '{row_name}', "
        f"'{verdict.value}', {now_ms} FROM pybroker_database WHERE database_id = '{database_id}'"
    )
    if count is not None:
        return count > 0
    rows = await connection.query(_READ_ID)
    return bool(rows) and _text(rows[0][0]) == database_id


async def delete(connection: Connection, row_names: list[str]) -> None:
    if row_names:
        names = ", ".join(f"'{each}'" for each in sorted(row_names))
        await connection.change(f"DELETE FROM pybroker_transactions WHERE name IN ({names})")


async def older_than(connection: Connection, at_ms: int) -> list[str]:
    """The names of old rows, at most MAX_LISTED."""
    statement = f"SELECT name FROM pybroker_transactions WHERE at_ms < {at_ms} ORDER BY at_ms"
    names = [_text(row[0]) for row in await connection.query(statement, MAX_LISTED)]
    await connection.rollback()
    return [name for name in names if _ROW_NAME.fullmatch(name)]


async def decide(connection: Connection, database_id: str, row_name: str, now_ms: int) -> Verdict:
    """Whether the transaction has committed in the database. If not, it never will. Ends the
    database's transaction; waits for the one that it asks about, if that is still at work.

    Raises the driver's error if that takes too long, or if the database cannot be asked;
    InvalidConfiguration if the connection is at a database with another id.
    """
    if (found := await _certain_verdict(connection, row_name)) is not None:
        return found
    try:
        await connection.limit_waits()
        if not await insert(connection, database_id, row_name, Verdict.ABORTED, now_ms):
            raise InvalidConfiguration(f"The connection is not at the database {database_id}")
        await connection.commit()
    except BaseException as error:
        await connection.rollback()
        if not isinstance(error, Exception):
            raise
        if (found := await _certain_verdict(connection, row_name)) is None:
            raise
        return found
    return Verdict.ABORTED


async def _certain_verdict(connection: Connection, row_name: str) -> Verdict | None:
    """Databases with READ UNCOMMITTED show rows that may be rolled back. But nobody deletes a row
    before its transaction has ended: so what is there after an attempt is committed.
    """
    found = await _verdict(connection, row_name)
    if found is not Verdict.COMMITTED or connection.hides_uncommitted():
        return found
    try:
        await delete(connection, [row_name])
    finally:
        await connection.rollback()
    return await _verdict(connection, row_name)


async def _verdict(connection: Connection, row_name: str) -> Verdict | None:
    rows = await connection.query(
        f"SELECT verdict FROM pybroker_transactions WHERE name = '{row_name}'"
    )
    await connection.rollback()
    return Verdict(_text(rows[0][0])) if rows else None


def _text(stored: Any) -> str:
    return stored.decode() if isinstance(stored, bytes) else str(stored).strip()
