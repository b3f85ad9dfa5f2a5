"""What a run has shown, and why there may be nothing to show."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pybroker.eos_check.connection_trace import Event, Position
from pybroker.eos_check.faults import Passing, Schedule
from pybroker.eos_check.settings import Input
from pybroker.eos_check.topics import Output


class CannotRun(Exception):
    """There is nothing to judge; the message says what to do."""


class Stopped(Exception):
    """The check must end now."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The result of the run without faults, with which the others are compared."""

    outputs: tuple[Output, ...]
    # Subscriptions of the input without backlog at the end; none if their names differ in
    # each run.
    acknowledged_by: frozenset[str]
    subscribed_first: bool  # before there was any input
    duration_s: float
    busy_s: float = 0.0  # of it, until the last request
    pause_s: float = 0.0  # the longest without a request, while there was something to do


@dataclass(slots=True)
class RunResult:
    schedule: Schedule
    outputs: tuple[Output, ...] = ()
    inputs: list[tuple[Input, Position]] = field(default_factory=list)
    # The steps passed, in order: until the first fault, then from each fault on.
    passings: list[list[Passing]] = field(default_factory=lambda: [[]])
    before_last_input: int = 0  # how many steps of the last list came before the last input
    events: list[Event] = field(default_factory=list)
    backlogs: dict[str, int] = field(default_factory=dict)
    inner: dict[Passing, int] = field(default_factory=dict)  # what the broker passed within
    was_series: bool = False
    stuck: str = ""  # why the pipeline did not catch up
    subscribed_first: bool = False
    duration_s: float = 0.0
    busy_s: float = 0.0  # of it, until the last request
    log: str = ""

    @property
    def struck(self) -> int:
        """How many of the faults happened."""
        return len(self.passings) - 1

    def clean(self) -> Clean:
        done = frozenset(name for name, backlog in self.backlogs.items() if backlog == 0)
        return Clean(
            self.outputs,
            done,
            self.subscribed_first,
            self.duration_s,
            self.busy_s,
            _longest_pause_s(self.events),
        )


def _longest_pause_s(events: Sequence[Event]) -> float:
    """From the first input to the last answer."""
    times = [event.at_s for event in events]
    first = next((at for at, event in enumerate(events) if event.what == "INPUT"), 0)
    return max((later - one for one, later in pairwise(times[first:])), default=0.0)
