"""One timer for the deadlines of a coordinator's transactions."""

import asyncio
import math
from collections.abc import Callable

from pybroker.base.runtime import Clock
from pybroker.transaction.coordinator.ends.timeout_tracker import TimeoutTracker


class Timeouts:
    """`expired` is called for each transaction that is due, and returns the amount of work that it
    caused. A turn of the loop does about `work_a_turn`, because very many transactions may be
    overdue after a restart.
    """

    def __init__(self, clock: Clock, expired: Callable[[int], int], work_a_turn: int) -> None:
        self._clock = clock
        self._expired = expired
        self._work_a_turn = work_a_turn
        self._tracker = TimeoutTracker()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf

    def __len__(self) -> int:
        return len(self._tracker)

    def add(self, local_id: int, timeout_ms: int) -> None:
        """`timeout_ms` counts from now."""
        deadline_s = self._clock.monotonic_s() + timeout_ms / 1000
        self._tracker.add(local_id, deadline_s)
        if deadline_s < self._due_s:
            self._set_timer()

    def remove(self, local_id: int) -> None:
        """Idempotent."""
        self._tracker.remove(local_id)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        due_s = self._tracker.next_deadline_s
        if due_s >= self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = due_s
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._due_s, done, now_s = math.inf, 0, self._clock.monotonic_s()
        while done < self._work_a_turn:
            if (local_id := self._tracker.pop_expired(now_s)) is None:
                break
            done += self._expired(local_id)
        self._set_timer()
