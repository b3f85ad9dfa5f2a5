"""Rates per second out of counters, without a timer: from one reading to a later one.

A reading is kept until one at least a second younger replaces it, so whoever asks often sees the
rate of the last second, whoever asks rarely the average since he last asked.
"""

from dataclasses import dataclass
from typing import Final

from pybroker.base.runtime import Clock

_SHORTEST_S: Final = 1.0
_MAX_COUNTERS: Final = 100_000


@dataclass(slots=True)
class _Reading:
    counter: tuple[str, ...]
    at_s: float
    count: int
    rate: float = 0.0


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readings: dict[tuple[str, ...], _Reading] = {}

    def of(self, counter: tuple[str, ...], count: int) -> float:
        """Per second; `counter` is whose, each name by itself, and of what.

        0 at its first reading, and when it went back, for then it began anew.
        """
        now_s = self._clock.monotonic_s()
        last = self._readings.get(counter)
        if last is None or count < last.count:
            self._remember(_Reading(counter, now_s, count))
            return 0.0
        passed_s = now_s - last.at_s
        if passed_s >= _SHORTEST_S:
            # The same objects, name and all: tens of thousands of new ones in the place of old ones
            # do not count for the garbage collector, until it looks at all of them in one go.
            last.rate = (count - last.count) / passed_s
            last.at_s, last.count = now_s, count
            self._remember(last)
        return last.rate

    def _remember(self, reading: _Reading) -> None:
        self._readings.pop(reading.counter, None)
        self._readings[reading.counter] = reading  # last read last
        if len(self._readings) > _MAX_COUNTERS:
            del self._readings[next(iter(self._readings))]
