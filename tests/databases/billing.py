"""A program that bills orders: a row in a database, a message to a topic and the acknowledgement of
the order, once each. `python billing.py` with a JSON object of `Task` on the command line.

Each action outside of the process has a number. Before action `dies_at` the program kills
itself, or asks whoever started it to kill the broker or the database.
"""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pybroker.client import Client, ConsumerType, InitialPosition
from pybroker.client.blocking.transaction import Transaction
from pybroker.client.database import recover, transaction
from pybroker.client.errors import Timeout

KILL, STEPS = "KILL", "STEPS"


@dataclass
class Task:
    service_url: str
    database: str  # sqlite or postgresql
    connect_to: str
    orders: str
    invoices: str
    count: int
    victim: str = ""  # process, broker or database
    dies_at: int = 0  # 0: never


class Steps:
    def __init__(self, task: Task) -> None:
        self._task = task
        self.taken = 0

    def take(self, what: str) -> None:
        self.taken += 1
        if self.taken != self._task.dies_at:
            return
        if self._task.victim == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        print(KILL, what, flush=True)
        assert sys.stdin.readline(), "whoever started this is gone"

    def around(self, owner: Any, name: str) -> None:
        """Before each call of a method."""
        call: Callable[..., Any] = getattr(owner, name)

        def stepping(*arguments: Any, **options: Any) -> Any:
            self.take(name)
            return call(*arguments, **options)

        setattr(owner, name, stepping)


def sqlite_connection(task: Task, steps: Steps) -> Any:
    class Cursor(sqlite3.Cursor):
        pass

    class Connection(sqlite3.Connection):
        def cursor(self) -> Any:  # type: ignore[override]
            return super().cursor(Cursor)

    steps.around(Cursor, "execute")
    steps.around(Connection, "commit")
    connection = sqlite3.connect(task.connect_to, factory=Connection, timeout=60)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def postgresql_connection(task: Task, steps: Steps) -> Any:
    import psycopg

    class Cursor(psycopg.Cursor[Any]):
        pass

    class Connection(psycopg.Connection[Any]):
        pass

    steps.around(Cursor, "execute")
    steps.around(Connection, "commit")
    return Connection.connect(task.connect_to, cursor_factory=Cursor)


def run(task: Task) -> None:
    steps = Steps(task)
    connect = {"sqlite": sqlite_connection, "postgresql": postgresql_connection}[task.database]
    connection = connect(task, steps)
    for name in ("prepare", "commit", "abort"):
        steps.around(Transaction, name)
    for name in ("new_transaction", "prepared_transactions"):
        steps.around(Client, name)
    client = Client(task.service_url)
    orders = client.subscribe(
        task.orders,
        "billing",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
    )
    invoices = client.create_producer(task.invoices)
    recover(client, connection)
    while billed(connection) < task.count:
        try:
            order = orders.receive(timeout_millis=2_000)
        except Timeout:  # another program may have billed the last one, or have died with it
            recover(client, connection)
            continue
        leaves_at_once = task.victim != "broker"
        with transaction(client, connection, 20_000, abort_on_disconnect=leaves_at_once) as txn:
            connection.cursor().execute(f"INSERT INTO invoices VALUES ({int(order.data())})")
            steps.take("send")
            invoices.send(order.data(), txn=txn)
            steps.take("acknowledge")
            orders.acknowledge(order, txn=txn)
    steps.take("the end")
    client.close()
    connection.close()
    print(STEPS, steps.taken, flush=True)


def billed(connection: Any) -> int:
    cursor = connection.cursor()
    cursor.execute("SELECT COUNT(*) FROM invoices")
    (count,) = cursor.fetchone()
    connection.rollback()
    return int(count)


def typed(task: Task) -> str:
    return json.dumps(asdict(task))


if __name__ == "__main__":
    run(Task(**json.loads(sys.argv[1])))
