"""A small Spark works off a backlog of any size: is every row there once, and at what cost?

    python tests/spark/spark_backlog.py --rows 10000000

A topic of four partitions is filled with rows of 100 bytes. A standalone cluster with two workers
of 1 GB each and a driver of 512 MB copies it in three ways: `sink` (readStream to writeStream),
`foreach` (readStream to foreachBatch with exactly_once) and `batch` (spark.read to df.write).
Nothing else is configured.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from spark_backlog_driver import INPUT, OUTPUT
from spark_cluster import Cluster
from spark_memory import Memory
from spark_numbered_rows import fill, keep, times_seen

from pybroker.client import Client
from pybroker.demo.topics import create_partitioned
from pybroker.testing.broker_process import BrokerProcess

KINDS: Final = ("sink", "foreach", "batch")
PARTITIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    missing: int
    doubled: int
    seconds: float
    most_mb: dict[str, int]
    # Of each trigger with rows; empty for a batch job.
    rows_of_batches: Sequence[int] = field(default=())


def work_off(rows: int, kind: str, folder: Path, limit: int = 0) -> Outcome:
    """`limit` is the limit of rows per trigger; 0: none is set."""
    config = folder / "broker.conf"
    config.write_text("brokerDeleteInactiveTopicsEnabled=false\n")
    with (
        (folder / "broker.log").open("wb") as log,
        BrokerProcess(folder / "data", ["--config", str(config)], log) as broker,
        Cluster(folder) as cluster,
    ):
        fill(broker, INPUT, rows, PARTITIONS)
        create_partitioned(broker.admin_url, OUTPUT, PARTITIONS)
        with Client(broker.service_url) as client:
            keep(client, OUTPUT)
        started = time.monotonic()
        most_mb = _drive(kind, folder, limit, broker, cluster)
        seconds = time.monotonic() - started
        seen = times_seen(broker, OUTPUT, rows)
    batches = folder / "batches.json"
    return Outcome(
        int((seen == 0).sum()),
        int((seen - 1).clip(0).sum()),
        seconds,
        most_mb,
        json.loads(batches.read_text()) if batches.exists() else (),
    )


def _drive(
    kind: str, folder: Path, limit: int, broker: BrokerProcess, cluster: Cluster
) -> dict[str, int]:
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(here / "spark_backlog_driver.py")]
    arguments = [cluster.url, kind, broker.service_url, str(folder), str(limit)]
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environment)
        roots = {"driver": [driver.pid], "cluster": cluster.pids, "broker": [broker.pid]}
        with Memory(roots) as memory:
            code = driver.wait()
    if code:
        raise AssertionError(f"The driver ended with {code}: {_tail(folder / 'driver.log')}")
    return dict(memory.most_mb)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kind", choices=KINDS, action="append", help="all")
    options = parser.parse_args()
    lost = False
    for kind in options.kind or KINDS:
        with tempfile.TemporaryDirectory(prefix="spark-backlog-") as folder:
            outcome = work_off(options.rows, kind, Path(folder))
        lost = lost or bool(outcome.missing or outcome.doubled)
        print(
            f"{kind}: {options.rows:,} rows in {outcome.seconds:.0f} s, "
            f"{options.rows / outcome.seconds:,.0f} a second; missing {outcome.missing}, "
            f"doubled {outcome.doubled}; {len(outcome.rows_of_batches)} triggers of up to "
            f"{max(outcome.rows_of_batches, default=0):,} rows"
        )
        for name, mb in sorted(outcome.most_mb.items()):
            print(f"    {name:28} {mb:6,} MB")
        sys.stdout.flush()
    sys.exit(lost)


if __name__ == "__main__":
    main()
