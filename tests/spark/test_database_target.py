"""exactly_once with a database: rows, messages and the source's cursor move together, whenever a
driver dies. The broker and SQLite are real; batch and checkpoint are not Spark's.
"""

import itertools
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from spark_fakes import FakeCheckpoint

from pybroker.base.errors import NotAllowed
from pybroker.client import Client, InitialPosition, Transaction, TransactionAborted
from pybroker.client.database import recover
from pybroker.client.errors import InvalidConfiguration, Timeout
from pybroker.spark import Database, exactly_once
from pybroker.spark.decision import BatchRefused
from pybroker.spark.offsets import CursorName, Position, Span
from pybroker.spark.session import Session, connect
from pybroker.spark.transactional import ExactlyOnce, Options, Step
from pybroker.spark.work import Work

_numbers = itertools.count(1)


class Died(BaseException):
    """The driver is gone."""


class Failing(sqlite3.Connection):
    """`before` and `after` are called around its next COMMIT."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    is_lost = False

    def rollback(self) -> None:
        self._require_there()
        super().rollback()

    def close(self) -> None:
        super().close()
        self._require_there()

    def _require_there(self) -> None:
        if self.is_lost:
            raise sqlite3.OperationalError("the connection is lost")

    def commit(self) -> None:
        before, after = self.before, self.after
        self.before = self.after = None
        if before is not None:
            before()
        super().commit()
        if after is not None:
            after()


class World:
    """A source topic with ten messages, an output topic, a database and a checkpoint."""

    def __init__(self, service_url: str, folder: Path) -> None:
        number = next(_numbers)
        self.service_url = service_url
        self.path = folder / "shop.sqlite"
        self.checkpoint = FakeCheckpoint()
        self.source = f"persistent://public/default/transfers-{number}"
        self.output = f"persistent://public/default/debits-{number}"
        self.control = f"persistent://public/default/control-{number}"
        self.client = Client(service_url)
        self.cursor = CursorName(self.source, "ledger")
        self._subscribe(self.source, "ledger")
        self._subscribe(self.output, "check")
        producer = self.client.create_producer(self.source)
        self.sent = [producer.send(b"%d" % n) for n in range(10)]
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE debits (batch INTEGER)")
        connection.close()

    def _subscribe(self, topic: str, name: str) -> None:
        self.client.subscribe(topic, name, initial_position=InitialPosition.Earliest).close()

    def work(self, batch_id: int = 0) -> Work:
        """Five messages each."""
        ledger_id = self.sent[0].ledger_id()
        after, to = self.sent[0].entry_id() - 1 + 5 * batch_id, self.sent[4 + 5 * batch_id]
        span = Span(Position(ledger_id, after), Position(ledger_id, to.entry_id()))
        return Work("query", batch_id, {self.cursor: span}, f"digest-{batch_id}")

    def rows(self) -> list[int]:
        with sqlite3.connect(self.path) as connection:
            found = [row[0] for row in connection.execute("SELECT batch FROM debits")]
        connection.close()
        return found

    def messages(self) -> list[bytes]:
        """What is committed on the output topic."""
        last = b"last %d" % next(_numbers)
        self.client.create_producer(self.output).send(last)
        with self.client.subscribe(
            self.output, f"reads-{next(_numbers)}", initial_position=InitialPosition.Earliest
        ) as consumer:
            found = []
            while (data := consumer.receive(timeout_millis=30_000).data()) != last:
                found.append(data)
        return [each for each in found if not each.startswith(b"last")]

    def is_acknowledged(self, batch_id: int = 0) -> bool:
        session = Session(connect(self.service_url))
        try:
            return session.cursor(self.cursor) >= self.work(batch_id).progress[self.cursor].to
        finally:
            session.close()


class Driver:
    def __init__(self, world: World, has_database: bool = True, path: Path | None = None) -> None:
        self.world = world
        self.path = path or world.path
        self.steps: list[Step] = []
        self.dies_at: Step | None = None
        self.before_commit: Callable[[], None] | None = None
        self.after_commit: Callable[[], None] | None = None
        self.stored = 0
        database = Database(self._connect, self._store) if has_database else None
        self.now_s = 0.0
        self.sink = ExactlyOnce(
            lambda batch, batch_id: {},
            Options(
                world.service_url,
                "/checkpoint",
                world.control,
                mode="driver",
                patience_s=10.0,
                on_step=self._step,
                database=database,
                pause=self._pause,
                clock=lambda: self.now_s,
            ),
        )

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    def _step(self, step: Step, work: Work) -> None:
        self.steps.append(step)
        if step is self.dies_at:
            raise Died

    def _connect(self) -> Failing:
        self.connection: Failing = sqlite3.connect(self.path, factory=Failing, timeout=1)
        return self.connection

    def _store(self, connection: Any, batch: Any, batch_id: int) -> None:
        self.stored += 1
        connection.execute("INSERT INTO debits VALUES (?)", (batch_id,))
        # From here on the next COMMIT is the batch's.
        connection.before, connection.after = self.before_commit, self.after_commit
        self._publish(batch_id)

    def _publish(self, batch_id: int) -> None:
        """As tasks' entries go through the driver, in its transaction."""
        assert self.sink._session is not None and self.sink._open_transaction is not None
        txn = self.sink._session.client.attach_transaction(self.sink._open_transaction.txn_id)
        self.sink._session.producer(self.world.output).send(b"%d" % batch_id, txn=txn)

    def process(self, batch_id: int = 0) -> None:
        self.sink.process(MagicMock(), self.world.work(batch_id), self.world.checkpoint)

    def die(self) -> None:
        """Without a word to the broker or the database."""
        raise Died


@pytest.fixture
def world(pulsar_broker_module: Any, tmp_path: Path) -> Any:
    world = World(pulsar_broker_module.service_url, tmp_path)
    yield world
    world.client.close()


def test_rows_messages_and_the_cursor_move_together(world: World) -> None:
    driver = Driver(world)
    driver.process(0)
    driver.process(1)
    assert (world.rows(), world.messages()) == ([0, 1], [b"0", b"1"])
    assert world.is_acknowledged(1)
    assert world.client.prepared_transactions() == []


@pytest.mark.parametrize("step", [Step.ACKNOWLEDGED, Step.PUBLISHED, Step.MARKED])
def test_a_driver_that_dies_before_prepare_leaves_nothing(world: World, step: Step) -> None:
    first = Driver(world)
    first.dies_at = step
    with pytest.raises(Died):
        first.process()
    assert world.rows() == []
    second = Driver(world)
    second.process()
    assert (world.rows(), world.messages()) == ([0], [b"0"])


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_driver_that_dies_around_the_database_s_commit_is_followed_as_the_database_says(
    world: World, committed: bool, has_checkpoint: bool
) -> None:
    first = Driver(world)
    first.before_commit, first.after_commit = (None, first.die) if committed else (first.die, None)
    with pytest.raises(Died):
        first.process()
    assert world.rows() == [0] * committed
    if not has_checkpoint:
        world.checkpoint = FakeCheckpoint()
    second = Driver(world)
    second.process()
    assert second.steps[-1] is (Step.SKIPPED if committed else Step.COMMITTED)
    assert (world.rows(), world.messages()) == ([0], [b"0"])
    assert world.is_acknowledged()
    second.process(1)
    assert (world.rows(), world.messages()) == ([0, 1], [b"0", b"1"])


def test_a_predecessor_that_is_only_slow_commits_nothing_any_more(world: World) -> None:
    """It has prepared, and its successor asks the database first."""
    first, second = Driver(world), Driver(world)

    def taken_over() -> None:
        first.connection.rollback()  # SQLite has one writer: as if the database had ended it
        second.process()

    first.before_commit = taken_over
    first.process()
    assert first.steps[-1] is Step.SKIPPED
    assert second.steps[-1] is Step.COMMITTED
    assert (world.rows(), world.messages()) == ([0], [b"0"])


def test_a_database_that_is_away_for_a_while_is_waited_for(world: World) -> None:
    driver = Driver(world)

    def away() -> None:
        driver.before_commit = None
        raise sqlite3.OperationalError("disk I/O error")

    driver.before_commit = away
    driver.process()
    assert (driver.stored, world.rows(), world.messages()) == (2, [0], [b"0"])


def test_what_the_database_refuses_fails_the_query_and_undoes_both(world: World) -> None:
    driver = Driver(world)

    def refuse() -> None:
        raise sqlite3.IntegrityError("CHECK constraint failed")

    driver.before_commit = refuse
    with pytest.raises(sqlite3.IntegrityError):
        driver.process()
    assert (world.rows(), world.messages(), world.is_acknowledged()) == ([], [], False)


def test_a_broker_that_does_not_confirm_is_found_to_have_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, commit = Driver(world), Transaction.commit

    def unheard(self: Transaction, *arguments: Any) -> None:
        monkeypatch.setattr(Transaction, "commit", commit)
        raise Timeout("no answer")

    driver.after_commit = lambda: monkeypatch.setattr(Transaction, "commit", unheard)
    driver.process()
    assert (driver.stored, driver.steps[-1]) == (1, Step.SKIPPED)
    assert (world.rows(), world.messages()) == ([0], [b"0"])


def test_a_send_that_failed_undoes_the_rows(world: World) -> None:
    driver = Driver(world)
    publish = driver._publish

    def fail(batch_id: int) -> None:
        publish(batch_id)
        raise TransactionAborted("a send failed")

    driver._publish = fail  # type: ignore[method-assign]
    with pytest.raises(TransactionAborted):
        driver.process()
    assert (world.rows(), world.messages()) == ([], [])


def test_a_connection_that_is_lost_in_commit_and_cannot_be_closed_hides_nothing(
    world: World,
) -> None:
    """The error of closing must not be taken for one before which nothing was committed."""
    driver = Driver(world)

    def lose() -> None:
        driver.after_commit = None
        driver.connection.is_lost = True
        driver.connection._require_there()

    driver.after_commit = lose
    driver.process()
    assert (driver.stored, driver.steps[-1]) == (1, Step.SKIPPED)
    assert (world.rows(), world.messages()) == ([0], [b"0"])


def test_a_connection_that_is_refused_is_closed(world: World) -> None:
    driver = Driver(world)
    connect = driver._connect

    def autocommit() -> Any:
        connect().isolation_level = None
        return driver.connection

    driver.sink.options = replace(driver.sink.options, database=Database(autocommit, driver._store))
    with pytest.raises(InvalidConfiguration, match="autocommit"):
        driver.process()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        driver.connection.execute("SELECT 1")


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_store_that_ends_the_transaction_is_told_so_at_once(world: World, ends: str) -> None:
    driver = Driver(world)

    def store(connection: Any, batch: Any, batch_id: int) -> None:
        connection.execute("INSERT INTO debits VALUES (?)", (batch_id,))
        getattr(connection, ends)()

    driver.sink.options = replace(driver.sink.options, database=Database(driver._connect, store))
    with pytest.raises(InvalidConfiguration, match="leave that to exactly_once"):
        driver.process()
    assert driver.steps == [Step.ACKNOWLEDGED]


class LikePsycopg(sqlite3.Connection):
    """Leaving `with connection:` closes it."""

    closed = broken = False


def test_a_store_that_closes_the_connection_is_told_so_at_once(world: World) -> None:
    driver = Driver(world)

    def store(connection: Any, batch: Any, batch_id: int) -> None:
        connection.closed = True

    connect = lambda: sqlite3.connect(world.path, factory=LikePsycopg)  # noqa: E731
    driver.sink.options = replace(driver.sink.options, database=Database(connect, store))
    with pytest.raises(InvalidConfiguration, match="leave that to exactly_once"):
        driver.process()


def other_database(world: World) -> Path:
    path = world.path.with_name("other.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE debits (batch INTEGER)")
    connection.close()
    return path


@pytest.mark.parametrize("has_another", [False, True])
def test_a_successor_without_the_database_that_decides_is_refused(
    world: World, has_another: bool
) -> None:
    first = Driver(world)
    first.after_commit = first.die
    with pytest.raises(Died):
        first.process()
    other = other_database(world) if has_another else None
    with pytest.raises(NotAllowed, match="pass exactly_once the same database"):
        Driver(world, has_another, other).process()
    with sqlite3.connect(world.path) as connection:
        assert len(recover(world.client, connection).committed) == 1
    connection.close()
    assert (world.rows(), world.messages()) == ([0], [b"0"])


@pytest.mark.parametrize("has_another", [False, True])
def test_a_query_whose_last_batch_is_decided_may_go_on_with_another_database_or_none(
    world: World, has_another: bool
) -> None:
    Driver(world).process(0)
    other = other_database(world) if has_another else None
    Driver(world, has_another, other).process(1)
    assert world.rows() == [0]
    assert world.messages() == [b"0", b"1"][: 1 + has_another]
    assert world.is_acknowledged(1)


def test_a_batch_whose_messages_an_administrator_took_away_does_not_run_again_beside_its_rows(
    world: World,
) -> None:
    first = Driver(world)
    first.after_commit = first.die
    with pytest.raises(Died):
        first.process()
    (left,) = world.client.prepared_transactions()
    world.client.attach_transaction(left.txn_id).abort()
    with pytest.raises(BatchRefused, match="has its rows in the database") as refused:
        Driver(world).process()
    assert (world.rows(), world.is_acknowledged()) == ([0], False)
    (row_name,) = re.findall(r"the name (\S+), and", str(refused.value))
    with sqlite3.connect(world.path) as connection:
        connection.execute("DELETE FROM debits")
        connection.execute("DELETE FROM pybroker_transactions WHERE name = ?", (row_name,))
    connection.close()
    Driver(world).process()
    assert (world.rows(), world.messages()) == ([0], [b"0"])


def test_tasks_do_not_publish_themselves_beside_a_database(world: World) -> None:
    database = Database(lambda: None, lambda *_: None)
    common = {"service_url": "pulsar://x", "checkpoint": "c", "control_topic": "t"}
    with pytest.raises(ValueError, match="leave out mode"):
        exactly_once(lambda *_: {}, mode="executor", database=database, **common)
    made = exactly_once(lambda *_: {}, database=database, **common)
    assert isinstance(made, ExactlyOnce)
    assert made.options.mode == "driver"
