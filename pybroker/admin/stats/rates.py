"""Rates per second from the readings of counters, without a timer.

A reading is kept until a reading at least a second later replaces it. So frequent callers get the
rate of the last second, and others the average since their last call.
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
        """The rate per second. `counter` identifies the owner, each name separately, and the
        counted quantity.

        0 at the first reading, and after the counter went back because it restarted.
        """
        now_s = self._clock.monotonic_s()
        last = self._readings.get(counter)
        if last is None or count < last.count:
            self._remember(_Reading(counter, now_s, count))
            return 0.0
        passed_s = now_s - last.at_s
        if passed_s >= _SHORTEST_S:
            # Reuses the objects, names included: when tens of thousands of objects are replaced,
            # the garbage collector does not run until it must examine all of them at once.
            last.rate = (count - last.count) / passed_s
            last.at_s, last.count = now_s, count
            self._remember(last)
        return last.rate

    def _remember(self, reading: _Reading) -> None:
        self._readings.pop(reading.counter, None)
        self._readings[reading.counter] = reading  # the most recently read counter is last
        if len(self._readings) > _MAX_COUNTERS:
            del self._readings[next(iter(self._readings))]
