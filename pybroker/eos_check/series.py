"""Several crashes in one run, one after the other, for a pipeline that starts slowly.

A separate run for each kind of crash starts the pipeline once, and for a crash of the pipeline
twice. With Spark this takes longer than all its work. In a series, the next crash waits until the
pipeline has caught up after the last one and new input is published. While the pipeline restarts
after its own crash, only steps that it takes nowhere but at its start are struck.

Each step counts from the crash before it, so a crash here is at the first passing.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.eos_check.faults import Fault, Kind, Passing, Schedule, Victim
from pybroker.eos_check.judgement import Breach
from pybroker.eos_check.run_result import RunResult

_MISSED_AT_MOST: Final = 2  # after this many misses a kind gets runs of its own
_BROKERS_PER_PIPELINE: Final = 3  # a broker restarts in seconds, a pipeline slowly
_SUSPECTS_AT_MOST: Final = 3


class Series:
    """The kinds that have not struck yet. Runs on several threads share it.

    `at_start` are the steps that are probably passed only while the pipeline starts. `may_begin`
    says whether there is time for another crash.
    """

    def __init__(
        self, kinds: Iterable[Kind], at_start: frozenset[Passing], may_begin: Callable[[], bool]
    ) -> None:
        self._lock = threading.Lock()
        self._left = deque(_cheap_ones_more_often(kinds))
        self._at_start = at_start
        self._may_begin = may_begin
        self._missed: Counter[Kind] = Counter()
        self.struck: dict[Kind, None] = {}

    @property
    def has_more(self) -> bool:
        return bool(self._left) and self._may_begin()

    def begin(self) -> "CrashesOfRun":
        return CrashesOfRun(self)

    def take(self, *, starting: bool) -> Fault | None:
        """The next crash: of a pipeline that is starting, or of one that runs."""
        with self._lock:
            if not self._may_begin():
                return None
            fits = (kind for kind in self._left if (kind.passing in self._at_start) == starting)
            kind = next(fits, None)
            if kind is None:
                return None
            self._left.remove(kind)
            return Fault(kind.victim, kind.passing, 1)

    def struck_with(self, under_way: Iterable["CrashesOfRun"]) -> int:
        """The number of kinds that have struck, in runs that ended and in runs that continue."""
        more = {fault.kind for crashes in under_way for fault in list(crashes.struck)}
        return len(self.struck.keys() | more)

    def end(self, crashes: "CrashesOfRun", *, judged: bool) -> None:
        """Returns missed kinds. `judged`: the run's topics are known, so its crashes count."""
        with self._lock:
            again = list(crashes.missed)
            if judged:
                self.struck |= dict.fromkeys(fault.kind for fault in crashes.struck)
            else:
                again += crashes.struck
            self._missed.update(fault.kind for fault in again)
            # No input made the pipeline take these steps; its next start may.
            self._at_start |= {fault.passing for fault in crashes.missed}
            self._left.extend(
                kind
                for kind in dict.fromkeys(fault.kind for fault in again)
                if self._missed[kind] < _MISSED_AT_MOST
            )


@dataclass(slots=True)
class CrashesOfRun:
    """The crashes of one run: those that struck, and those whose step was not reached."""

    _series: Series
    struck: list[Fault] = field(default_factory=list)
    missed: list[Fault] = field(default_factory=list)

    def take(self, *, starting: bool) -> Fault | None:
        return self._series.take(starting=starting)


def _cheap_ones_more_often(kinds: Iterable[Kind]) -> list[Kind]:
    """Each victim's kinds in their order: one of the pipeline, then several of the broker."""
    of_pipeline: deque[Kind] = deque()
    of_broker: deque[Kind] = deque()
    for kind in kinds:
        (of_pipeline if kind.victim is Victim.PIPELINE else of_broker).append(kind)
    mixed = []
    while of_pipeline or of_broker:
        mixed += _first(of_pipeline, 1)
        mixed += _first(of_broker, _BROKERS_PER_PIPELINE)
    return mixed


def _first(kinds: deque[Kind], count: int) -> list[Kind]:
    return [kinds.popleft() for _ in range(min(count, len(kinds)))]


def suspects(result: RunResult, breaches: Sequence[Breach]) -> Sequence[Schedule]:
    """The single crashes that may have broken the promise, the likeliest first.

    Most likely is a crash that happened while an affected message was the newest input.
    """
    ids = {number for breach in breaches for number in breach.ids}
    faults = iter(result.schedule)
    near: list[Fault] = []
    others: list[Fault] = []
    newest = ""
    for event in result.events:
        if event.what == "INPUT":
            newest = event.note
        elif event.what == "FAULT" and (fault := next(faults, None)) is not None:
            (near if any(number in newest for number in ids) else others).append(fault)
    likely = list(dict.fromkeys([*near, *reversed(others)]))
    return [(fault,) for fault in likely[:_SUSPECTS_AT_MOST]]
