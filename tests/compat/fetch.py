"""Fetches and builds the shared parts of the compatibility tests, before any test's time limit
starts.

`make test` runs it with the installed tools: `fetch.py java go rust node`. The results are kept in
build/. Without it, the first test that needs a part fetches it.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "bookkeeper"))

import official_flink
import official_go
import official_node
import official_rust
from official_admin import admin_jars
from official_java import client_jars, spring_jars
from official_kafka import kafka_jars
from official_v5 import v5_jars
from servers import server_jars


def jars() -> None:
    client_jars()
    admin_jars()
    official_flink.flink_jars()
    v5_jars()
    server_jars()
    kafka_jars()
    spring_jars()


MADE: Final[dict[str, Callable[[], object]]] = {
    "java": jars,
    "go": official_go.all_built,
    "rust": official_rust.built,
    "node": official_node.packages,
}


def make(tool: str) -> None:
    started = time.monotonic()
    MADE[tool]()
    print(f"fetched and built for the tests with {tool} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    with ThreadPoolExecutor() as side_by_side:
        list(side_by_side.map(make, sys.argv[1:]))
