"""Finds new hints for the deliberate bugs whose recorded seed no longer catches them.

`python -m tests.simulation.renew_hints` from the checkout's root, after a change of what seeds
mean: the tests stay right without it, but each search costs up to minutes.
"""

import logging
import os
import re
import sys
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
for folder in (HERE, HERE.parent / "bookkeeper", HERE.parent / "support"):
    sys.path.insert(0, str(folder))

import test_cluster_bugs as of_clusters  # noqa: E402
import test_deliberate_bugs as of_one_broker  # noqa: E402

OF_ONE: Final = "test_deliberate_bugs.py"
OF_CLUSTERS: Final = "test_cluster_bugs.py"


def _judged(file: str, bug: str) -> tuple[int, int, Callable[[int], bool]]:
    """Its hint, how many seeds may be tried, and whether a seed catches it."""
    if file == OF_ONE:
        case = of_one_broker.CASES[bug]
        return case.hint, of_one_broker.WITHIN_SEEDS, case.is_caught
    cluster = of_clusters.CASES[bug]
    return (
        cluster[1],
        of_clusters.WITHIN_SEEDS,
        lambda seed: bool(of_clusters.violations(cluster, seed)),
    )


def renewed(task: tuple[str, str]) -> tuple[str, str, int, int | None]:
    """The file and the bug, the old hint, and the new one; None if nothing catches it."""
    file, bug = task
    logging.disable(logging.CRITICAL)
    hint, most, catches = _judged(file, bug)
    bugs = of_one_broker.BUGS if file == OF_ONE else of_clusters.BUGS
    with bugs[bug]():
        found = next((seed for seed in (hint, *range(most)) if catches(seed)), None)
    return file, bug, hint, found


def write(file: str, bug: str, hint: int) -> None:
    path = HERE / file
    case = re.compile(rf'("{bug}": (?:Case)?\((?:[^()]|\([^()]*\))*?)\b\d+\b')
    path.write_text(case.sub(rf"\g<1>{hint}", path.read_text(), count=1))


if __name__ == "__main__":
    tasks = [(OF_ONE, bug) for bug in of_one_broker.CASES]
    tasks += [(OF_CLUSTERS, bug) for bug in of_clusters.CASES]
    with Pool(os.cpu_count()) as pool:
        for file, bug, hint, found in pool.imap_unordered(renewed, tasks):
            if found is None:
                print(f"{bug}: no seed catches it", flush=True)
            elif found != hint:
                write(file, bug, found)
                print(f"{bug}: {hint} -> {found}", flush=True)
