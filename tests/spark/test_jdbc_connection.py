"""A JDBC connection as one of PEP 249: errors, limits and values, without a JVM."""

import datetime
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JError, Py4JJavaError

from pybroker.client.database.connections import at_once, connection_of
from pybroker.spark.jdbc_connection import (
    DatabaseError,
    IntegrityError,
    JdbcConnection,
    OperationalError,
    ProgrammingError,
)
from pybroker.spark.target import is_away


def thrown(state: str | None = None) -> Py4JJavaError:
    exception = MagicMock(_target_id="o1")
    exception.toString.return_value = "java.sql.SQLException: no"
    if state is None:
        exception.getSQLState.side_effect = Py4JError("there is no such method")
    else:
        exception.getSQLState.return_value = state
    return Py4JJavaError("An error occurred while calling", exception)


@pytest.fixture
def opened() -> MagicMock:
    return MagicMock()


@pytest.fixture
def connection(opened: MagicMock) -> JdbcConnection:
    return JdbcConnection(MagicMock(), opened)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", OperationalError),
        ("40001", OperationalError),
        ("57P01", OperationalError),
        ("23505", IntegrityError),
        ("42P01", ProgrammingError),
        ("XX000", DatabaseError),
    ],
)
def test_sqlstate_tells_the_kind_of_an_error(
    connection: JdbcConnection, opened: MagicMock, state: str, kind: type[Exception]
) -> None:
    for called in (opened.commit, opened.rollback, opened.prepareStatement):
        called.side_effect = thrown(state)
    for use in (connection.commit, connection.rollback, lambda: connection.execute("SELECT 1")):
        with pytest.raises(kind, match=r"java\.sql\.SQLException: no") as raised:
            use()
        assert type(raised.value) is kind
        assert isinstance(raised.value.__cause__, Py4JJavaError)
        assert is_away(raised.value) is (kind is OperationalError)


def test_an_error_that_is_not_the_database_s_stays_as_it_is(connection: JdbcConnection) -> None:
    """Rows may come from a job of Spark."""

    def rows() -> Any:
        yield (1,)
        raise thrown()

    with pytest.raises(Py4JJavaError):
        connection.executemany("INSERT INTO t VALUES (?)", rows())


def test_a_connection_that_is_lost_is_closed_all_the_same(
    connection: JdbcConnection, opened: MagicMock
) -> None:
    opened.isClosed.return_value = False
    opened.rollback.side_effect = thrown("08006")
    with pytest.raises(OperationalError):
        connection.close()
    opened.close.assert_called_once()


def test_recovery_limits_its_waits_until_the_transaction_ends(
    connection: JdbcConnection, opened: MagicMock
) -> None:
    limit = opened.prepareStatement.return_value.setQueryTimeout
    as_given = connection_of(connection)
    at_once(as_given.limit_waits())
    at_once(as_given.change("INSERT INTO t VALUES (1)"))
    limit.assert_called_once_with(5)
    at_once(as_given.rollback())
    at_once(as_given.change("INSERT INTO t VALUES (1)"))
    limit.assert_called_once()


def test_a_time_with_a_zone_keeps_its_instant(connection: JdbcConnection) -> None:
    """Timestamp.valueOf would take its digits for local ones."""
    zone = datetime.timezone(datetime.timedelta(hours=2))
    stamp = connection._jvm.java.sql.Timestamp
    for value in (
        datetime.datetime(1970, 1, 1, 2, 0, 1, 234567, zone),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 1, datetime.UTC),
    ):
        connection.execute("INSERT INTO t VALUES (?)", (value,))
    assert [call.args for call in stamp.call_args_list] == [(1234,), (-1000,)]
    nanos = [call.args for call in stamp.return_value.setNanos.call_args_list]
    assert nanos == [(234_567_000,), (1000,)]
