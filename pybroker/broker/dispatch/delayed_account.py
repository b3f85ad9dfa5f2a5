"""Memory of delayed messages of all subscriptions: bounded, and shared.

At the bound, a subscription is read further only if it holds less than its share of a second,
equally large amount. So a subscription that delays millions of messages does not block others. What
is taken from the second amount reduces the shares, so all subscriptions together take at most twice
the bound, plus one read each.
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
        """Whether a subscription that holds this much may read further."""
        if self.used_bytes < self._limit_bytes:
            return True
        left_bytes = 2 * self._limit_bytes - self.used_bytes
        return held_bytes < left_bytes // (self._holders + 1)

    def changed(self, before_bytes: int, bytes_now: int) -> None:
        """Update what one subscription holds; waiting subscriptions continue when there is room."""
        self.used_bytes += bytes_now - before_bytes
        self._holders += (bytes_now > 0) - (before_bytes > 0)
        if self._waiting and self.used_bytes < self._limit_bytes - self._limit_bytes // 8:
            waiting, self._waiting = self._waiting, {}
            for resume in waiting:
                resume()

    def wait(self, resume: Callable[[], None]) -> None:
        """`resume` is called once when there is room."""
        self._waiting[resume] = None

    def leave(self, resume: Callable[[], None]) -> None:
        """Stop waiting."""
        self._waiting.pop(resume, None)
