"""The clients of visitors whose requests each stand alone: one client for all requests of a role
from one machine.

So the limits of a connection are theirs together, as with the binary protocol, and a transaction
that one request begins is not one of a closed connection when the request is answered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from pybroker.base.runtime import Tasks
from pybroker.gateway.clients import VisitorClient
from pybroker.gateway.visitor import Key, Visitor

IDLE_S: Final = 60.0


class _Kept:
    def __init__(self, client: VisitorClient) -> None:
        self.client = client
        self.users = 0
        self.needed_until_s = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Visitors:
    def __init__(self, new_client: Callable[[Visitor], VisitorClient]) -> None:
        self._new_client = new_client
        self._kept: dict[Key, _Kept] = {}
        self._tasks = Tasks("clients of HTTP")

    @asynccontextmanager
    async def client(self, visitor: Visitor) -> AsyncIterator[VisitorClient]:
        kept = self._kept.get(visitor.key)
        if kept is None:
            kept = self._kept[visitor.key] = _Kept(self._new_client(visitor))
        elif kept.client.visitor.identity != visitor.identity:
            kept.client.log_in(visitor)
        kept.users += 1
        try:
            yield kept.client
        finally:
            kept.users -= 1
            self._look_later(visitor.key, kept)

    def needs(self, visitor: Visitor, for_s: float) -> None:
        """Keeps the visitor's client for so long: a transaction is open."""
        kept = self._kept.get(visitor.key)
        if kept is not None:
            until_s = asyncio.get_running_loop().time() + for_s
            kept.needed_until_s = max(kept.needed_until_s, until_s)

    def _look_later(self, key: Key, kept: _Kept) -> None:
        if kept.timer is not None:
            kept.timer.cancel()
        loop = asyncio.get_running_loop()
        due_s = max(loop.time() + IDLE_S, kept.needed_until_s)
        kept.timer = loop.call_at(due_s, self._look, key, kept)

    def _look(self, key: Key, kept: _Kept) -> None:
        if not kept.users and self._kept.get(key) is kept:
            del self._kept[key]
            self._tasks.start(kept.client.close(), "closing an idle client")

    async def close(self) -> None:
        kept, self._kept = list(self._kept.values()), {}
        for each in kept:
            if each.timer is not None:
                each.timer.cancel()
        await asyncio.gather(*(each.client.close() for each in kept), return_exceptions=True)
        await self._tasks.close()
