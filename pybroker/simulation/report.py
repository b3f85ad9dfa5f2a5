"""Formats a broken promise as text: the events with the faults among them, then the promise."""

import sys
from collections.abc import Iterator
from typing import Final

from pybroker.simulation.plan import described
from pybroker.simulation.run import Outcome
from pybroker.simulation.story import LINES, timeline

_VIOLATIONS: Final = 5


def report(outcome: Outcome, everything: bool = False) -> str:
    """`everything`: includes all events, not only those related to the broken promises."""
    return "\n".join(_lines(outcome, everything))


def _lines(outcome: Outcome, everything: bool) -> Iterator[str]:
    drawn, chosen = len(outcome.faults), len(outcome.chosen)
    yield f"seed {outcome.seed}, with {chosen} of its {drawn} fault{'s' * (drawn != 1)}:"
    for index in outcome.chosen:
        yield f"  fault {index + 1}: {described(outcome.faults[index])}"
    yield ""
    names = [name for violation in outcome.violations[:1] for name in violation.about]
    if everything:
        yield from map(str, outcome.events)
    else:
        yield from timeline(outcome.events, names, LINES)
    yield ""
    for violation in outcome.violations[:_VIOLATIONS]:
        yield str(violation)
    more = len(outcome.violations) - _VIOLATIONS
    if more > 0:
        yield f"… and {more} more"
    if not outcome.violations:
        yield kept(outcome.judged)
    if drawn:
        met = ", ".join(str(index + 1) for index in outcome.met) or "none"
        yield f"faults that met work: {met}"
    seconds = f"{outcome.virtual_s:.1f} virtual seconds"
    python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    yield f"history {outcome.digest}, {outcome.steps} steps, {seconds}, {python}"


def kept(judged: bool) -> str:
    """The verdict if no promise was broken. `judged`: there was an output, or a check."""
    if judged:
        return "every promise was kept"
    return "no process failed an assertion; without outputs and checks, nothing else was judged"


def replay_options(outcome: Outcome) -> str:
    """The options of `pybroker simulate` that repeat this run."""
    options = f"--seed {outcome.seed}"
    if len(outcome.chosen) < len(outcome.faults):
        numbers = ",".join(str(index + 1) for index in outcome.chosen) or "none"
        options += f" --faults {numbers}"
    return options
