"""A database's connection as the commit sees it: PEP 249 connections, blocking or of asyncio, and
SQLAlchemy's sessions and connections.

Everything here is a coroutine. With a blocking connection it never suspends.
"""

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, TypeVar

from pybroker.client.errors import InvalidConfiguration

T = TypeVar("T")

Row = Sequence[Any]
_MOST_ROWS: Final = 1
# Of these only PostgreSQL waits for locks without a limit.
_POSTGRESQL: Final = frozenset(("psycopg", "psycopg2", "psycopg2cffi", "pg8000"))
_LOST: Final = 4  # psycopg's transaction status of a connection that is lost or closed
_MOST_WAIT_S: Final = 5
_LIMIT_WAITS: Final = f"SET LOCAL lock_timeout = '{_MOST_WAIT_S}s'"
_BEGIN: Final = "BEGIN"  # where each statement would be a transaction, LOCAL means nothing
_IN_A_BLOCK: Final = ("_num_transactions", "in_atomic_block")  # psycopg's, Django's
_AUTOCOMMIT: Final = (
    "This connection commits each statement by itself (autocommit), so its rows would not be of "
    "one transaction with the messages: {how}"
)

_in_blocks: Final = set[int]()  # by their ids: not every connection can be referred to weakly
_IN_OTHER_BLOCK: Final = (
    "This connection is in a block of pybroker.client.database already, and one commit is for one "
    "block: pass its transaction on, or use another connection"
)
_JOINED: Final = (
    "This session has joined a transaction of its Connection, which alone could commit it: pass "
    "the Connection, or a session of the engine"
)


async def settled(value: Awaitable[T] | T) -> T:
    """What a method of asyncio returns is awaited; what a blocking one returns is the result."""
    if inspect.isawaitable(value):
        result: T = await value
        return result
    return value


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of what never waits for an event loop: each of its steps blocks."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise InvalidConfiguration(
        "This connection is one of asyncio: use pybroker.client.database.aio with the client of "
        "pybroker.client.aio"
    )


class Connection(Protocol):
    """One transaction after the other; the first statement begins it."""

    @property
    def given(self) -> Any:
        """The application's object."""

    def require_transactions(self) -> None:
        """Raises InvalidConfiguration if each statement would be committed by itself."""

    def pending(self) -> bool | None:
        """Whether a transaction is open. None: the driver does not tell."""

    def key(self) -> Any:
        """Stands for the database, and may be referred to weakly; None if there is no such."""

    def hides_uncommitted(self) -> bool:
        """Whether the database never shows what another transaction has not committed."""

    async def begin(self) -> None:
        """Opens a transaction, if none is open, where the application's own blocks would otherwise
        begin and commit one: within it they are savepoints, or refused.
        """

    async def query(self, statement: str, most_rows: int = _MOST_ROWS) -> list[Row]: ...
    async def change(self, statement: str) -> int | None:
        """The number of rows; None if the driver does not tell."""

    async def flush(self) -> None:
        """Sends what was only noted so far."""

    async def limit_waits(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


@contextmanager
def only_block(connection: Connection) -> Iterator[None]:
    """Raises InvalidConfiguration if the connection is in a block already: the first of both to end
    would commit the rows of the other.
    """
    key = id(connection.given)
    if key in _in_blocks:
        raise InvalidConfiguration(_IN_OTHER_BLOCK)
    _in_blocks.add(key)
    try:
        yield
    finally:
        _in_blocks.discard(key)


def connection_of(given: Any) -> Connection:
    """Raises InvalidConfiguration if it is neither of them."""
    if any(each.__module__.split(".")[0] == "sqlalchemy" for each in type(given).__mro__):
        if not hasattr(given, "dbapi_connection"):
            return _SqlAlchemy(given)
        given = given.dbapi_connection  # of engine.raw_connection()
    if all(callable(getattr(given, name, None)) for name in ("cursor", "commit", "rollback")):
        return _Pep249(given)
    raise InvalidConfiguration(
        f"{type(given).__name__} is no database connection: pass one with cursor(), commit() and "
        "rollback() (PEP 249), or a Session or Connection of SQLAlchemy 2"
    )


class _Pep249:
    def __init__(self, given: Any) -> None:
        self._given = given
        self._driver = _driver_of(given)
        self._is_sqlite = self._driver in ("sqlite3", "aiosqlite")

    @property
    def given(self) -> Any:
        return self._given

    def require_transactions(self) -> None:
        if any(getattr(self._given, name, False) for name in _IN_A_BLOCK):
            raise InvalidConfiguration(
                "This connection is in a block of connection.transaction() or atomic(), which "
                "alone may commit it: leave that out, or put it into the block of "
                "pybroker.client.database"
            )
        if self._commits_each_statement():
            raise InvalidConfiguration(_AUTOCOMMIT.format(how="connect with autocommit=False"))
        if self._is_sqlite and not self._begins_by_itself() and not self._given.in_transaction:
            how = "execute BEGIN first, or connect without isolation_level=None"
            raise InvalidConfiguration(_AUTOCOMMIT.format(how=how))

    def _commits_each_statement(self) -> bool:
        """An attribute with most drivers, a method with PyMySQL and mysqlclient."""
        if callable(getattr(self._given, "get_autocommit", None)):
            return bool(self._given.get_autocommit())
        return getattr(self._given, "autocommit", None) is True

    def _begins_by_itself(self) -> bool:
        return self._is_always_open() or self._given.isolation_level is not None

    def _is_always_open(self) -> bool:
        """sqlite3 with autocommit=False, since Python 3.12: there is no moment between two."""
        return getattr(self._given, "autocommit", None) is False

    def pending(self) -> bool | None:
        if self._is_sqlite:
            return None if self._is_always_open() else bool(self._given.in_transaction)
        status = getattr(getattr(self._given, "info", None), "transaction_status", None)
        return None if status in (None, _LOST) else bool(status)  # psycopg's, 0 for idle

    def key(self) -> Any:
        return self._given if type(self._given).__weakrefoffset__ else None

    def hides_uncommitted(self) -> bool:
        return self._is_sqlite or self._driver in _POSTGRESQL

    async def begin(self) -> None:
        if self._driver == "psycopg" and self.pending() is False:
            await self.change("")

    async def query(self, statement: str, most_rows: int = _MOST_ROWS) -> list[Row]:
        async with self._executed(statement) as cursor:
            return [_in_order(each) for each in await settled(cursor.fetchmany(most_rows))]

    async def change(self, statement: str) -> int | None:
        async with self._executed(statement) as cursor:
            count: int | None = getattr(cursor, "rowcount", None)
            return None if count is None or count < 0 else count

    @asynccontextmanager
    async def _executed(self, statement: str) -> AsyncIterator[Any]:
        cursor = await settled(self._given.cursor())
        try:
            self._want_tuples(cursor)
            await settled(cursor.execute(statement))
            yield cursor
        finally:
            await settled(cursor.close())

    def _want_tuples(self, cursor: Any) -> None:
        """Whatever the application wants its own rows to be."""
        if self._is_sqlite:
            cursor.row_factory = None
        elif self._driver == "psycopg":
            cursor.row_factory = sys.modules["psycopg.rows"].tuple_row

    async def flush(self) -> None:
        pass

    async def limit_waits(self) -> None:
        if self._driver in _POSTGRESQL:
            if self._driver == "psycopg" and self._commits_each_statement():
                await self.change(_BEGIN)
            await self.change(_LIMIT_WAITS)
        elif hasattr(self._given, "limit_waits"):  # JDBC's, of pybroker.spark
            self._given.limit_waits(_MOST_WAIT_S)

    async def commit(self) -> None:
        await settled(self._given.commit())

    async def rollback(self) -> None:
        await settled(self._given.rollback())


def _driver_of(given: Any) -> str:
    """The package that its class, or the class that this one is derived from, is of."""
    packages = [each.__module__.split(".")[0] for each in type(given).__mro__]
    known = {"sqlite3", "aiosqlite", *_POSTGRESQL}
    return next((each for each in packages if each in known), packages[0])


def _in_order(row: Any) -> Row:
    return tuple(row.values()) if isinstance(row, Mapping) else tuple(row)


class _SqlAlchemy:
    """A Session or Connection, of `sqlalchemy.orm`, `.engine` or `.ext.asyncio`."""

    def __init__(self, given: Any) -> None:
        # A scoped_session, which has no in_transaction, gives the session of this thread or task.
        self._given = given if hasattr(given, "in_transaction") else given()
        self._text: Any = sys.modules["sqlalchemy"].text

    @property
    def given(self) -> Any:
        return self._given

    def _engine(self) -> Any:
        found = self._given.get_bind() if hasattr(self._given, "get_bind") else self._given.engine
        return getattr(found, "engine", found)

    def _outer(self) -> Any:
        """The Connection that a session has joined, which had begun a transaction before: the
        session's commit would commit nothing.
        """
        bind = self._given.get_bind() if hasattr(self._given, "get_bind") else None
        in_transaction = getattr(bind, "in_transaction", None)  # an Engine has none
        joined = in_transaction is not None and in_transaction()
        return bind if joined and not self._given.in_transaction() else None

    def require_transactions(self) -> None:
        if self._outer() is not None:
            raise InvalidConfiguration(_JOINED)
        if self._commits_each_statement():
            how = "use an engine with another isolation_level"
            raise InvalidConfiguration(_AUTOCOMMIT.format(how=how))

    def _commits_each_statement(self) -> bool:
        engine, given = self._engine(), getattr(self._given, "sync_connection", self._given)
        own: Any = given.get_execution_options() if hasattr(given, "get_execution_options") else {}
        levels = (
            own.get("isolation_level"),
            engine.get_execution_options().get("isolation_level"),
            getattr(engine.dialect, "_on_connect_isolation_level", None),
        )
        return next(filter(None, levels), None) == "AUTOCOMMIT"

    def pending(self) -> bool | None:
        return bool(self._given.in_transaction()) or self._outer() is not None

    def key(self) -> Any:
        return self._engine()

    def hides_uncommitted(self) -> bool:
        return self._engine().dialect.name in ("postgresql", "sqlite")

    async def begin(self) -> None:
        if not self._given.in_transaction():
            await settled(self._given.begin())
        if self._engine().dialect.name == "sqlite":
            await self._begin_before_savepoints()

    async def _begin_before_savepoints(self) -> None:
        """SQLite's drivers begin only before a change. If a savepoint comes before that, it would
        itself be the transaction, and its release the commit.
        """
        used = self._given
        if hasattr(used, "get_bind"):  # of a session
            used = await settled(used.connection())
        used = getattr(used, "sync_connection", used)
        event: Any = sys.modules["sqlalchemy"].event
        if not event.contains(used, "savepoint", _begin_before_savepoint):
            event.listen(used, "savepoint", _begin_before_savepoint)

    async def change(self, statement: str) -> int | None:
        result = await settled(self._given.execute(self._text(statement)))
        count: int = result.rowcount
        return None if count < 0 else count

    async def query(self, statement: str, most_rows: int = _MOST_ROWS) -> list[Row]:
        result = await settled(self._given.execute(self._text(statement)))
        rows: list[Row] = [tuple(each) for each in result.fetchmany(most_rows)]
        result.close()
        return rows

    async def flush(self) -> None:
        if hasattr(self._given, "flush"):
            await settled(self._given.flush())

    async def limit_waits(self) -> None:
        if self._engine().dialect.name == "postgresql":
            if self._engine().dialect.driver == "psycopg" and self._commits_each_statement():
                await self.change(_BEGIN)
            await self.change(_LIMIT_WAITS)

    async def commit(self) -> None:
        await settled(self._given.commit())
        if (outer := self._outer()) is not None:
            if hasattr(self._given, "run_sync"):
                await self._given.run_sync(lambda _: outer.rollback())
            else:
                outer.rollback()
            raise InvalidConfiguration(_JOINED)

    async def rollback(self) -> None:
        await settled(self._given.rollback())


def _begin_before_savepoint(connection: Any, _: str) -> None:
    if not connection.connection.driver_connection.in_transaction:
        connection.exec_driver_sql("BEGIN")
