"""Limits the bytes of partly received frames in the whole broker.

A large frame counts with its full size as soon as it begins. If it does not fit, the broker stops
reading its connection until other connections have completed theirs, first come, first served. A
connection that is being read completes its frame or is closed for taking too long, so every wait
ends.
"""

from collections.abc import Callable
from typing import Final

FREE_BYTES: Final = 64 * 1024  # per connection; smaller frames are not counted


class FrameBudget:
    def __init__(self, limit_bytes: int) -> None:
        self.taken_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting: dict[Callable[[], None], int] = {}  # in order of arrival

    def take(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """False when the caller must wait until `granted` is called."""
        if self._waiting or not self._fits(size_bytes):
            self._waiting[granted] = size_bytes
            return False
        self.taken_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """Releases what was taken, or cancels the wait."""
        if self._waiting.pop(granted, None) is None:
            self.taken_bytes -= size_bytes
        while self._waiting:
            first, wanted_bytes = next(iter(self._waiting.items()))
            if not self._fits(wanted_bytes):
                break
            del self._waiting[first]
            self.taken_bytes += wanted_bytes
            first()

    def _fits(self, size_bytes: int) -> bool:
        """Whether the size fits; a single frame always does."""
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._limit_bytes
