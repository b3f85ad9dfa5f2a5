"""A broker, a PostgreSQL server with a schema for each test, and a file for SQLite."""

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgresql import PostgreSQL

import pybroker.testing
from pybroker.client import Client

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def service_url() -> Iterator[str]:
    with pybroker.testing.broker() as broker:
        yield broker.service_url


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def conninfo(server: PostgreSQL) -> str:
    found = server.create_schema(f"test{next(_numbers)}")
    with psycopg.connect(found) as connection:
        connection.execute("CREATE TABLE invoices (number INTEGER PRIMARY KEY)")
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE invoices (number INTEGER PRIMARY KEY)")
    connection.close()
    return tmp_path / "shop.sqlite"


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"invoices-{next(_numbers)}"
