"""The same commit with each kind of connection: psycopg, aiosqlite, SQLAlchemy, blocking or not."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
import sqlalchemy
from postgresql import PostgreSQL
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from pybroker.client import Client, InitialPosition, InvalidConfiguration
from pybroker.client.aio import Client as AioClient
from pybroker.client.database import Recovered, aio, connections, recover, transaction

SOON_MS = 30_000
POSTGRESQL = pytest.mark.postgresql


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"
    number: Mapped[int] = mapped_column(primary_key=True)


def messages(client: Client, topic: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, "check", initial_position=InitialPosition.Earliest)
    found = [consumer.receive(timeout_millis=SOON_MS).data() for _ in range(count)]
    consumer.close()
    return found


def bills(client: Client, topic: str, connection: Any, add: Callable[[int], None]) -> None:
    """One that commits, one that the block gives up, and one again."""
    recover(client, connection)
    producer = client.create_producer(topic)
    with transaction(client, connection) as txn:
        add(1)
        producer.send(b"1", txn=txn)
    with pytest.raises(ZeroDivisionError), transaction(client, connection) as txn:
        add(2)
        producer.send(b"2", txn=txn)
        raise ZeroDivisionError
    with transaction(client, connection) as txn:
        add(3)
        producer.send(b"3", txn=txn)
    assert messages(client, topic, 2) == [b"1", b"3"]


@POSTGRESQL
@pytest.mark.parametrize("row_factory", [psycopg.rows.tuple_row, dict_row])
def test_psycopg(client: Client, topic: str, conninfo: str, row_factory: Any) -> None:
    with psycopg.connect(conninfo, row_factory=row_factory) as connection:

        def add(number: int) -> None:
            connection.execute("INSERT INTO invoices VALUES (%s)", (number,))

        bills(client, topic, connection, add)
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT number FROM invoices ORDER BY 1").fetchall()
        assert rows == [(1,), (3,)]
        left = connection.execute("SELECT verdict FROM pybroker_transactions").fetchall()
        assert left == [("committed",)]


@POSTGRESQL
def test_psycopg_with_autocommit_is_refused(client: Client, conninfo: str) -> None:
    with (
        psycopg.connect(conninfo, autocommit=True) as connection,
        pytest.raises(InvalidConfiguration, match="connect with autocommit=False"),
        transaction(client, connection),
    ):
        pass


@POSTGRESQL
@pytest.mark.parametrize("autocommit", [False, True])
@pytest.mark.parametrize("of", ["psycopg", "sqlalchemy"])
def test_recovery_waits_a_while_for_who_is_just_committing(
    client: Client,
    topic: str,
    conninfo: str,
    of: str,
    autocommit: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds its row: PostgreSQL alone would wait for ever."""
    monkeypatch.setattr(connections, "_LIMIT_WAITS", "SET LOCAL lock_timeout = '200ms'")
    level = "AUTOCOMMIT" if autocommit else "READ COMMITTED"
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), isolation_level=level
    )
    with (
        psycopg.connect(conninfo) as connection,
        psycopg.connect(conninfo, autocommit=autocommit) as plain,
        engine.connect() as of_engine,
    ):
        other: Any = plain if of == "psycopg" else of_engine
        recover(client, connection)
        commit = connection.commit

        def recover_meanwhile() -> None:
            del connection.commit  # type: ignore[method-assign]
            assert len(recover(client, other).undecided) == 1
            commit()

        producer = client.create_producer(topic)
        with transaction(client, connection) as txn:
            producer.send(b"1", txn=txn)
            connection.commit = recover_meanwhile  # type: ignore[method-assign]
        assert recover(client, other) == Recovered()
    assert messages(client, topic, 1) == [b"1"]


@POSTGRESQL
def test_a_dead_connection_decides_nothing_and_the_next_one_does(
    client: Client, topic: str, conninfo: str, server: PostgreSQL
) -> None:
    with psycopg.connect(conninfo) as connection:
        recover(client, connection)
        producer = client.create_producer(topic)
        with (
            pytest.raises(psycopg.OperationalError) as lost,
            transaction(client, connection) as txn,
        ):
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"1", txn=txn)
            server.kill()
            server.start()
    assert "roll back" in "".join(getattr(lost.value, "__notes__", [])) or connection.closed
    with psycopg.connect(conninfo) as connection, transaction(client, connection) as txn:
        connection.execute("INSERT INTO invoices VALUES (2)")
        producer.send(b"2", txn=txn)
    assert messages(client, topic, 1) == [b"2"]


class LikePyMySQL(sqlite3.Connection):
    """Its `autocommit` is a method that switches it."""

    commits_each = True

    def get_autocommit(self) -> bool:
        return self.commits_each

    def autocommit(self, value: bool) -> None:  # type: ignore[override]
        self.commits_each = value


def test_a_driver_with_methods_for_autocommit_is_asked(
    client: Client, topic: str, path: Path
) -> None:
    connection = sqlite3.connect(path, factory=LikePyMySQL)
    with (
        pytest.raises(InvalidConfiguration, match="connect with autocommit=False"),
        transaction(client, connection),
    ):
        pass
    connection.autocommit(False)
    bills(
        client,
        topic,
        connection,
        lambda number: connection.execute("INSERT INTO invoices VALUES (?)", (number,)),
    )
    connection.close()


def test_scoped_sessions_of_sqlalchemy(client: Client, topic: str, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    session = scoped_session(sessionmaker(engine))
    bills(client, topic, session, lambda number: session.add(Invoice(number=number)))
    assert session.scalars(sqlalchemy.select(Invoice.number)).all() == [1, 3]
    session.remove()
    engine.dispose()


def test_sqlalchemy_sessions(client: Client, topic: str, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        bills(client, topic, session, lambda number: session.add(Invoice(number=number)))
        assert session.scalars(sqlalchemy.select(Invoice.number)).all() == [1, 3]
    engine.dispose()


@POSTGRESQL
def test_sqlalchemy_sessions_with_postgresql(client: Client, topic: str, conninfo: str) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo)
    )
    with Session(engine) as session:
        bills(client, topic, session, lambda number: session.add(Invoice(number=number)))
        assert session.scalars(sqlalchemy.select(Invoice.number)).all() == [1, 3]
    engine.dispose()


def test_sqlalchemy_connections(client: Client, topic: str, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    insert = sqlalchemy.insert(Invoice)
    with engine.connect() as connection:
        bills(client, topic, connection, lambda n: connection.execute(insert, {"number": n}))
    raw = engine.raw_connection()
    rows = raw.cursor().execute("SELECT number FROM invoices").fetchall()
    raw.rollback()
    with transaction(client, raw) as txn:
        raw.cursor().execute("INSERT INTO invoices VALUES (4)")
        client.create_producer(f"{topic}-raw").send(b"4", txn=txn)
    raw.close()
    assert (rows, messages(client, f"{topic}-raw", 1)) == ([(1,), (3,)], [b"4"])
    engine.dispose()


def test_what_a_session_cannot_flush_is_not_prepared(
    client: Client, topic: str, path: Path
) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        recover(client, session)
        with (
            pytest.raises(sqlalchemy.exc.IntegrityError),
            transaction(client, session) as txn,
        ):
            session.add_all([Invoice(number=1)])
            session.execute(sqlalchemy.text("INSERT INTO invoices VALUES (1)"))
        assert client.prepared_transactions() == []
        assert txn.state.value == "aborted"
    engine.dispose()


def test_an_engine_that_commits_each_statement_is_refused(client: Client, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with (
        Session(engine) as session,
        pytest.raises(InvalidConfiguration, match="another isolation_level"),
        transaction(client, session),
    ):
        pass
    engine.dispose()


def test_a_connection_of_asyncio_is_refused_where_nothing_awaits(
    client: Client, path: Path
) -> None:
    async def refused() -> None:
        async with aiosqlite.connect(path) as connection:
            with pytest.raises(InvalidConfiguration, match=r"database\.aio"):
                recover(client, connection)

    asyncio.run(refused())


# --- asyncio ---------------------------------------------------------------------------------

Add = Callable[[int], Awaitable[object]]


@asynccontextmanager
async def with_aiosqlite(path: Path) -> AsyncIterator[tuple[Any, Add]]:
    async with aiosqlite.connect(path) as connection:
        yield (
            connection,
            lambda number: connection.execute("INSERT INTO invoices VALUES (?)", (number,)),
        )


@asynccontextmanager
async def with_sqlite3(path: Path) -> AsyncIterator[tuple[Any, Add]]:
    connection = sqlite3.connect(path)

    async def add(number: int) -> None:
        connection.execute("INSERT INTO invoices VALUES (?)", (number,))

    yield connection, add
    connection.close()


@asynccontextmanager
async def with_sqlalchemy(path: Path) -> AsyncIterator[tuple[Any, Add]]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session:

        async def add(number: int) -> None:
            session.add(Invoice(number=number))

        yield session, add
    await engine.dispose()


@asynccontextmanager
async def with_psycopg(conninfo: Any) -> AsyncIterator[tuple[Any, Add]]:
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        yield (
            connection,
            lambda number: connection.execute("INSERT INTO invoices VALUES (%s)", (number,)),
        )


Opening = Callable[[Any], AbstractAsyncContextManager[tuple[Any, Add]]]


async def bills_of_asyncio(service_url: str, topic: str, opening: Opening, where: Any) -> None:
    async with AioClient(service_url) as client, opening(where) as (connection, add):
        assert await aio.recover(client, connection) == aio.Recovered()
        producer = await client.create_producer(topic)
        async with aio.transaction(client, connection) as txn:
            await add(1)
            await producer.send(b"1", txn=txn)
        with pytest.raises(ZeroDivisionError):
            async with aio.transaction(client, connection) as txn:
                await add(2)
                await producer.send(b"2", txn=txn)
                raise ZeroDivisionError
        async with aio.transaction(client, connection) as txn:
            await add(3)
            await producer.send(b"3", txn=txn)


@pytest.mark.parametrize("opening", [with_aiosqlite, with_sqlite3, with_sqlalchemy])
def test_asyncio(
    client: Client, service_url: str, topic: str, path: Path, opening: Opening
) -> None:
    asyncio.run(bills_of_asyncio(service_url, topic, opening, path))
    assert messages(client, topic, 2) == [b"1", b"3"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT number FROM invoices").fetchall() == [(1,), (3,)]


@POSTGRESQL
def test_asyncio_with_psycopg(client: Client, service_url: str, topic: str, conninfo: str) -> None:
    asyncio.run(bills_of_asyncio(service_url, topic, with_psycopg, conninfo))
    assert messages(client, topic, 2) == [b"1", b"3"]
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("SELECT number FROM invoices ORDER BY 1").fetchall()
        assert rows == [(1,), (3,)]


def test_a_savepoint_of_asyncio_that_comes_first_is_no_transaction(
    client: Client, service_url: str, path: Path
) -> None:
    async def undone() -> None:
        async with AioClient(service_url) as aio_client, with_sqlalchemy(path) as (session, add):
            with pytest.raises(ZeroDivisionError):
                async with aio.transaction(aio_client, session):
                    async with session.begin_nested():
                        await add(1)
                    raise ZeroDivisionError
            async with aio.transaction(aio_client, session), session.begin_nested():
                await add(2)

    asyncio.run(undone())
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT number FROM invoices").fetchall() == [(2,)]


def test_a_cancelled_block_undoes_both(
    client: Client, service_url: str, topic: str, path: Path
) -> None:
    async def cancelled() -> None:
        async with AioClient(service_url) as aio_client, with_aiosqlite(path) as (connection, add):
            await aio.recover(aio_client, connection)
            producer = await aio_client.create_producer(topic)
            inside = asyncio.Event()

            async def block() -> None:
                async with aio.transaction(aio_client, connection) as txn:
                    await add(1)
                    await producer.send(b"1", txn=txn)
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not connection.in_transaction
            await producer.send(b"2")

    asyncio.run(cancelled())
    assert messages(client, topic, 1) == [b"2"]
