"""Limits the published bytes in flight, in memory and not yet durable, in the whole broker.

Over the limit, every session that publishes stops reading its socket; when half is free again, they
continue. TCP passes this back-pressure on to the producers.
"""

import asyncio
from collections.abc import Callable


class PublishBudget:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        self._paused: dict[Callable[[], None], None] = {}
        self._unused: asyncio.Future[None] | None = None

    def take(self, size_bytes: int, resume: Callable[[], None]) -> bool:
        """False when the caller must stop reading; `resume` is called when it may continue."""
        self.in_flight_bytes += size_bytes
        if self.in_flight_bytes <= self._limit_bytes:
            return True
        self._paused[resume] = None
        return False

    def give_back(self, size_bytes: int) -> None:
        self.in_flight_bytes -= size_bytes
        if self._paused and self.in_flight_bytes * 2 <= self._limit_bytes:
            paused, self._paused = self._paused, {}
            for resume in paused:
                resume()
        if self._unused is not None and not self.in_flight_bytes:
            self._unused.set_result(None)
            self._unused = None

    async def unused(self) -> None:
        """Returns when nothing is in flight."""
        if self.in_flight_bytes:
            if self._unused is None:
                self._unused = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._unused)

    def forget(self, resume: Callable[[], None]) -> None:
        """The session is gone; do not resume it."""
        self._paused.pop(resume, None)
