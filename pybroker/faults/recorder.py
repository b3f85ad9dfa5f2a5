"""The latest passings of a broker, and the number of passings of each point."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from pybroker.faults.passing import Passing

MAX_RECORDED: Final = 10_000


class Recorded(NamedTuple):
    number: int  # counted from the start of the recording
    at_ms: int
    passing: Passing


class Recorder:
    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.counts = Counter[str]()
        self._now_ms = now_ms
        self._latest: deque[Recorded] = deque(maxlen=MAX_RECORDED)
        self._number = 0

    def note(self, passing: Passing) -> None:
        self._number += 1
        self.counts[passing.point] += 1
        kept = replace(passing, entries=())  # entries may be large
        self._latest.append(Recorded(self._number, self._now_ms(), kept))

    def after(self, number: int, most: int) -> list[Recorded]:
        """Passings with a greater number, oldest first; only those that are still kept."""
        first = self._latest[0].number if self._latest else 0
        start = min(max(0, number + 1 - first), len(self._latest))
        return list(islice(self._latest, start, start + most))
