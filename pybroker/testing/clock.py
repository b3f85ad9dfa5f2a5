"""The clock of a broker in a test: it runs like any clock, and can be advanced.

    with pybroker.testing.broker() as b:
        ...
        b.clock.advance("1h")  # timeouts, delays, TTL, retention, expiry of tokens: all in order

The broker's event loop and its wall clock are ahead of the system's by the sum of all advances. To
advance, the loop goes from one timer to the next. Before it continues, it completes everything that
the timer causes, even on the disk. The clients' time does not change, so everything that concerns
clients, such as the keep-alive, stays in real time (`sleep_in_real_time`).
"""

import asyncio
import heapq
import math
import re
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any, Final

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_IDLE_ROUNDS: Final = 3  # of the loop: one callback may schedule another
_THREADS_PAUSE_S: Final = 0.0005
_AT_MOST_S: Final = 120.0
_JUDGED_AFTER_S: Final = 2.0  # then it is known how long the rest would take
_FAR_TOO_LONG: Final = 3.0  # times the limit
_LONGEST_S: Final = 100 * 365.25 * 86_400  # dates end in the year 9999

Duration = float | str | timedelta


def seconds_of(duration: Duration) -> float:
    """Seconds from 90, "1h", "1h30m", "500ms" or timedelta(hours=1). Raises ValueError."""
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        parts = _DURATION.findall(duration)
        if not parts or "".join(map("".join, parts)) != duration.replace(" ", ""):
            raise ValueError(f"{duration!r} is not a duration such as 90s, 1h30m, 500ms or 7d")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        seconds = float(duration)
    if seconds < 0:
        raise ValueError(f"Time cannot go back by {-seconds:g} s: advance by a positive duration")
    if not seconds <= _LONGEST_S:  # also true for NaN
        raise ValueError(f"{duration!r} is not a duration of at most 100 years: advance by less")
    return seconds


class AdvancingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is ahead by the clock's offset. It counts work in other threads."""

    def __init__(self, clock: "VirtualClock") -> None:
        self._virtual_clock = clock
        self.in_threads = 0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._virtual_clock.offset_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        self.in_threads += 1
        done = super().run_in_executor(executor, func, *args)
        done.add_done_callback(self._left_thread)
        return done

    def _left_thread(self, done: asyncio.Future[Any]) -> None:
        self.in_threads -= 1

    @property
    def is_busy(self) -> bool:
        return bool(self.in_threads or self._ready)  # type: ignore[attr-defined]

    def next_due_s(self) -> float | None:
        """The time of the next timer, without those in real time."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due_s = (each.when() for each in timers if not (each.cancelled() or _in_real_time(each)))
        return min(due_s, default=None)

    def move(self, seconds: float) -> None:
        """Moves the loop's time; the remaining time of timers in real time does not change."""
        self._virtual_clock.offset_s += seconds
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        for timer in timers:
            if _in_real_time(timer):
                timer._when += seconds  # type: ignore[attr-defined]
        heapq.heapify(timers)


def _refuse_what_takes_too_long(done_s: float, wanted_s: float) -> None:
    """Raises TimeoutError soon if the advance could not end in time."""
    needed_s = _JUDGED_AFTER_S * wanted_s / max(done_s, 0.001)
    if needed_s > _FAR_TOO_LONG * _AT_MOST_S:
        raise TimeoutError(
            f"The broker has so much to do at its times that this advance would take about "
            f"{needed_s:.0f} s, more than {_AT_MOST_S:g} s: advance by less at once, or to the "
            f"moment that matters. The clock has advanced by {done_s / 86_400:.1f} days"
        )


def _in_real_time(timer: asyncio.TimerHandle) -> bool:
    called: Any = timer._callback  # type: ignore[attr-defined]
    return getattr(getattr(called, "__self__", None), "in_real_time", False)


class VirtualClock:
    """A `Clock` that outlives restarts of its broker."""

    is_steady = True  # it moves with the loop's time

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._lock = threading.Lock()
        # Runs a coroutine on the broker's loop; None while the broker is down.
        self.run: Callable[[Coroutine[Any, Any, None]], None] | None = None
        self.moved: tuple[Callable[[float], None], ...] = ()  # called before each advance

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.offset_s * 1000)

    def monotonic_s(self) -> float:
        return time.monotonic() + self.offset_s

    def advance(self, duration: Duration) -> None:
        """Returns when everything that is due by then has happened and is durable.

        `duration` is in seconds, a timedelta, or a text such as "1h30m". Raises ValueError;
        TimeoutError if it takes longer than two minutes; RuntimeError on the broker's own loop,
        which would wait for itself. A broker that is stopped will start with the advanced time.
        """
        seconds = seconds_of(duration)
        if isinstance(asyncio._get_running_loop(), AdvancingLoop):
            raise RuntimeError(
                "The broker's loop cannot wait for itself: call clock.advance in the test's thread"
            )
        with self._lock:
            self._tell(seconds)
            if self.run is None:
                self.offset_s += seconds
            else:
                self.run(self._advance(seconds))

    async def advance_here(self, duration: str | float) -> None:
        """`advance` for callers on the broker's own loop. Raises ValueError, TimeoutError;
        ValueError too while the clock is already being advanced.
        """
        seconds = seconds_of(duration)
        if not self._lock.acquire(blocking=False):
            raise ValueError("The clock is being advanced already: wait until that is done")
        try:
            self._tell(seconds)
            await self._advance(seconds)
        finally:
            self._lock.release()

    def _tell(self, seconds: float) -> None:
        for told in self.moved:
            told(seconds)

    @property
    def is_advancing(self) -> bool:
        return self._lock.locked()

    def hold(self) -> None:
        """Waits until the current advance is over. From then on, an advance only sets the offset:
        the broker ends in real time.
        """
        with self._lock:
            self.run = None

    async def _advance(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancingLoop)
        began_s, target_s = loop.time(), loop.time() + seconds
        judged_s = time.monotonic() + _JUDGED_AFTER_S
        give_up_s = time.monotonic() + _AT_MOST_S
        while True:
            await self._settle(loop, give_up_s)
            if time.monotonic() > judged_s:
                judged_s = math.inf
                _refuse_what_takes_too_long(loop.time() - began_s, seconds)
            due_s = loop.next_due_s()
            if due_s is None or due_s > target_s:
                break
            loop.move(max(0.0, due_s - loop.time()))
        loop.move(max(0.0, target_s - loop.time()))
        await self._settle(loop, give_up_s)

    async def _settle(self, loop: AdvancingLoop, give_up_s: float) -> None:
        idle_rounds = 0
        while idle_rounds < _IDLE_ROUNDS:
            await asyncio.sleep(0)
            idle_rounds = 0 if loop.is_busy else idle_rounds + 1
            if loop.in_threads:
                await asyncio.sleep(_THREADS_PAUSE_S)
            if time.monotonic() > give_up_s:
                raise TimeoutError(
                    f"The broker was still at work after {_AT_MOST_S:g} s: advance by less at once"
                )
