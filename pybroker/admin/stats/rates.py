"""Rates per second from counters, without a timer: from one reading to a later one.

A reading is kept until one at least a second newer replaces it. So frequent callers see the rate of
the last second, and others the average since their last call.
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
        """Per second. `counter` identifies the owner, each name separately, and what is counted.

        0 at the first reading, and after the counter went back, because it was restarted.
        """
        now_s = self._clock.monotonic_s()
        last = self._readings.get(counter)
        if last is None or count < last.count:
            self._remember(_Reading(counter, now_s, count))
            return 0.0
        passed_s = now_s - last.at_s
        if passed_s >= _SHORTEST_S:
            # Reuse the same objects, names included: tens of thousands of replaced objects do not
            # trigger the garbage collector until it has to examine all of them at once.
            last.rate = (count - last.count) / passed_s
            last.at_s, last.count = now_s, count
            self._remember(last)
        return last.rate

    def _remember(self, reading: _Reading) -> None:
        self._readings.pop(reading.counter, None)
        self._readings[reading.counter] = reading  # last read last
        if len(self._readings) > _MAX_COUNTERS:
            del self._readings[next(iter(self._readings))]
