"""`make bench`: the broker's performance, compared with targets and with the speed of this disk.

Every row has its own broker with an empty data directory. Each figure is the median of several
runs; the fdatasync column is measured just before and after the row, on the same disk.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import beside_kafka
import compaction
import console_pages
import delayed
import idle_topics
import latency
import lone_and_large
import many_policies
import many_transactions
import official
import scaling
import segments
import several_brokers
import spark_reading
import spark_topics
import spark_writing
import startup
import throughput
import tls
import transactions
import trickles
import watchers
import with_database
from calibration import fdatasync_ms, quantile
from figures import HEADER, Figure, RowResult, as_json, table_lines
from workload import Bench

Row = Callable[[Bench], list[Figure]]
ROWS: Mapping[str, Row] = {
    "publish-100b": throughput.publish_100b,
    "publish-1kb": throughput.publish_1kb,
    "dispatch-100b": throughput.dispatch_100b,
    "both-1kb": throughput.publish_and_consume_1kb,
    "batches-1kb": throughput.batches_100_x_1kb,
    "batches-100b": throughput.batches_1000_x_100b,
    "official": official.official_client,
    "client": official.both_clients,
    "send": latency.synchronous_send,
    "end-to-end": latency.end_to_end,
    "topics": latency.synchronous_topics,
    "clients": trickles.slow_clients,
    "start": startup.start_and_idle,
    "connections": startup.idle_connections,
    "idle-topics": idle_topics.idle_topics,
    "delayed": delayed.delayed,
    "compaction": compaction.compaction,
    "policies": many_policies.many_policies,
    "watchers": watchers.watched_topics,
    "segments": segments.cost_of_segments,
    "split": segments.split_under_load,
    "console": console_pages.console_pages,
    "console-open": console_pages.publishing_beside,
    "catch-up": startup.catch_up_1kb,
    "transactions": transactions.transactions,
    "txn-small": transactions.small_transactions,
    "txn-fast": transactions.fast_path,
    "txn-publish": transactions.transactional_publish,
    "txn-lone": lone_and_large.lone,
    "txn-large": lone_and_large.large,
    "txn-database": with_database.commits_with_sqlite,
    "txn-open": many_transactions.many_open,
    "txn-aborted": many_transactions.aborted_messages,
    "txn-aborted-million": many_transactions.aborted_transactions,
    "scaling": scaling.scaling,
    "tls": tls.tls,
    "kafka": beside_kafka.beside_kafka,
    "cluster": several_brokers.several_brokers,
    "spark-read": spark_reading.reading,
    "spark-topics": spark_topics.many_topics,
    "spark-write": spark_writing.writing,
}
TOO_LONG_FOR_ALL = {"txn-aborted-million"}  # takes minutes: runs only if it is named
CALIBRATION_SYNCS = 50


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all but those of minutes"
    )
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each row (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the loads (1.0)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--folder", type=Path, help="put data here (default: a temporary folder)")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="keep cProfile's records here"
    )
    options = parser.parse_args()
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return options


def run_row(name: str, bench: Bench) -> RowResult:
    syncs = fdatasync_ms(bench.folder, CALIBRATION_SYNCS)
    figures = ROWS[name](bench)
    syncs = sorted(syncs + fdatasync_ms(bench.folder, CALIBRATION_SYNCS))
    return RowResult(name, figures, quantile(syncs, 0.5), quantile(syncs, 0.99))


def run_rows(names: Iterable[str], bench: Bench) -> tuple[list[RowResult], list[str]]:
    """Run and print the rows; returns the results, and the names of rows that failed."""
    results, broken = [], []
    for name in names:
        try:
            results.append(run_row(name, bench))
        except Exception:
            broken.append(name)
            print(f"{name} broke:\n{traceback.format_exc()}", flush=True)
        else:
            print("\n".join(table_lines(results[-1])), flush=True)
    return results, broken


def main() -> int:
    options = parse_arguments()
    started = time.perf_counter()
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, fsync before every receipt\n")
    print(HEADER, flush=True)
    if options.profile is not None:
        options.profile.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), options.runs, options.scale, options.profile)
        names = options.rows or [row for row in ROWS if row not in TOO_LONG_FOR_ALL]
        results, broken = run_rows(names, bench)
    figures = [figure for result in results for figure in result.figures]
    missed = [figure.name for figure in figures if not figure.is_met]
    seconds = time.perf_counter() - started
    print(f"\n{len(figures)} figures in {seconds:.0f} s; targets missed: {len(missed)}")
    for name in missed:
        print(f"  {name}")
    if options.json is not None:
        options.json.write_text(as_json(results) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
