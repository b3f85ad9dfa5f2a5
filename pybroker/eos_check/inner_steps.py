"""Steps within the broker, which no command shows: those after a transaction was decided.

A broker in test mode counts the passings of its fault points, and crashes where a rule tells it to.
Only the broker can be killed there: for the pipeline, all these steps happen between its COMMIT and
the answer.
"""

import json
from collections.abc import Mapping
from typing import Final

from pybroker.eos_check.admin import ask
from pybroker.eos_check.faults import Fault, Passing, Phase, Step
from pybroker.faults.points import POINTS, STEPS

_BASE: Final = "/admin/v3/faults"
_COMMANDS: Final = {step.name for step in STEPS.values()}
INNER: Final = {
    name: Passing(Step(name.rpartition(".")[0]), Phase(name.rpartition(".")[2]))
    for name in POINTS
    if name.startswith("transaction.") and name.rpartition(".")[0] not in _COMMANDS
}
_POINTS: Final = {passing: name for name, passing in INNER.items()}


def is_inner(fault: Fault) -> bool:
    return fault.passing in _POINTS


def passed(admin_url: str) -> dict[Passing, int]:
    """The number of passings of each inner step since the broker's start."""
    counts: Mapping[str, int] = ask(f"{admin_url}{_BASE}/passings?limit=1", "GET")["counts"]
    return {INNER[name]: count for name, count in counts.items() if name in INNER and count}


def crash_at(admin_url: str, fault: Fault) -> None:
    """Makes the broker crash at this fault. Passings count from now on."""
    rule = {"point": _POINTS[fault.passing], "action": "crash", "after": fault.number - 1}
    ask(f"{admin_url}{_BASE}/rules", "POST", json.dumps(rule).encode())


def crash_nowhere(admin_url: str) -> None:
    """Removes the crash: the broker crashes at no fault point."""
    ask(f"{admin_url}{_BASE}/rules", "DELETE")
