"""`python -m tests.simulation --seeds 1000` simulates new seeds; `--seed N` replays one and prints
its events. With `--cluster` it simulates several brokers on BookKeeper and ZooKeeper.

The exit code is 1 if a seed broke a promise. Each such seed is printed with the command that
replays it. The last line counts what was done to the broker. `--save FILE` adds these counts to a
file while it runs; other runs may save to the same file at the same time. `--table FILE...` prints
the sum of such files as a table. `--seed N --edn FILE` also writes the seed's history, for Elle.
"""

import argparse
import gc
import logging
import secrets
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE.parents[1], HERE.parent / "bookkeeper", HERE.parent / "support", HERE):
    sys.path.insert(0, str(folder))

import features  # noqa: E402
from brokers import features as of_brokers  # noqa: E402
from brokers.bugs import BUGS as CLUSTER_BUGS  # noqa: E402
from brokers.simulation import ClusterSimulation  # noqa: E402
from bugs import BUGS as BROKER_BUGS  # noqa: E402
from checks.edn import elle_history  # noqa: E402
from sim_counts import Chunk, counts_of, save, table  # noqa: E402
from sim_seed import Report, Simulation  # noqa: E402

CHUNK = 20  # seeds that a process takes at a time
BUGS = {**BROKER_BUGS, **CLUSTER_BUGS}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.table is not None:
        print(table(options.table))
        return 0
    enabled = None if options.features is None else tuple(filter(None, options.features.split(",")))
    if options.seed is not None:
        return _replay(options.seed, options.bug, enabled, options.cluster, options.edn)
    return _run_many(options, enabled)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print what happened")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--start", type=int, help="first seed (default: a random number)")
    parser.add_argument("--jobs", type=int, default=1, help="processes to share the work")
    parser.add_argument("--cluster", action="store_true", help="several brokers")
    parser.add_argument("--bug", choices=sorted(BUGS), help="switch a deliberate bug on")
    parser.add_argument(
        "--features",
        help=f"enable these, whatever the seed draws; '' for none; of one broker: "
        f"{', '.join(features.ALL)}; with --cluster: {', '.join(of_brokers.ALL)}",
    )
    parser.add_argument(
        "--edn", type=Path, help="with --seed: write its history to this file, for Elle"
    )
    parser.add_argument("--save", type=Path, help="add the counts to this file, as JSON")
    parser.add_argument(
        "--table", type=Path, nargs="+", help="print the counts of such files, and no more"
    )
    return parser


def _simulation(cluster: bool) -> type[Simulation]:
    return ClusterSimulation if cluster else Simulation


def _replay(
    seed: int, bug: str | None, enabled: tuple[str, ...] | None, cluster: bool, edn: Path | None
) -> int:
    logging.disable(logging.CRITICAL)
    with BUGS[bug]() if bug else nullcontext():
        simulation = _simulation(cluster)(seed, enabled)
        report = simulation.run()
    if edn is not None:
        edn.write_text(
            "".join(f"{line}\n" for line in elle_history(simulation.history, simulation.logs))
        )
    print(*report.notes, *report.violations, summary(report), sep="\n")
    return 1 if report.violations else 0


def _run_many(options: argparse.Namespace, enabled: tuple[str, ...] | None) -> int:
    start = secrets.randbelow(10**9) if options.start is None else options.start
    end = start + options.seeds
    print(f"seeds {start} to {end - 1}", flush=True)
    total, began = Chunk(), time.monotonic()
    work = partial(run_chunk, bug=options.bug, enabled=enabled, cluster=options.cluster)
    chunks = [range(first, min(first + CHUNK, end)) for first in range(start, end, CHUNK)]
    for number, chunk in enumerate(_in_processes(work, chunks, options.jobs), 1):
        total.seeds += chunk.seeds
        total.counts += chunk.counts
        total.failures += chunk.failures
        if options.save is not None:
            save(options.save, chunk)
        print(*chunk.failures, sep="\n", end="\n" * bool(chunk.failures), flush=True)
        if number % 5 == 0 or number == len(chunks):
            seconds = (time.monotonic() - began) / total.seeds
            failed = len(total.failures)
            print(f"{total.seeds} seeds, {failed} failed, {seconds:.2f} s each", flush=True)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.counts.items())))
    return 1 if total.failures else 0


def _in_processes(work: "partial[Chunk]", chunks: list[range], jobs: int) -> Iterator[Chunk]:
    if jobs == 1:
        yield from map(work, chunks)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, chunks)


def run_chunk(
    seeds: range, bug: str | None, enabled: tuple[str, ...] | None, cluster: bool = False
) -> Chunk:
    logging.disable(logging.CRITICAL)
    gc.freeze()  # modules
    gc.disable()  # a world is garbage as a whole, collected below: saves 1/8
    chunk = Chunk()
    with BUGS[bug]() if bug else nullcontext():
        for seed in seeds:
            report = _simulation(cluster)(seed, enabled).run()
            chunk.seeds += 1
            chunk.counts.update(counts_of(report))
            if report.violations:
                chunk.failures.append(_failure(report, bug, enabled, cluster))
            _collect_garbage()
    return chunk


def _collect_garbage() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about coroutines that died with their process
        gc.collect()


def _failure(
    report: Report, bug: str | None, enabled: tuple[str, ...] | None, cluster: bool
) -> str:
    replay = f"python -m tests.simulation{' --cluster' * cluster} --seed {report.seed}"
    replay += f" --bug {bug}" if bug else ""
    replay += f" --features '{','.join(enabled)}'" if enabled is not None else ""
    drawn = f" ({', '.join(report.features)})" if report.features else ""
    return f"seed {report.seed}{drawn} failed: {report.violations[0]}\n    {replay}"


def summary(report: Report) -> str:
    return (
        f"seed {report.seed}: {', '.join(report.features) or 'nothing unusual'}; "
        f"{report.txns} transactions, {report.messages} messages received, "
        f"{report.steps} steps, {report.virtual_s:.1f} virtual seconds, "
        f"{len(report.violations)} violations, digest {report.digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
