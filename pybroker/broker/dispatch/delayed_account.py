"""What all that is delayed takes in memory, of all subscriptions together: bounded, and shared.

At the bound those logs alone are read on of which less is remembered than their share of as much
again, so that who delays millions holds up nobody else. What others took of that is shared no more,
so all together take no more than twice the bound, and one read each.
"""

from collections.abc import Callable
from typing import Final

MAX_ALL_DELAYED_BYTES: Final = 256 * 1024 * 1024


class DelayedAccount:
    def __init__(self, limit_bytes: int = MAX_ALL_DELAYED_BYTES) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._holders = 0
        self._waiting: dict[Callable[[], None], None] = {}

    def has_room(self, held_bytes: int) -> bool:
        """For who holds so much."""
        if self.used_bytes < self._limit_bytes:
            return True
        left_bytes = 2 * self._limit_bytes - self.used_bytes
        return held_bytes < left_bytes // (self._holders + 1)

    def changed(self, before_bytes: int, bytes_now: int) -> None:
        """What one of them holds; those that waited for room go on when there is some."""
        self.used_bytes += bytes_now - before_bytes
        self._holders += (bytes_now > 0) - (before_bytes > 0)
        if self._waiting and self.used_bytes < self._limit_bytes - self._limit_bytes // 8:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """Until `resume` is called, once, there is no room."""
        self._waiting[resume] = None

    def leave(self, resume: Callable[[], None]) -> None:
        """It waits no more."""
        self._waiting.pop(resume, None)
