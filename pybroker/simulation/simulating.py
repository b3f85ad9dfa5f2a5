"""Simulates many seeds in this process, for a test."""

import asyncio
from collections.abc import Callable
from functools import partial

from pybroker.simulation.coverage import Coverage
from pybroker.simulation.declaring import ScenarioError, Simulation
from pybroker.simulation.report import replay_options, report
from pybroker.simulation.run import Outcome, run_seed
from pybroker.simulation.shrinking import shrunk


class BrokenPromise(AssertionError):
    """A seed broke a promise. The message is the report. `outcome` is the result of the seed with
    the fewest faults that break it.
    """

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome


class NothingTested(AssertionError):
    """Many seeds kept every promise, but no fault met work in any of them."""


def simulate(scenario: Callable[[Simulation], object], seeds: int = 200, start: int = 0) -> None:
    """Runs the scenario with `seeds` seeds, beginning with `start`, in this thread.

    Raises BrokenPromise for the first seed that fails, ScenarioError, and NothingTested, unless
    there is only one seed. A small pipeline takes 20 to 50 ms per seed.
    """
    if _in_a_loop():
        raise ScenarioError("simulate() runs its own event loops: call it from a plain function")
    coverage, judged = Coverage(), False
    for seed in range(start, start + seeds):
        outcome = run_seed(scenario, seed)
        coverage.add(outcome)
        judged |= outcome.judged
        if outcome.violations:
            least = shrunk(outcome, partial(run_seed, scenario, seed))
            again = f"simulate(scenario, seeds=1, start={seed})"
            on_command_line = f"pybroker simulate MODULE:FUNCTION {replay_options(least)}"
            text = f"{report(least)}\nagain: {again}, or {on_command_line}"
            raise BrokenPromise(f"{least.violations[0]}\n\n{text}", least)
    if seeds > 1 and judged and coverage.nothing_met:
        raise NothingTested(f"{seeds} seeds: {coverage}")


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
