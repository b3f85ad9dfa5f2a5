"""How many bytes of half received frames there may be in the whole broker.

A large frame is accounted with its whole size when its beginning is here; where that does not fit,
its connection is not read until others have received theirs, first come, first served. Whoever is
read completes its frame or is closed for taking too long, so that nobody waits for ever.
"""

from collections.abc import Callable
from typing import Final

FREE_BYTES: Final = 64 * 1024  # of each connection; smaller frames are not counted


class FrameBudget:
    def __init__(self, limit_bytes: int) -> None:
        self.taken_bytes = 0
        self._limit_bytes = limit_bytes
        self._waiting: dict[Callable[[], None], int] = {}  # in the order they came

    def take(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """False when the caller must wait until `granted` is called."""
        if self._waiting or not self._fits(size_bytes):
            self._waiting[granted] = size_bytes
            return False
        self.taken_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """What was taken, or waited for."""
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
        """One frame always does, whatever its size."""
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._limit_bytes
