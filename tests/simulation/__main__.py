"""`python -m tests.simulation --seeds 1000` simulates fresh seeds; `--seed N` replays one, talking.

Exit code 1 if any seed broke a promise; each is printed with the line that replays it.
"""

import argparse
import gc
import logging
import secrets
import sys
import time
from contextlib import nullcontext
from pathlib import Path

for folder in (Path(__file__).parents[2], Path(__file__).parent):
    sys.path.insert(0, str(folder))

from bugs import BUGS  # noqa: E402
from sim_seed import Report, Simulation  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    with BUGS[options.bug]() if options.bug else nullcontext():
        if options.seed is not None:
            report = Simulation(options.seed).run()
            print(*report.notes, *report.violations, summary(report), sep="\n")
            return 1 if report.violations else 0
        return _run_many(options.start, options.seeds, options.bug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one seed and print what happened")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--start", type=int, help="first seed (default: a random number)")
    parser.add_argument("--bug", choices=sorted(BUGS), help="switch a deliberate bug on")
    return parser


def _run_many(start: int | None, count: int, bug: str | None) -> int:
    start = secrets.randbelow(10**9) if start is None else start
    print(f"seeds {start} to {start + count - 1}", flush=True)
    began, failed = time.monotonic(), 0
    for done, seed in enumerate(range(start, start + count), 1):
        report = Simulation(seed).run()
        if report.violations:
            failed += 1
            _print_failure(report, bug)
        if done % 50 == 0 or done == count:
            seconds = time.monotonic() - began
            print(f"{done} seeds, {failed} failed, {seconds / done:.2f} s each", flush=True)
            gc.collect()
    return 1 if failed else 0


def _print_failure(report: Report, bug: str | None) -> None:
    replay = f"python -m tests.simulation --seed {report.seed}" + (f" --bug {bug}" if bug else "")
    print(f"seed {report.seed} failed: {report.violations[0]}\n    {replay}", flush=True)


def summary(report: Report) -> str:
    return (
        f"seed {report.seed}: {report.txns} transactions, {report.messages} messages received, "
        f"{report.steps} steps, {report.virtual_s:.1f} virtual seconds, "
        f"{len(report.violations)} violations, digest {report.digest}"
    )


if __name__ == "__main__":
    sys.exit(main())
