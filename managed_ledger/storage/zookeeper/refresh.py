"""Repeats work on request, for reactions to the events of a watch. Never runs it twice at once;
runs it once more after requests that came meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from managed_ledger.storage.zookeeper.errors import SessionExpired, ZooKeeperError

log = logging.getLogger(__name__)
AGAIN_S = 1.0  # after a failure


class Refresh:
    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Request the work; it begins after this has returned."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._work()
            except SessionExpired:
                break
            except ZooKeeperError as why:
                log.warning("a request to ZooKeeper failed and is repeated: %s", why)
                self._wanted = True
                await asyncio.sleep(AGAIN_S)
        self._task = None
