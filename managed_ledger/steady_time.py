"""Time for ages: the wall clock at the start, plus the elapsed monotonic time.

For rollover and retention, changes of the wall clock do not count while the broker runs. Durations
within one run come from the monotonic clock. Across a restart only the wall clock tells how old a
ledger is: its value is recorded when the ledger is closed (the later of wall and steady time, so
that setting the clock back does not make the ledger older), and a closing time in the future counts
as the time of opening, where steady time begins. So a jump of the clock keeps nothing for longer
than one extra retention time, and deletes nothing early, unless the clock is wrong at the very
start, which cannot be detected.
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
        """The current time to record for use after a restart."""
        return max(self.now_ms(), self._clock.now_ms())
