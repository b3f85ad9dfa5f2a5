"""Asks less often while nothing arrives.

Spark asks a source without a pause, some hundred times a second, and each question costs Spark, the
planner and the broker CPU. So the planner lets Spark wait before it asks the broker again: longer
with each question in vain, up to a quarter of a second, which is also how much later Spark notices
the next message or the query's end. It does not wait if Spark itself has paused, as a trigger with
an interval does.
"""

import time
from collections.abc import Callable
from typing import Final

_STEP_S: Final = 0.01
MOST_S: Final = 0.25


class Idleness:
    """One run of a query."""

    def __init__(
        self,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._in_vain = 0
        self._answered_s = 0.0

    def wait(self) -> None:
        """Call before the broker is asked."""
        wanted_s = min(MOST_S, self._in_vain * _STEP_S)
        left_s = self._answered_s + wanted_s - self._clock()
        if self._in_vain and left_s > 0:
            self._pause(left_s)

    def answered(self, has_more: bool) -> None:
        self._in_vain = 0 if has_more else self._in_vain + 1
        self._answered_s = self._clock()
