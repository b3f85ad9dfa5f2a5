"""`pybroker.client.database`: one commit for a database and the broker, whatever fails when."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario import SOON_MS, assert_nothing_more, drain, subscribe

from pybroker.client import Client, ConsumerType, InvalidConfiguration, TxnState
from pybroker.client.database import (
    TABLES,
    CommitPending,
    DatabaseOutcomeUnknown,
    new_identity,
    recover,
    transaction,
)
from pybroker.client.errors import Timeout


class Died(BaseException):
    """The process is gone: nothing that it would do comes."""


class Failing(sqlite3.Connection):
    """A connection whose COMMITs can fail."""

    fails: Callable[["Failing"], None] | None = None
    executed: list[str]

    def commit(self) -> None:
        fails, self.fails = self.fails, None
        if fails is not None:
            fails(self)
        super().commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.sqlite"


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., Failing]]:
    opened: list[Failing] = []

    def connect(**options: Any) -> Failing:
        opened.append(sqlite3.connect(path, factory=Failing, timeout=0, **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def database(connect: Callable[..., Failing]) -> Failing:
    connection = connect()
    connection.execute("CREATE TABLE invoices (number INTEGER)")
    connection.commit()
    return connection


def invoices(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM invoices")]


def verdicts(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT verdict FROM pybroker_transactions")]


def bill(client: Client, connection: Any, producer: Any, number: int) -> None:
    with transaction(client, connection) as txn:
        connection.execute("INSERT INTO invoices VALUES (?)", (number,))
        producer.send(b"%d" % number, txn=txn)


def leave_prepared(
    client: Client, connection: Failing, producer: Any, number: int, committed: bool
) -> None:
    """The process dies before or after the database's COMMIT."""

    def die(dying: Failing) -> None:
        if committed:
            dying.commit()
        raise Died

    bill_once = bill
    recover(client, connection)
    connection.fails = die
    with pytest.raises(Died):
        bill_once(client, connection, producer, number)
    connection.close()


def test_both_commit(client: Client, topic: str, database: Failing, path: Path) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    bill(client, database, producer, 1)
    assert drain(consumer, 1) == [b"1"]
    assert invoices(path) == [1]


def test_an_exception_undoes_both(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with pytest.raises(ZeroDivisionError), transaction(client, database) as txn:
        database.execute("INSERT INTO invoices VALUES (1)")
        producer.send(b"1", txn=txn)
        raise ZeroDivisionError
    assert txn.state is TxnState.ABORTED
    bill(client, database, producer, 2)
    assert drain(consumer, 1) == [b"2"]
    assert invoices(path) == [2]


def test_a_block_that_aborts_undoes_both(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    with transaction(client, database) as txn:
        database.execute("INSERT INTO invoices VALUES (1)")
        txn.abort()
    assert invoices(path) == []


def test_a_message_is_consumed_and_stored_once(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    client.create_producer(topic).send(b"7")
    consumer = subscribe(client, topic, consumer_type=ConsumerType.Shared)
    for attempt in range(2):
        message = consumer.receive(timeout_millis=SOON_MS)
        try:
            with transaction(client, database) as txn:
                database.execute("INSERT INTO invoices VALUES (?)", (int(message.data()),))
                consumer.acknowledge(message, txn=txn)
                assert attempt, "the first attempt fails"
        except AssertionError:
            consumer.negative_acknowledge(message)
    assert_nothing_more(consumer)
    assert invoices(path) == [7]


@pytest.mark.parametrize("committed", [True, False])
def test_what_a_dead_process_left_is_decided_by_the_database(
    client: Client,
    topic: str,
    database: Failing,
    connect: Callable[..., Failing],
    path: Path,
    committed: bool,
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    leave_prepared(client, database, producer, 1, committed)
    assert_nothing_more(consumer)
    found = recover(client, connect())
    assert (len(found.committed), len(found.aborted), found.undecided) == (
        committed,
        not committed,
        (),
    )
    bill(client, connect(), producer, 2)
    expected = [1, 2] if committed else [2]
    assert drain(consumer, len(expected)) == [b"%d" % each for each in expected]
    assert invoices(path) == expected
    assert recover(client, connect()) == type(found)()


def test_the_next_process_recovers_at_its_first_transaction(
    client: Client,
    shared_broker: Any,
    topic: str,
    database: Failing,
    connect: Callable[..., Failing],
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    leave_prepared(client, database, producer, 1, committed=True)
    with Client(shared_broker.service_url) as next_one:
        bill(next_one, connect(), next_one.create_producer(topic), 2)
    assert drain(consumer, 2) == [b"1", b"2"]


def test_a_late_commit_of_a_transaction_that_recovery_aborted_fails(
    client: Client,
    shared_broker: Any,
    topic: str,
    database: Failing,
    connect: Callable[..., Failing],
    path: Path,
) -> None:
    """Its process was only slow. SQLite has lost its lock with its transaction."""
    producer, consumer = client.create_producer(topic), subscribe(client, topic)
    recover(client, database)

    def decide_meanwhile(slow: Failing) -> None:
        slow.rollback()  # as if the database had ended it
        found = recover(client, connect())
        assert len(found.aborted) == 1
        raise sqlite3.OperationalError("no such transaction")

    database.fails = decide_meanwhile
    with pytest.raises(sqlite3.OperationalError, match="no such transaction"):
        bill(client, database, producer, 1)
    bill(client, database, producer, 2)
    assert drain(consumer, 1) == [b"2"]
    assert invoices(path) == [2]


def test_a_coordinator_that_is_away_keeps_nobody_from_the_others(
    client: Client,
    topic: str,
    database: Failing,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recovery within a transaction is for what others have left."""
    consumer, producer = subscribe(client, topic), client.create_producer(topic)

    def away(_: Client) -> None:
        raise Timeout("coordinator 3 does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Client, "prepared_transactions", away)
        with pytest.raises(Timeout):
            recover(client, database)
        bill(client, database, producer, 1)
    assert drain(consumer, 1) == [b"1"]
    assert invoices(path) == [1]


def test_recovery_leaves_alone_who_is_just_committing(
    client: Client, topic: str, database: Failing, connect: Callable[..., Failing], path: Path
) -> None:
    producer, consumer = client.create_producer(topic), subscribe(client, topic)
    recover(client, database)

    def recover_meanwhile(_: Failing) -> None:
        assert len(recover(client, connect()).undecided) == 1

    database.fails = recover_meanwhile
    bill(client, database, producer, 1)
    assert drain(consumer, 1) == [b"1"]
    assert invoices(path) == [1]


def test_a_commit_that_the_database_refuses_undoes_both(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    database.execute("CREATE TABLE a (number INTEGER PRIMARY KEY)")
    database.execute(
        "CREATE TABLE b (number INTEGER REFERENCES a (number) DEFERRABLE INITIALLY DEFERRED)"
    )
    database.execute("PRAGMA foreign_keys = ON")
    with (
        pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"),
        transaction(client, database) as txn,
    ):
        database.execute("INSERT INTO b VALUES (1)")
        producer.send(b"1", txn=txn)
    assert txn.state is TxnState.ABORTED
    bill(client, database, producer, 2)
    assert drain(consumer, 1) == [b"2"]


def test_a_commit_that_succeeded_without_saying_so_is_one(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    recover(client, database)

    def lose_the_answer(connection: Failing) -> None:
        connection.commit()
        raise sqlite3.OperationalError("connection lost")

    database.fails = lose_the_answer
    bill(client, database, producer, 1)
    assert drain(consumer, 1) == [b"1"]
    assert invoices(path) == [1]


@pytest.mark.parametrize("committed", [True, False])
def test_a_database_that_cannot_be_asked_leaves_it_prepared(
    client: Client,
    topic: str,
    database: Failing,
    connect: Callable[..., Failing],
    path: Path,
    committed: bool,
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    recover(client, database)

    def break_down(connection: Failing) -> None:
        if committed:
            connection.commit()
        connection.close()
        raise sqlite3.OperationalError("connection lost")

    database.fails = break_down
    with pytest.raises(DatabaseOutcomeUnknown, match="do not repeat") as unknown:
        bill(client, database, producer, 1)
    assert isinstance(unknown.value.__cause__, sqlite3.OperationalError)
    # The next transaction looks at once, not only after a minute.
    bill(client, connect(), producer, 2)
    expected = [b"1", b"2"] if committed else [b"2"]
    assert drain(consumer, len(expected)) == expected


def test_a_broker_that_does_not_confirm_is_told_later(
    client: Client,
    topic: str,
    database: Failing,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer, producer = subscribe(client, topic), client.create_producer(topic)
    with (
        monkeypatch.context() as patched,
        pytest.raises(CommitPending, match="do not repeat"),
        transaction(client, database) as txn,
    ):
        database.execute("INSERT INTO invoices VALUES (1)")
        producer.send(b"1", txn=txn)

        async def commit(*_: Any) -> None:
            raise Timeout("nobody there")

        patched.setattr(txn.core, "commit", commit)
    assert invoices(path) == [1]
    bill(client, database, producer, 2)
    assert drain(consumer, 2) == [b"1", b"2"]


def test_a_prepare_that_is_refused_undoes_both(
    client: Client,
    topic: str,
    database: Failing,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Exception, match="is committed"), transaction(client, database) as txn:
        database.execute("INSERT INTO invoices VALUES (1)")
        txn.commit()
    assert invoices(path) == []


def test_the_table_cleans_itself(client: Client, topic: str, database: Failing, path: Path) -> None:
    producer = client.create_producer(topic)
    for number in range(5):
        bill(client, database, producer, number)
    assert verdicts(path) == ["committed"]


def test_old_rows_go_unless_their_transaction_is_prepared(
    client: Client, topic: str, database: Failing, connect: Callable[..., Failing], path: Path
) -> None:
    producer, consumer = client.create_producer(topic), subscribe(client, topic)
    bill(client, database, producer, 1)
    leave_prepared(client, database, producer, 2, committed=True)
    with connect() as aging:
        aging.execute("UPDATE pybroker_transactions SET at_ms = at_ms - 31 * 24 * 3600000")
    assert len(recover(client, connect()).committed) == 1
    assert drain(consumer, 2) == [b"1", b"2"]
    assert len(verdicts(path)) == 1
    recover(client, connect())
    assert verdicts(path) == []


def test_other_databases_transactions_are_left_alone(
    client: Client, topic: str, database: Failing, tmp_path: Path
) -> None:
    producer = client.create_producer(topic)
    leave_prepared(client, database, producer, 1, committed=True)
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        assert recover(client, other) == recover(client, other)
        assert recover(client, other).committed == ()
    (left,) = [each for each in client.prepared_transactions() if each.name.startswith("database:")]
    client.attach_transaction(left.txn_id).abort()


def test_a_copy_with_an_identity_of_its_own_decides_nothing_of_the_original(
    client: Client,
    topic: str,
    database: Failing,
    connect: Callable[..., Failing],
    tmp_path: Path,
) -> None:
    producer, consumer = client.create_producer(topic), subscribe(client, topic)
    leave_prepared(client, database, producer, 1, committed=True)
    with sqlite3.connect(tmp_path / "copy.sqlite") as copy:
        connect().backup(copy)
        new_identity(client, copy)
        copy.execute("DELETE FROM pybroker_transactions")
        copy.commit()
        assert recover(client, copy).aborted == ()
    assert len(recover(client, connect()).committed) == 1
    assert drain(consumer, 1) == [b"1"]


def test_tables_that_an_administrator_made_are_used(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    for statement in TABLES:
        database.execute(statement)
    bill(client, database, client.create_producer(topic), 1)
    assert invoices(path) == [1]


@pytest.mark.parametrize("made", [0, 1, 2])
def test_a_process_that_died_while_it_created_the_tables_is_followed_by_one_that_does(
    client: Client, database: Failing, made: int
) -> None:
    for statement in TABLES[:made]:
        database.execute(statement)
    recover(client, database)
    (count,) = database.execute("SELECT COUNT(*) FROM pybroker_database").fetchone()
    assert count == 1


def test_a_connection_that_commits_each_statement_is_refused(
    client: Client, connect: Callable[..., Failing]
) -> None:
    connection = connect(isolation_level=None)
    with (
        pytest.raises(InvalidConfiguration, match="execute BEGIN first"),
        transaction(client, connection),
    ):
        pass


def test_what_begins_by_hand_is_one_transaction(
    client: Client, topic: str, database: Failing, connect: Callable[..., Failing], path: Path
) -> None:
    recover(client, database)
    connection = connect(isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    bill(client, connection, client.create_producer(topic), 1)
    assert invoices(path) == [1]
    assert not connection.in_transaction


def test_what_is_open_before_the_block_is_part_of_it(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    recover(client, database)
    database.execute("INSERT INTO invoices VALUES (1)")
    with pytest.raises(ZeroDivisionError), transaction(client, database):
        raise ZeroDivisionError
    assert invoices(path) == []
    database.execute("INSERT INTO invoices VALUES (1)")
    bill(client, database, client.create_producer(topic), 2)
    assert invoices(path) == [1, 2]


def test_recovery_ends_no_transaction_of_the_application(client: Client, database: Failing) -> None:
    database.execute("INSERT INTO invoices VALUES (1)")
    with pytest.raises(InvalidConfiguration, match="commit it or roll it back before"):
        recover(client, database)
    with (
        pytest.raises(InvalidConfiguration, match="when the program starts"),
        transaction(client, database),
    ):
        pass


def test_rows_may_be_whatever_the_application_wants(
    client: Client, topic: str, database: Failing, path: Path
) -> None:
    database.row_factory = lambda cursor, row: {"first": row[0]}
    database.text_factory = bytes
    producer = client.create_producer(topic)
    leave_prepared(client, database, producer, 1, committed=True)
    with sqlite3.connect(path) as other:
        other.text_factory = bytes
        assert len(recover(client, other).committed) == 1


def test_what_is_no_connection_is_refused(client: Client) -> None:
    with (
        pytest.raises(InvalidConfiguration, match="str is no database connection"),
        transaction(client, "shop.sqlite"),
    ):
        pass
