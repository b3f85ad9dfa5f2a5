"""Holds messages that must wait: for the end of a transaction, for their topic to join one, or for
a publish rate.

The producer's later messages must not overtake them. So all stay in memory, within a broker-wide
limit. Runs that do not fit are dropped: the broker then closes the producer, and its client resends
everything unanswered, in order. The same happens if the wait takes too long.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pybroker.wire.frames import SendRun

HOLD_S: Final = 20.0  # less than the official clients' send timeout
_ROOM_BYTES: Final = 16 * 1024 * 1024


class HeldRoom:
    """The memory of all held runs of a broker."""

    def __init__(self, limit_bytes: int = _ROOM_BYTES) -> None:
        self._free_bytes = limit_bytes

    def take(self, size_bytes: int) -> bool:
        if size_bytes > self._free_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self._free_bytes += size_bytes


class HeldRuns:
    """The held runs of one producer. `too_long` is called if they are not taken in time."""

    def __init__(self, room: HeldRoom, too_long: Callable[[], None]) -> None:
        self._room = room
        self._runs: list[SendRun] = []
        self.size_bytes = 0
        # Or by a write or an examination; False: by another producer's open transaction.
        self.by_rate = False
        self._complete = True
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, too_long)
        self._taken: asyncio.Event | None = None  # while there is a waiter

    def keep(self, run: SendRun) -> None:
        # An entry is at most as large as a frame; the rest is list overhead.
        size_bytes = sum(map(len, run.entries)) + 500 * len(run.entries)
        if self._complete and self._room.take(size_bytes):
            self.size_bytes += size_bytes
            self._runs.append(run)
        else:
            self._complete = False

    def take(self) -> tuple[list[SendRun], bool]:
        """Removes the kept runs and returns them, and whether none was dropped."""
        runs, self._runs = self._runs, []
        self._timer.cancel()
        if self._taken is not None:
            self._taken.set()
        self._room.give_back(self.size_bytes)
        self.size_bytes = 0
        return runs, self._complete

    async def taken(self) -> None:
        """Returns when the runs are taken."""
        self._taken = self._taken or asyncio.Event()
        await self._taken.wait()
