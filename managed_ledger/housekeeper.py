"""Timed work for many objects: one timer, and a heap of visits by due time.

An object that will have work schedules a visit; the others cost nothing. Visits run on the loop, a
few per turn, so that thousands of visits due together do not delay other work. A visit that must
wait starts a task, which its owner holds.
"""

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Final

log = logging.getLogger(__name__)

VISITS_A_TURN: Final = 20
_FEW: Final = 1000


class Visit:
    """`work` is called once, unless the visit is cancelled first."""

    __slots__ = ("housekeeper", "work")

    def __init__(self, housekeeper: "Housekeeper", work: Callable[[], object]) -> None:
        self.housekeeper = housekeeper
        self.work: Callable[[], object] | None = work

    def cancel(self) -> None:
        if self.work is not None:
            self.work = None
            self.housekeeper.forget_cancelled()


class Housekeeper:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, Visit]] = []
        self._number = 0  # of the next visit: visits due together run in the order of scheduling
        self._cancelled = 0
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        """The number of pending visits."""
        return len(self._due) - self._cancelled

    def start(self) -> None:
        """Call on the loop that will run the visits. Idempotent."""
        self._loop = asyncio.get_running_loop()

    def visit_in(self, delay_s: float, work: Callable[[], object]) -> Visit:
        """Call `work` in `delay_s` seconds; never after `close`."""
        visit = Visit(self, work)
        if not self._closed:
            assert self._loop is not None, "the housekeeper has not been started"
            heappush(self._due, (self._loop.time() + delay_s, self._number, visit))
            self._number += 1
            self._set_timer(self._loop)
        return visit

    def forget_cancelled(self) -> None:
        """Cancelled visits stay in the heap: searching for each would cost too much."""
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled * 2 > len(self._due):
            self._due = [due for due in self._due if due[2].work is not None]
            heapify(self._due)
            self._cancelled = 0

    def close(self) -> None:
        self._closed = True
        self._due.clear()
        self._cancelled = 0
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = self._due[0][0]
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        # In a context of its own: timed work does not run on behalf of the task that set the timer.
        self._timer, self._timer_s = loop.call_at(due_s, self._turn, context=Context()), due_s

    def _turn(self) -> None:
        self._timer, loop = None, self._loop
        assert loop is not None
        now_s = max(loop.time(), self._timer_s)  # the timer may fire a clock tick early
        for _ in range(VISITS_A_TURN):
            if not self._due or self._due[0][0] > now_s:
                break
            self._visit(heappop(self._due)[2])
        if self._due and self._timer is None:
            if self._due[0][0] <= now_s:
                self._timer, self._timer_s = loop.call_soon(self._turn), now_s
            else:
                self._set_timer(loop)

    def _visit(self, visit: Visit) -> None:
        work, visit.work = visit.work, None
        if work is None:
            self._cancelled -= 1
            return
        try:
            work()
        except Exception:  # the other visits still run
            log.exception("a housekeeping run failed")
