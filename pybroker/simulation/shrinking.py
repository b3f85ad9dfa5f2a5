"""Finds the fewest faults that break a promise: tries subsets of the drawn faults, small ones
first.

A seed draws so few faults that all subsets can be tried. So the result is really the smallest, and
the same each time. The limit is a number of runs, not a time.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

from pybroker.simulation.run import Outcome

MOST_RUNS: Final = 64

Run = Callable[[Sequence[int]], Outcome]


def shrunk(
    failed: Outcome, run: Run, progress: Callable[[str], None] = lambda text: None
) -> Outcome:
    """The outcome with the fewest faults that breaks one of the same promises; `failed` if there is
    no smaller one.
    """
    kinds = {violation.kind for violation in failed.violations}
    for number, chosen in enumerate(_smaller(failed.chosen), 1):
        if number > MOST_RUNS:
            break
        progress(f"shrinking, run {number}: {len(chosen)} of {len(failed.chosen)} faults")
        outcome = run(chosen)
        if kinds.intersection(violation.kind for violation in outcome.violations):
            return outcome
    return failed


def _smaller(chosen: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for size in range(len(chosen)):
        yield from combinations(chosen, size)
