"""`make mutate` changes one operator or statement at a time; a test or the simulation must notice.

For each mutant the tests that cover its function run, then the simulation. Survivors are listed.
The exit code is 1 if fewer than 95 % are killed, or if accepted.txt has no reason for a survivor.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parent
ROOT: Final = FOLDER.parents[1]
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "support")]

from mutants import Mutant, mutants  # noqa: E402
from runner import Mutating, Result  # noqa: E402

WANTED: Final = 0.95
SCOPE: Final = (
    "managed_ledger/**/*.py",
    "pybroker/transaction/**/*.py",
    "pybroker/broker/dispatch/*.py",
    "pybroker/server/transactions/transaction_room.py",
)
# Tests of real processes, which do not contain the mutants, of texts and of figures.
LEFT_OUT: Final = ("tidy", "compat", "benchmarks", "demo", "spark", "mutation")
UNIT: Final = " and ".join(
    f"not {marker}" for marker in ("java", "spark", "go", "rust", "node", "browser")
)


class Books:
    """The result of each mutant, written to disk at once: an interrupted run can continue."""

    def __init__(self, path: Path) -> None:
        self.results: dict[str, str] = {}
        self._path = path
        if path.exists():
            for line in path.read_text().splitlines():
                name, result = json.loads(line)
                self.results[name] = result
        self._began = time.monotonic()
        self._done = 0
        self.total = 0

    def note(self, mutant: Mutant, result: Result) -> None:
        self.results[mutant.name] = result.name
        with self._path.open("a") as out:
            out.write(json.dumps([mutant.name, result.name]) + "\n")
        self._done += 1
        if result in (Result.SURVIVED, Result.UNCOVERED):
            print(f"{result.name} {mutant.path}:{mutant.line} {mutant.name}", flush=True)
        if self._done % 50 == 0 or self._done == self.total:
            seconds = (time.monotonic() - self._began) / self._done
            print(f"{self._done} of {self.total}, {seconds:.2f} s each", flush=True)


def main() -> int:
    options = _parser().parse_args()
    accepted = read_accepted()
    options.books.parent.mkdir(parents=True, exist_ok=True)
    books = Books(options.books)
    chosen: list[Mutant] = []

    def choose(loaded: set[str]) -> list[Mutant]:
        chosen.extend(_chosen(options))
        todo = [m for m in chosen if options.again or m.name not in books.results]
        if options.survivors:
            poor = (Result.SURVIVED.name, Result.UNCOVERED.name)
            todo = [
                mutant
                for mutant in chosen
                if books.results.get(mutant.name) in poor and mutant.name not in accepted
            ]
        books.total = len(todo)
        sample = "" if options.sample is None else f" (a sample by seed {options.sample_seed})"
        print(f"{len(chosen)} mutants{sample}, {len(todo)} to try", flush=True)
        return todo

    plugin = Mutating(
        ROOT,
        choose,
        books.note,
        options.jobs,
        options.budget_s,
        options.seeds,
        options.map,
    )
    # A child has its own timer, and its reports of failures are not shown.
    quiet = ["-q", "-p", "no:cacheprovider", "--tb=native", "-o", "timeout=0"]
    unit = UNIT if options.slow else f"{UNIT} and not slow"
    code = pytest.main([*quiet, "-m", unit, *_tests(options.tests)], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return int(code)
    return 0 if report(chosen, books.results, accepted) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", help=f"files to change (default: {' '.join(SCOPE)})")
    parser.add_argument(
        "--tests", nargs="+", default=["tests/"], help="only test files whose paths begin like this"
    )
    parser.add_argument("--slow", action="store_true", help="also slow tests: name few files")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=20, help="of tests for one mutant")
    parser.add_argument("--seeds", type=int, default=20, help="of the simulation for a survivor")
    parser.add_argument("--sample", type=int, help="only so many, chosen by --sample-seed")
    parser.add_argument("--sample-seed", type=int, default=0)
    parser.add_argument("--books", type=Path, default=ROOT / "build/mutation.jsonl")
    parser.add_argument("--map", type=Path, default=ROOT / "build/mutation-map.json")
    parser.add_argument("--again", action="store_true", help="also what the books know already")
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="only what survived before, without a reason for it",
    )
    parser.add_argument("--matching", default="", help="only mutants whose name holds this")
    return parser


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    files = [ROOT / path for path in options.paths] or [
        path for pattern in SCOPE for path in sorted(ROOT.glob(pattern))
    ]
    found = [mutant for path in files for mutant in mutants(ROOT, path)]
    found = [mutant for mutant in found if options.matching in mutant.name]
    if options.sample is not None and options.sample < len(found):
        found = random.Random(options.sample_seed).sample(found, options.sample)
    return found


def _tests(wanted: Sequence[str]) -> list[str]:
    """The test files of whole folders, without the simulation of fresh seeds, which runs last."""
    tracked = subprocess.run(
        ["git", "ls-files", "tests"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    cases = [
        path
        for path in tracked
        if Path(path).name.startswith("test_")
        and any(path.startswith(beginning) for beginning in wanted)
        and Path(path).parts[1] not in LEFT_OUT
        and Path(path).name not in ("test_simulation.py", "test_storage_simulation.py")
    ]
    return sorted(cases)


def read_accepted() -> dict[str, str]:
    """The reason, by mutant, why no test needs to notice it."""
    reasons: dict[str, str] = {}
    reason = ""
    for line in (FOLDER / "accepted.txt").read_text().splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            reasons[line] = reason
    return reasons


def report(chosen: list[Mutant], results: dict[str, str], accepted: dict[str, str]) -> bool:
    """Print the table; True if the score is reached and every survivor has a reason."""
    by_file: dict[str, Counter[str]] = {}
    for mutant in chosen:
        if mutant.name in results and results[mutant.name] != Result.UNUSABLE.name:
            by_file.setdefault(mutant.path, Counter())[_verdict(mutant, results, accepted)] += 1
    print(f"\n{'':44} mutants  killed  accepted  left  score")
    total: Counter[str] = Counter()
    for path, counts in by_file.items():
        total += counts
        print(_row(path, counts))
    print(_row("all", total))
    return total.total() > 0 and not total["left"] and _score(total) >= WANTED


def _verdict(mutant: Mutant, results: dict[str, str], accepted: dict[str, str]) -> str:
    if Result[results[mutant.name]].killed:
        return "killed"
    return "accepted" if mutant.name in accepted else "left"


def _row(name: str, counts: Counter[str]) -> str:
    killed, accepted, left = (counts[verdict] for verdict in ("killed", "accepted", "left"))
    score = _score(counts)
    return f"{name:44} {counts.total():7} {killed:7} {accepted:9} {left:5}  {score:.1%}"


def _score(counts: Counter[str]) -> float:
    return counts["killed"] / counts.total() if counts else 1.0


if __name__ == "__main__":
    sys.exit(main())
