"""What a commit with a database must not be confused by: the application's own transactions around
it and within it, a connection that moves to another database, rows that nobody has committed.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy
from postgresql import PostgreSQL
from sqlalchemy.orm import Session

from pybroker.client import Client, InitialPosition, InvalidConfiguration, TxnState
from pybroker.client.database import new_identity, recover, transaction
from pybroker.client.database.commit import Commit
from pybroker.client.transactions.prepared import PreparedTransaction

SOON_MS = 30_000
POSTGRESQL = pytest.mark.postgresql
INSERT = sqlalchemy.text("INSERT INTO invoices VALUES (1)")


class Died(BaseException):
    """The process is gone: nothing that it would do comes."""


def messages(client: Client, topic: str, count: int) -> list[bytes]:
    consumer = client.subscribe(topic, "check", initial_position=InitialPosition.Earliest)
    found = [consumer.receive(timeout_millis=SOON_MS).data() for _ in range(count)]
    consumer.close()
    return found


def invoices(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM invoices")]


@pytest.fixture
def dies_before_the_broker_commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def die(_: Commit) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Commit, "_commit_at_broker", die)
        yield


# --- transactions of the application's own -----------------------------------------------------


@POSTGRESQL
def test_a_block_within_is_a_part_of_the_transaction(
    client: Client, topic: str, conninfo: str
) -> None:
    """psycopg's blocks commit at their end, unless a transaction is open already."""
    with psycopg.connect(conninfo) as connection, psycopg.connect(conninfo) as other:
        with pytest.raises(ZeroDivisionError), transaction(client, connection):
            with connection.transaction():
                connection.execute("INSERT INTO invoices VALUES (1)")
            raise ZeroDivisionError
        assert other.execute("SELECT number FROM invoices").fetchall() == []


@pytest.mark.parametrize("of", ["sqlite3", "sqlalchemy"])
def test_a_block_within_another_of_the_same_connection_is_refused(
    client: Client, topic: str, path: Path, of: str
) -> None:
    """Its commit would commit the rows of the other, whose messages may never come."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with contextlib.closing(sqlite3.connect(path)) as plain, Session(engine) as session:
        connection: Any = plain if of == "sqlite3" else session
        for _ in range(2):  # afterwards it can be used again
            with (
                pytest.raises(InvalidConfiguration, match="one block"),
                transaction(client, connection) as txn,
            ):
                connection.execute(INSERT if of == "sqlalchemy" else INSERT.text)
                client.create_producer(topic).send(b"1", txn=txn)
                with transaction(client, connection):
                    pass
        with transaction(client, connection):
            pass
    assert invoices(path) == []


@POSTGRESQL
def test_a_block_around_is_refused(client: Client, conninfo: str) -> None:
    """Only its own end can commit it."""
    with psycopg.connect(conninfo) as connection:
        recover(client, connection)
        with (
            pytest.raises(InvalidConfiguration, match="alone may commit"),
            connection.transaction(),
            transaction(client, connection),
        ):
            pass
        assert client.prepared_transactions() == []


class LikeDjango(sqlite3.Connection):
    """In `atomic()`, `commit` and `rollback` are refused."""

    in_atomic_block = True


def test_an_atomic_block_around_is_refused(client: Client, path: Path) -> None:
    connection = sqlite3.connect(path, factory=LikeDjango)
    with (
        pytest.raises(InvalidConfiguration, match="alone may commit"),
        transaction(client, connection),
    ):
        pass
    connection.in_atomic_block = False
    with transaction(client, connection):
        connection.execute("INSERT INTO invoices VALUES (1)")
    connection.close()
    assert invoices(path) == [1]


@POSTGRESQL
def test_a_pipeline_commits_what_it_has_sent(client: Client, topic: str, conninfo: str) -> None:
    with psycopg.connect(conninfo) as connection, connection.pipeline():
        recover(client, connection)
        producer = client.create_producer(topic)
        with transaction(client, connection) as txn:
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"1", txn=txn)
        with (
            pytest.raises(psycopg.errors.UniqueViolation),
            transaction(client, connection) as txn,
        ):
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"twice", txn=txn)
        assert txn.state is TxnState.ABORTED
    assert messages(client, topic, 1) == [b"1"]


@pytest.mark.parametrize("begun", [False, True])
def test_a_session_within_a_transaction_of_its_connection_is_refused(
    client: Client, topic: str, path: Path, begun: bool
) -> None:
    """Its commit commits nothing."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        recover(client, session)
    producer = client.create_producer(topic)
    with engine.connect() as outer, Session(outer) as session:
        outer.execute(sqlalchemy.text("INSERT INTO invoices VALUES (7)"))
        if begun:
            session.execute(sqlalchemy.text("SELECT 1"))
        with (
            pytest.raises(InvalidConfiguration, match="has joined"),
            transaction(client, session) as txn,
        ):
            session.execute(INSERT)
            producer.send(b"1", txn=txn)
        if not begun:
            outer.commit()
    engine.dispose()
    assert invoices(path) == ([] if begun else [7])
    assert client.prepared_transactions() == []


def test_a_session_of_a_connection_commits(client: Client, topic: str, path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    producer = client.create_producer(topic)
    with engine.connect() as connection, Session(connection) as session:
        for _ in range(2):
            recover(client, session)
            session.execute(sqlalchemy.text("SELECT 1"))
            with transaction(client, session) as txn:
                session.execute(
                    sqlalchemy.text("INSERT INTO invoices SELECT count(*) FROM invoices")
                )
                producer.send(b"1", txn=txn)
    engine.dispose()
    assert (invoices(path), messages(client, topic, 2)) == ([0, 1], [b"1", b"1"])


def test_a_block_of_a_session_within_is_refused(client: Client, path: Path) -> None:
    """It would commit at its end."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        with (
            pytest.raises(sqlalchemy.exc.InvalidRequestError, match="already begun"),
            transaction(client, session),
            session.begin(),
        ):
            pass
        with transaction(client, session), session.begin_nested():
            session.execute(INSERT)
    engine.dispose()
    assert invoices(path) == [1]


@pytest.mark.parametrize("kind", [Session, sqlalchemy.Engine.connect])
def test_a_savepoint_that_comes_first_is_no_transaction(
    client: Client, path: Path, kind: Callable[[sqlalchemy.Engine], Any]
) -> None:
    """SQLite takes the first one for the transaction, whose release commits."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with kind(engine) as connection:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), transaction(client, connection):
                with connection.begin_nested():
                    connection.execute(INSERT)
                raise ZeroDivisionError
        with transaction(client, connection):
            with connection.begin_nested() as undone:
                connection.execute(INSERT)
                undone.rollback()
            with connection.begin_nested():
                connection.execute(sqlalchemy.text("INSERT INTO invoices VALUES (2)"))
    engine.dispose()
    assert invoices(path) == [2]


# --- another database --------------------------------------------------------------------------


@pytest.mark.usefixtures("dies_before_the_broker_commits")
def test_a_connection_whose_database_has_a_new_id_uses_it(
    client: Client, topic: str, path: Path
) -> None:
    connection, other = sqlite3.connect(path), sqlite3.connect(path)
    recover(client, connection)
    new_identity(client, other)
    producer = client.create_producer(topic)
    with pytest.raises(Died), transaction(client, connection) as txn:
        producer.send(b"1", txn=txn)
    connection.close()
    with sqlite3.connect(path) as later:
        assert recover(client, later).committed == (txn.txn_id,)
    later.close()
    assert messages(client, topic, 1) == [b"1"]
    other.close()


@POSTGRESQL
@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.usefixtures("dies_before_the_broker_commits")
def test_schemas_are_databases_of_their_own(
    client: Client, topic: str, conninfo: str, server: PostgreSQL, tells: bool, monkeypatch: Any
) -> None:
    """A pool's connection serves one tenant after the other."""
    schema, numbers = f"other_{topic.replace('-', '_')}", "CREATE TABLE invoices (number INTEGER)"
    with psycopg.connect(server.create_schema(schema)) as other:
        other.execute(numbers)
        other.commit()
        recover(client, other)
    if not tells:
        monkeypatch.setattr(psycopg.Cursor, "rowcount", -1)
    producer = client.create_producer(topic)
    with psycopg.connect(conninfo) as connection:
        recover(client, connection)
        with pytest.raises(Died), transaction(client, connection) as txn:
            connection.execute(f"SET LOCAL search_path = {schema}")
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"1", txn=txn)
        recovered = recover(client, connection)
        assert (recovered.committed, recovered.aborted) == ((), ())
        connection.execute(f"SET search_path = {schema}")
        connection.commit()
        assert recover(client, connection).committed == (txn.txn_id,)
    assert messages(client, topic, 1) == [b"1"]


# --- what is not committed ---------------------------------------------------------------------


class ReadsUncommitted:
    """A driver of a database with READ UNCOMMITTED."""

    def __init__(self, name: str) -> None:
        self._connection = sqlite3.connect(name, uri=True, timeout=0)
        self._connection.execute("PRAGMA read_uncommitted = 1")
        self.cursor, self.execute = self._connection.cursor, self._connection.execute
        self.commit, self.rollback = self._connection.commit, self._connection.rollback
        self.close = self._connection.close


def test_a_row_that_may_be_rolled_back_decides_nothing(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = "file:shop?mode=memory&cache=shared"
    slow, other = sqlite3.connect(shared, uri=True, timeout=0), ReadsUncommitted(shared)
    recover(client, slow)
    producer = client.create_producer(topic)

    async def recover_meanwhile(commit: Commit) -> None:
        statement = "SELECT verdict FROM pybroker_transactions"
        assert other.execute(statement).fetchall() == [("committed",)]
        assert recover(client, other).undecided == (txn.txn_id,)
        raise Died

    monkeypatch.setattr("pybroker.client.database.connections._Pep249.commit", recover_meanwhile)
    with pytest.raises(Died), transaction(client, slow) as txn:
        producer.send(b"1", txn=txn)
    monkeypatch.undo()
    slow.rollback()
    assert recover(client, other).aborted == (txn.txn_id,)
    slow.close()
    other.close()


def test_recovery_that_comes_late_says_what_the_process_itself_did(
    client: Client, topic: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has listed a transaction whose process then commits, and deletes the row."""
    connection, commit_at_broker = sqlite3.connect(path), Commit._commit_at_broker
    recover(client, connection)
    listed = list[PreparedTransaction]()

    async def listed_before(commit: Commit) -> None:
        listed.extend(client.prepared_transactions())
        await commit_at_broker(commit)

    with monkeypatch.context() as patched:
        patched.setattr(Commit, "_commit_at_broker", listed_before)
        with transaction(client, connection) as txn:
            client.create_producer(topic).send(b"1", txn=txn)
    with transaction(client, connection):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(Client, "prepared_transactions", lambda _: listed)
        recovered = recover(client, connection)
    assert (recovered.committed, recovered.aborted) == ((txn.txn_id,), ())
    with transaction(client, connection):
        pass
    rows = connection.execute("SELECT verdict FROM pybroker_transactions").fetchall()
    assert rows == [("committed",)]  # the last one's
    connection.close()


# --- interruptions -----------------------------------------------------------------------------


class Interrupted(sqlite3.Connection):
    """COMMIT stores and breaks; then the program is interrupted while it asks."""

    def commit(self) -> None:
        super().commit()
        if self.total_changes > 1:
            raise sqlite3.OperationalError("no answer")

    def rollback(self) -> None:
        if self.total_changes > 1:
            raise KeyboardInterrupt
        super().rollback()


def test_an_interrupted_question_is_asked_by_the_next_transaction(
    client: Client, topic: str, path: Path
) -> None:
    with sqlite3.connect(path) as connection:
        recover(client, connection)
    producer = client.create_producer(topic)
    interrupted = sqlite3.connect(path, factory=Interrupted)
    with pytest.raises(KeyboardInterrupt), transaction(client, interrupted) as txn:
        interrupted.execute("INSERT INTO invoices VALUES (1)")
        producer.send(b"1", txn=txn)
    interrupted.close()
    with transaction(client, connection) as txn:
        producer.send(b"2", txn=txn)
    connection.close()
    assert messages(client, topic, 2) == [b"1", b"2"]


def test_a_program_that_is_interrupted_at_the_end_of_a_block_leaves_nothing_open(
    client: Client, topic: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next block would commit the rows."""
    end = Commit.end

    def interrupted(commit: Commit, error: BaseException | None) -> Any:
        if error is None:
            raise KeyboardInterrupt
        return end(commit, error)

    producer = client.create_producer(topic)
    connection = sqlite3.connect(path)
    recover(client, connection)
    with monkeypatch.context() as patched:
        patched.setattr(Commit, "end", interrupted)
        with pytest.raises(KeyboardInterrupt), transaction(client, connection) as txn:
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"1", txn=txn)
    assert (connection.in_transaction, txn.state) == (False, TxnState.ABORTED)
    connection.close()


class RollsBackAtTheSecondTime(sqlite3.Connection):
    interrupted = False

    def rollback(self) -> None:
        if self.in_transaction and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        super().rollback()


def test_an_interrupted_rollback_leaves_nothing_to_the_next_block(
    client: Client, path: Path
) -> None:
    connection = sqlite3.connect(path, factory=RollsBackAtTheSecondTime)
    with pytest.raises(KeyboardInterrupt), transaction(client, connection):
        connection.execute("INSERT INTO invoices VALUES (1)")
        raise ZeroDivisionError
    with transaction(client, connection):
        connection.execute("INSERT INTO invoices VALUES (2)")
    connection.close()
    assert invoices(path) == [2]


class LikeALostOne:
    """psycopg's connection that the server has closed."""

    info = SimpleNamespace(transaction_status=4)

    def cursor(self) -> None:
        raise sqlite3.OperationalError("the connection is closed")

    commit = rollback = cursor


def test_a_lost_connection_is_not_said_to_have_an_open_transaction(client: Client) -> None:
    with pytest.raises(sqlite3.OperationalError, match="is closed"):
        recover(client, LikeALostOne())


def test_old_rows_that_cannot_be_deleted_now_are_in_nobody_s_way(
    client: Client, path: Path
) -> None:
    connection, writer = sqlite3.connect(path, timeout=0), sqlite3.connect(path)
    recover(client, connection)
    with transaction(client, connection):
        pass
    connection.execute("UPDATE pybroker_transactions SET at_ms = 1")
    connection.commit()
    writer.execute("BEGIN IMMEDIATE")
    assert recover(client, connection).undecided == ()
    writer.rollback()
    recover(client, connection)
    assert connection.execute("SELECT name FROM pybroker_transactions").fetchall() == []
    connection.close()
    writer.close()
