"""The examples that need Spark, run as written: in docs/exactly-once-spark.md, docs/spark.md and
docs/spark-writing.md.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from documents import ROOT, Block, blocks

from pybroker.client import Client, InitialPosition
from pybroker.client.errors import Timeout
from pybroker.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

URL = "pulsar://localhost:6650"
# A limit for hanging examples. Spark's start and first batches take some 20 s of CPU; with eleven
# other processes per core they took 205 s, and a first `make test` on a busy machine must not fail.
LIMIT_S = 900.0


def examples(document: str) -> list[Block]:
    declared = f"runs in tests/spark/{Path(__file__).name}"
    return [block for block in blocks(ROOT / document) if block.declared == declared]


@contextmanager
def typed(broker: BrokerProcess, folder: Path, text: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that runs the example, with its JVM; both are killed afterwards."""
    script = folder / "example.py"
    script.write_text(text.replace(URL, broker.service_url))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def test_transfers_become_debits_and_credits(broker: BrokerProcess, tmp_path: Path) -> None:
    example, _ = examples("docs/exactly-once-spark.md")
    client = Client(broker.service_url)
    transfers = client.create_producer("transfers")
    outputs = [
        client.subscribe(topic, "test", initial_position=InitialPosition.Earliest)
        for topic in ("debits", "credits")
    ]
    with typed(broker, tmp_path, example.text) as process:
        deadline_s = time.monotonic() + LIMIT_S
        found: list[bytes] = []
        while not found:
            said = (tmp_path / "log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline_s, said
            transfers.send(b"one lamp")  # the stream begins with messages after its start
            with suppress(Timeout):
                found.append(outputs[0].receive(timeout_millis=2000).data())
        found.append(outputs[1].receive(timeout_millis=30_000).data())
        while "is running. Ctrl-C stops it." not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline_s
            with suppress(Timeout):  # more messages are no harm
                outputs[0].receive(timeout_millis=1000)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
        said = (tmp_path / "log").read_text()
        assert "was stopped" in said
        assert "Traceback" not in said
    assert found == [b"one lamp", b"one lamp"]
    client.close()


def test_transfers_become_rows_beside_their_debits(broker: BrokerProcess, tmp_path: Path) -> None:
    """The page's second example, put into the first one."""
    example, database = examples("docs/exactly-once-spark.md")
    last = 'control_topic="ledger-control"'
    assert last in example.text
    text = database.text + example.text.replace(last, f"{last}, database=database")
    for name in ("transfers", "debits", "credits", "ledger-control"):
        text = text.replace(f'"{name}"', f'"{name}-2"')
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute("CREATE TABLE transfers (name TEXT, size INTEGER)")
    connection.close()
    client = Client(broker.service_url)
    transfers = client.create_producer("transfers-2")
    debits = client.subscribe("debits-2", "test", initial_position=InitialPosition.Earliest)
    with typed(broker, tmp_path, text) as process:
        deadline_s, found = time.monotonic() + LIMIT_S, 0
        while not found:
            said = (tmp_path / "log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline_s, said
            transfers.send(b"one lamp", partition_key="alice")
            with suppress(Timeout):
                found += debits.receive(timeout_millis=2000).data() == b"one lamp"
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        rows = connection.execute("SELECT DISTINCT name, size FROM transfers").fetchall()
    connection.close()
    client.close()
    assert rows == [("alice", 8)]


def test_orders_are_counted_and_saved(broker: BrokerProcess, tmp_path: Path) -> None:
    reading, progress = examples("docs/spark.md")
    (writing,) = examples("docs/spark-writing.md")
    client = Client(broker.service_url)
    client.create_producer("orders").send(b"one lamp", partition_key="lamps")
    consumer = client.subscribe("orders", "test")
    save = "save(orders.selectExpr('value', '__key'))\n"
    text = "\n".join((reading.text, progress.text, writing.text, save))
    with typed(broker, tmp_path, text) as process:
        assert process.wait(LIMIT_S) == 0, (tmp_path / "log").read_text()
    assert "6C 61 6D 70 73" in (tmp_path / "log").read_text(), "its key, as bytes"
    assert consumer.receive(timeout_millis=30_000).data() == b"one lamp"
    client.close()
