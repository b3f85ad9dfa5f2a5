"""Time for ages: the wall clock at the start, plus the elapsed monotonic time.

Rollover and retention ignore changes of the wall clock while the broker runs: durations within one
run come from the monotonic clock. Across a restart only the wall clock tells how old a ledger is,
so its time is recorded when the ledger is closed. The recorded time is the later of wall and steady
time, so that setting the clock back does not make the ledger older. At an opening, where steady
time begins, a closing time in the future is replaced by the time of the opening. So a jump of the
clock keeps nothing for longer than one extra retention time and deletes nothing early, unless the
clock is already wrong at the start, which cannot be detected.
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
