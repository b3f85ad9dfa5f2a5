"""The result of a run, and the errors of runs without a result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pybroker.eos_check.connection_trace import Event, Position
from pybroker.eos_check.faults import Passing, Schedule
from pybroker.eos_check.settings import Input
from pybroker.eos_check.topics import Output


class CannotRun(Exception):
    """Nothing can be judged; the message says what to do."""


class Stopped(Exception):
    """The check was asked to end."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The result of the run without faults, with which the other runs are compared."""

    outputs: tuple[Output, ...]
    # Subscriptions of the input without a backlog at the end; none if their names differ from run
    # to run.
    acknowledged_by: frozenset[str]
    subscribed_first: bool  # before there was any input
    duration_s: float
    busy_s: float = 0.0  # until the last request
    pause_s: float = 0.0  # the longest time without a request between the first input and the end


@dataclass(slots=True)
class RunResult:
    schedule: Schedule
    outputs: tuple[Output, ...] = ()
    inputs: list[tuple[Input, Position]] = field(default_factory=list)
    # The steps passed, in order: a list until the first fault, then one after each fault.
    passings: list[list[Passing]] = field(default_factory=lambda: [[]])
    before_last_input: int = 0  # number of steps in the last list before the last input
    events: list[Event] = field(default_factory=list)
    backlogs: dict[str, int] = field(default_factory=dict)
    inner: dict[Passing, int] = field(default_factory=dict)  # passings of the broker's inner steps
    was_series: bool = False
    stuck: str = ""  # the reason why the pipeline did not catch up
    subscribed_first: bool = False
    duration_s: float = 0.0
    busy_s: float = 0.0  # until the last request
    log: str = ""

    @property
    def struck(self) -> int:
        """The number of faults that happened."""
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
    """The longest time between two events, from the first input on."""
    times = [event.at_s for event in events]
    first = next((at for at, event in enumerate(events) if event.what == "INPUT"), 0)
    return max((later - one for one, later in pairwise(times[first:])), default=0.0)
