"""An event loop that reads many slow connections in ticks.

When each of hundreds of connections sends an occasional message, nearly every message arrives
alone. Then the wakeup, the commit and the hand-overs to and from the commit's thread cost several
times as much as the message itself. So while many events come from connections that had been quiet
for a while, the sockets are polled once per tick, and the messages of a tick share a commit. Other
threads, which report that a commit is durable, still wake the loop, so no request waits for two
ticks. A connection that was quiet for `QUIET_S` does not notice a few milliseconds. A connection
that responds at once to what it receives, such as a synchronous producer, is not quiet: with more
than a few of those the loop wakes up for each event, like any other loop.
"""

import asyncio
import select
import selectors
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

TICK_S: Final = 0.003
QUIET_S: Final = 0.03
WINDOW_S: Final = 0.016
QUIET_EVENTS_PER_S: Final = 1_000  # below this rate the loop wakes up for each event
QUIET_SHARE: Final = 0.9

Ready = list[tuple[selectors.SelectorKey, int]]
# Waits for descriptors, up to a number of seconds; returns those that are ready to read.
Wait = Callable[[Sequence[int], float], list[int]]


def _wait(descriptors: Sequence[int], seconds: float) -> list[int]:
    return select.select(descriptors, [], [], seconds)[0]


def paced_loop() -> asyncio.AbstractEventLoop:
    selector = PacedSelector()
    loop = asyncio.SelectorEventLoop(selector)
    selector.wake_by([key.fd for key in selector.get_map().values()])
    return loop


class Pacing:
    """Decides whether to use ticks, depending on which connections have events, and when."""

    def __init__(self) -> None:
        self.by_ticks = False
        self._left_out: frozenset[int] = frozenset()
        self._heard_s: dict[int, float] = {}  # by descriptor: bounded by the limit of descriptors
        self._looked_s = 0.0
        self._since_s = 0.0
        self._quiet = self._busy = 0  # the number of events since `_since_s`

    def leave_out(self, descriptors: Collection[int]) -> None:
        """Ignore descriptors that say nothing about the load."""
        self._left_out = frozenset(descriptors)

    def rest_s(self, now_s: float) -> float:
        """The time in seconds to wait before polling; 0 or less: poll now."""
        return self._looked_s + TICK_S - now_s if self.by_ticks else 0.0

    def looked(self, now_s: float, descriptors: Collection[int]) -> None:
        self._looked_s = now_s
        heard_s, quiet = self._heard_s, 0
        heard = [fd for fd in descriptors if fd not in self._left_out]
        for descriptor in heard:
            quiet += now_s - heard_s.get(descriptor, 0.0) > QUIET_S
            heard_s[descriptor] = now_s
        self._quiet += quiet
        self._busy += len(heard) - quiet
        if now_s - self._since_s >= WINDOW_S:
            self._judge(now_s)

    def _judge(self, now_s: float) -> None:
        many = self._quiet >= QUIET_EVENTS_PER_S * (now_s - self._since_s)
        self.by_ticks = many and self._quiet >= QUIET_SHARE * (self._quiet + self._busy)
        self._since_s = now_s
        self._quiet = self._busy = 0


class PacedSelector(selectors.DefaultSelector):
    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Wait = _wait,
    ) -> None:
        super().__init__()
        self.pacing = Pacing()
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._wakers: Sequence[int] = []

    def wake_by(self, descriptors: Sequence[int]) -> None:
        """Other threads wake the loop through these descriptors, without waiting for a tick."""
        self._wakers = descriptors
        self.pacing.leave_out(descriptors)

    def select(self, timeout: float | None = None) -> Ready:
        if self.pacing.by_ticks:
            rest_s = self.pacing.rest_s(self._monotonic_s())
            if rest_s > 0:
                return self._select_after(rest_s, timeout)
        return self._look(timeout)

    def _select_after(self, rest_s: float, timeout: float | None) -> Ready:
        """Poll when the tick is over; return earlier only for wakers, and for timers that are
        due.
        """
        if timeout is not None and timeout < rest_s:
            return self._woken(timeout) if timeout > 0 else []
        if woken := self._woken(rest_s):
            return woken
        return self._look(None if timeout is None else timeout - rest_s)

    def _woken(self, seconds: float) -> Ready:
        found = self._wait(self._wakers, seconds)
        return [(self.get_key(descriptor), selectors.EVENT_READ) for descriptor in found]

    def _look(self, timeout: float | None) -> Ready:
        ready = super().select(timeout)
        self.pacing.looked(self._monotonic_s(), [key.fd for key, _ in ready])
        return ready
