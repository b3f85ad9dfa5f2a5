"""Time for ages: the clock on the wall as it was at the beginning, and since then what has passed.

The rule of rollover and retention is that no setting of the clock counts while this runs.
Durations within one run are what the monotonic clock says. Across a restart only the wall clock
tells how old a ledger is: it is written down when the ledger is closed (the later of wall and
steady time, so that a clock that was put back does not make it older), and one from the future
counts as closed at the opening, which begins this time. So a jump keeps nothing for longer than
one retention time more, and deletes nothing early but for a clock that is wrong at the very start,
which nobody can know.
"""

from managed_ledger.config import Clock


class SteadyTime:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._began_s = clock.monotonic_s()

    def now_ms(self) -> int:
        return self._began_ms + int((self._clock.monotonic_s() - self._began_s) * 1000)

    def written_ms(self) -> int:
        """What is written down as now, to be read after a restart."""
        return max(self.now_ms(), self._clock.now_ms())
