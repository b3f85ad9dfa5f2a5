"""The row of one commit with a database: what it costs beyond the two commits alone.

SQLite syncs once for its commit in each case (WAL, synchronous=FULL): the transaction's row is in
the same transaction. So what one commit has more is what the broker syncs more.
"""

import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from calibration import quantile
from figures import Figure, Target
from measured_broker import MeasuredBroker
from workload import Bench, new_topic

from pybroker.client import Client
from pybroker.client.database import recover, transaction

COMMITS = 300
WARM_UP = 20
SYNCS = re.compile(r"^pybroker_fsync_seconds_count\S* (\S+)", re.M)

Commit = Callable[[], None]


def commits_with_sqlite(bench: Bench) -> list[Figure]:
    more_syncs, more_ms, both_ms = list[float](), list[float](), list[float]()
    for number in range(bench.runs):
        with bench.broker("txn-database") as broker, Client(broker.service_url) as client:
            connection = _database(bench.folder / f"shop-{number}.sqlite")
            count = max(10, int(COMMITS * bench.scale))
            database, topic, both = _kinds(client, connection)
            database_ms, _ = _measured(broker, database, count)
            topic_ms, topic_syncs = _measured(broker, topic, count)
            one_ms, one_syncs = _measured(broker, both, count)
            connection.close()
        both_ms.append(one_ms)
        more_ms.append(one_ms - database_ms - topic_ms)
        more_syncs.append(one_syncs - topic_syncs)
    name = "one commit with SQLite"
    return [
        Figure(f"{name}: p50", "ms", both_ms),
        Figure(f"{name}: p50 beyond the two alone", "ms", more_ms),
        Figure(f"{name}: fdatasyncs beyond the two alone", "", more_syncs, Target(2, 1)),
    ]


def _database(path: Path) -> Any:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE invoices (number INTEGER)")
    return connection


def _kinds(client: Client, connection: Any) -> tuple[Commit, Commit, Commit]:
    producer = client.create_producer(new_topic())
    recover(client, connection)

    def database() -> None:
        connection.execute("INSERT INTO invoices VALUES (1)")
        connection.commit()

    def topic() -> None:
        with client.new_transaction() as txn:
            producer.send(b"1", txn=txn)

    def both() -> None:
        with transaction(client, connection) as txn:
            connection.execute("INSERT INTO invoices VALUES (1)")
            producer.send(b"1", txn=txn)

    return database, topic, both


def _measured(broker: MeasuredBroker, commit: Commit, count: int) -> tuple[float, float]:
    """The median of the milliseconds, and the broker's fdatasyncs for each."""
    for _ in range(WARM_UP):
        commit()
    before, taken = _syncs(broker), list[float]()
    for _ in range(count):
        started = time.perf_counter()
        commit()
        taken.append(1000 * (time.perf_counter() - started))
    return quantile(sorted(taken), 0.5), (_syncs(broker) - before) / count


def _syncs(broker: MeasuredBroker) -> float:
    found = SYNCS.search(broker.metrics())
    return 0.0 if found is None else float(found[1])
