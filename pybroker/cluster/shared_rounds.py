"""Rounds of work that many callers share: a caller waits for one that began after its call.

So any number of callers costs one round at a time, and each learns of everything that happened
before it asked.
"""

import asyncio
from collections.abc import Awaitable, Callable

from managed_ledger.shared_task import shared_task


class SharedRounds:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        """`work` must end by itself, for instance with a timeout."""
        self._work = work
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def one(self) -> None:
        """Returns when a round that began after the call has ended; raises its error."""
        if self._next is None:
            self._next = shared_task(self._round(self._running))
        await asyncio.shield(self._next)

    async def _round(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        await self._work()
