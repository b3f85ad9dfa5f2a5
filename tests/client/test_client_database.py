"""sqlite3's ways to begin and end transactions, of which Python 3.12 has brought two more.

The commit with a database itself is in tests/behaviours/test_txn_database.py and tests/databases.
"""

import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import pybroker.testing
from pybroker.client import Client, InitialPosition, InvalidConfiguration
from pybroker.client.database import TABLES, recover, transaction

SINCE_3_12 = sys.version_info >= (3, 12)
ONE_TRANSACTION: list[dict[str, Any]] = [
    {},
    {"isolation_level": "IMMEDIATE"},
    *([{"autocommit": False}] * SINCE_3_12),
]
EACH_STATEMENT: list[dict[str, Any]] = [
    {"isolation_level": None},
    *([{"autocommit": True}] * SINCE_3_12),
]


@pytest.mark.parametrize("options", ONE_TRANSACTION, ids=str)
def test_a_block_is_one_transaction(tmp_path: Path, options: dict[str, Any]) -> None:
    connection = sqlite3.connect(tmp_path / "shop.sqlite", **options)
    connection.execute("CREATE TABLE orders (number INTEGER)")
    connection.commit()
    with pybroker.testing.broker() as broker, Client(broker.service_url) as client:
        recover(client, connection)
        producer = client.create_producer("orders")
        for number in (1, 2, 3):
            try:
                with transaction(client, connection) as txn:
                    connection.execute("INSERT INTO orders VALUES (?)", (number,))
                    producer.send(b"%d" % number, txn=txn)
                    assert number != 2, "it is given up"
            except AssertionError:
                connection.rollback()
        consumer = client.subscribe("orders", "check", initial_position=InitialPosition.Earliest)
        assert [consumer.receive(timeout_millis=30_000).data() for _ in range(2)] == [b"1", b"3"]
    connection.close()
    with sqlite3.connect(tmp_path / "shop.sqlite") as other:
        assert other.execute("SELECT number FROM orders").fetchall() == [(1,), (3,)]
        assert other.execute("SELECT verdict FROM pybroker_transactions").fetchall() == [
            ("committed",)
        ]


@pytest.mark.parametrize("options", EACH_STATEMENT, ids=str)
def test_a_connection_that_commits_each_statement_is_refused_at_the_beginning(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    connection = sqlite3.connect(tmp_path / "shop.sqlite", **options)
    with (
        pybroker.testing.broker() as broker,
        Client(broker.service_url) as client,
        pytest.raises(InvalidConfiguration, match="commits each statement by itself"),
        transaction(client, connection),
    ):
        pass
    connection.close()


def test_the_tables_have_types_that_every_database_has() -> None:
    """Oracle has no BIGINT, for example."""
    types = {kind for each in TABLES for kind in re.findall(r"(?:\(|, )\w+ ([A-Z]+)", each)}
    assert types == {"INTEGER", "NUMERIC", "VARCHAR"}
