"""Rates of counters of many owners, for sums over all owners. Cheaper than `Rates`.

All owners are read together, so one time is stored for all. An owner whose counters did not change
costs a lookup and a comparison.
"""

from collections.abc import Hashable
from typing import Final

from pybroker.base.runtime import Clock

_SHORTEST_S: Final = 1.0
Counts = tuple[int, ...]
Flow = tuple[float, ...]  # per second, in the order of the counts


class Flows:
    def __init__(self, clock: Clock, counters: int) -> None:
        """`counters` is the number of counters of each owner."""
        self._clock = clock
        self.nothing: Final[Counts] = (0,) * counters
        self.still: Final[Flow] = (0.0,) * counters
        self.at_s = clock.monotonic_s()
        self.counts: dict[Hashable, Counts] = {}
        self.rates: dict[Hashable, Flow] = {}

    def reading(self) -> "Reading":
        return Reading(self, self._clock.monotonic_s())


class Reading:
    """One reading of all owners, each read once. Less than a second after the last reading, it
    repeats the last rates.
    """

    def __init__(self, flows: Flows, now_s: float) -> None:
        self._flows = flows
        self._before, self._last_rates = flows.counts, flows.rates
        self._now_s = now_s
        self._passed_s = now_s - flows.at_s
        self._is_new = self._passed_s >= _SHORTEST_S or not flows.counts
        self._counts: dict[Hashable, Counts] = {}
        self._rates: dict[Hashable, Flow] = {}

    def of(self, owner: Hashable, counts: Counts) -> Flow:
        """The owner's rates; 0 at its first reading. A counter that went back, because it
        restarted, has the rate 0.
        """
        if not self._is_new:
            return self._last_rates.get(owner, self._flows.still)
        before = self._before.get(owner)
        if before == counts:
            self._counts[owner] = before
            return self._flows.still
        # Tens of thousands of idle owners share one tuple.
        self._counts[owner] = counts if any(counts) else self._flows.nothing
        if before is None or self._passed_s <= 0:
            return self._flows.still
        gained = (max(0, now - then) for now, then in zip(counts, before, strict=True))
        rates = self._rates[owner] = tuple(count / self._passed_s for count in gained)
        return rates

    def keep(self) -> None:
        """Makes this the start of the next reading. Owners that were not read are forgotten."""
        if self._is_new and self._flows.counts is self._before:
            flows = self._flows
            flows.counts, flows.rates, flows.at_s = self._counts, self._rates, self._now_s
