"""A JDBC connection of the driver's JVM as a PEP 249 connection: what exactly_once needs of it, and
what `store` needs to write.

    Database(lambda: jdbc("jdbc:postgresql://localhost/shop", user="shop", password="…"), store)

The driver class comes from the jars of the Spark session (`spark.jars.packages`). Values of
parameters are None, bool, int, float, str, bytes, Decimal, date and datetime; those of rows are
what Py4J makes of them. Errors have PEP 249's names, as far as their SQLSTATE tells: exactly_once
waits for a database that is away (OperationalError).
"""

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from pybroker.client.errors import InvalidConfiguration

paramstyle: Final = "qmark"
_LONG: Final = -(2**63), 2**63 - 1
_ROWS_AT_ONCE: Final = 1000
_1970: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Error(Exception):
    """The cause is Py4J's error, with the Java exception."""


class DatabaseError(Error):
    pass


class OperationalError(DatabaseError):
    """The connection is lost, or the database may do it the next time: a deadlock, for example."""


class IntegrityError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    pass


# By the first two characters of SQLSTATE, which the standard and PostgreSQL define; HY are ODBC's.
_BY_CLASS: Final = {
    **dict.fromkeys(("08", "40", "53", "55", "57", "58", "HY"), OperationalError),
    **dict.fromkeys(("23", "44"), IntegrityError),
    **dict.fromkeys(("42", "3D", "3F"), ProgrammingError),
}


@contextlib.contextmanager
def _as_of_pep249() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        thrown: Any = error.java_exception
        try:
            state = str(thrown.getSQLState())
        except Py4JError:
            raise error from None  # it is not the database's
        raise _BY_CLASS.get(state[:2], DatabaseError)(str(thrown.toString())) from error


def jdbc(url: str, **properties: str) -> "JdbcConnection":
    """Opens it without autocommit. `properties`: user, password, and what the driver knows."""
    context = SparkContext._active_spark_context
    if context is None:
        raise InvalidConfiguration("There is no Spark session: JDBC connections are its JVM's")
    jvm: Any = context._jvm
    given = jvm.java.util.Properties()
    for name, value in properties.items():
        given.setProperty(name, value)
    # DriverManager would not find drivers that Spark has loaded after its start.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = jvm.java.lang.Class.forName("java.sql.Driver")
    drivers = jvm.java.util.ServiceLoader.load(kind, loader).iterator()
    while drivers.hasNext():
        driver = drivers.next()
        with _as_of_pep249():
            if driver.acceptsURL(url) and (opened := driver.connect(url, given)) is not None:
                opened.setAutoCommit(False)
                return JdbcConnection(jvm, opened)
    raise InvalidConfiguration(
        f"No JDBC driver of this Spark session takes {url}: add its jar, for example with "
        "spark.jars.packages"
    )


class JdbcConnection:
    def __init__(self, jvm: Any, opened: Any) -> None:
        self._jvm = jvm
        self._opened = opened
        self._timeout_s = 0

    @property
    @_as_of_pep249()
    def autocommit(self) -> bool:
        return bool(self._opened.getAutoCommit())

    def limit_waits(self, seconds: int) -> None:
        """Of each statement, until the transaction ends."""
        self._timeout_s = seconds

    def cursor(self) -> "JdbcCursor":
        return JdbcCursor(self._jvm, self._opened, self._timeout_s)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "JdbcCursor":
        cursor = self.cursor()
        cursor.execute(statement, parameters)
        return cursor

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        cursor = self.cursor()
        cursor.executemany(statement, rows)
        cursor.close()

    @_as_of_pep249()
    def commit(self) -> None:
        self._timeout_s = 0
        self._opened.commit()

    @_as_of_pep249()
    def rollback(self) -> None:
        self._timeout_s = 0
        self._opened.rollback()

    @_as_of_pep249()
    def close(self) -> None:
        """Rolls back what is open."""
        if self._opened.isClosed():
            return
        try:
            self._opened.rollback()  # some drivers refuse to close an open transaction
        finally:
            self._opened.close()


class JdbcCursor:
    def __init__(self, jvm: Any, opened: Any, timeout_s: int = 0) -> None:
        """`timeout_s`: of a statement; 0: none."""
        self._jvm = jvm
        self._opened = opened
        self._timeout_s = timeout_s
        self._statement: Any = None
        self._rows: Any = None
        self.description: list[tuple[Any, ...]] | None = None

    @_as_of_pep249()
    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        self.close()
        self._prepare(statement)
        self._bind(parameters)
        if not self._statement.execute():
            return
        self._rows = self._statement.getResultSet()
        about = self._rows.getMetaData()
        names = [about.getColumnLabel(at + 1) for at in range(about.getColumnCount())]
        self.description = [(name, *(None,) * 6) for name in names]

    @_as_of_pep249()
    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """In batches, so that a row costs no round trip."""
        self.close()
        self._prepare(statement)
        waiting = 0
        for row in rows:
            self._bind(row)
            self._statement.addBatch()
            waiting += 1
            if waiting == _ROWS_AT_ONCE:
                self._statement.executeBatch()
                waiting = 0
        if waiting:
            self._statement.executeBatch()

    def _prepare(self, statement: str) -> None:
        self._statement = self._opened.prepareStatement(statement)
        if self._timeout_s:
            self._statement.setQueryTimeout(self._timeout_s)

    def _bind(self, parameters: Sequence[Any]) -> None:
        for at, value in enumerate(parameters, start=1):
            self._statement.setObject(at, self._converted(value))

    def _converted(self, value: Any) -> Any:
        """Py4J passes bool, int, float, str and bytes as they are."""
        sql, java = self._jvm.java.sql, self._jvm.java
        if isinstance(value, Decimal):
            return java.math.BigDecimal(str(value))
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            since = value - _1970
            stamp = sql.Timestamp(since // datetime.timedelta(milliseconds=1))
            stamp.setNanos(value.microsecond * 1000)
            return stamp
        if isinstance(value, datetime.datetime):
            return sql.Timestamp.valueOf(value.isoformat(" "))
        if isinstance(value, datetime.date):
            return sql.Date.valueOf(value.isoformat())
        if isinstance(value, int) and not _LONG[0] <= value <= _LONG[1]:
            return java.math.BigDecimal(str(value))
        return value

    @_as_of_pep249()
    def fetchone(self) -> tuple[Any, ...] | None:
        if self._rows is None or not self._rows.next():
            return None
        assert self.description is not None
        return tuple(self._rows.getObject(at + 1) for at in range(len(self.description)))

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        found = list[tuple[Any, ...]]()
        while len(found) < size and (row := self.fetchone()) is not None:
            found.append(row)
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        found = list[tuple[Any, ...]]()
        while (row := self.fetchone()) is not None:
            found.append(row)
        return found

    @_as_of_pep249()
    def close(self) -> None:
        statement, self._statement = self._statement, None
        self._rows = self.description = None
        if statement is not None:
            statement.close()
