"""Which sizes of requests a bookie takes (its nettyMaxFrameSizeBytes), found out when it matters.

A bookie does not tell its limit. It closes the connection on which a larger request begins, so all
other requests there fail, too. Therefore a bookie is asked before it gets its first large request:
a read that is padded to that size travels on a connection of its own. An answer proves that the
bookie takes such requests. If the connection is closed instead, and a small read is answered, then
the size was the reason.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from managed_ledger.storage.bookkeeper.connection import BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.protocol import Response

log = logging.getLogger(__name__)
MODEST_BYTES: Final = 1 << 20  # every bookie takes requests of this size
NO_LEDGER: Final = 2**63 - 1  # a number that no ledger has


class FrameLimits:
    def __init__(
        self,
        connected: Callable[[str], BookieConnection],
        usual_bytes: int,
        on_refusal: Callable[[], None],
    ) -> None:
        """`connected` returns a new connection to a bookie. `usual_bytes` is the size of the
        largest usual request: it is tried first, because it then proves all smaller ones.
        `on_refusal` is called when a bookie is found to refuse a size.
        """
        self._on_refusal = on_refusal
        self._connected = connected
        self._usual_bytes = usual_bytes
        self._taken: dict[str, int] = {}  # the largest size that was taken, by bookie
        self._refused: dict[str, int] = {}  # the smallest size that was refused
        self._asking: dict[str, asyncio.Lock] = {}

    def takes(self, bookie: str, size_bytes: int) -> bool | None:
        """Whether the bookie takes requests of this size; None if that is not known."""
        if size_bytes <= max(MODEST_BYTES, self._taken.get(bookie, 0)):
            return True
        refused = self._refused.get(bookie)
        return False if refused is not None and size_bytes >= refused else None

    @property
    def are_any(self) -> bool:
        """Whether any bookie has refused a size."""
        return bool(self._refused)

    def refused(self, bookie: str) -> int | None:
        """The smallest size that the bookie is known to refuse."""
        return self._refused.get(bookie)

    def forget(self, bookie: str) -> None:
        """The bookie has restarted, perhaps with another limit."""
        self._taken.pop(bookie, None)
        self._refused.pop(bookie, None)

    async def find_out(self, bookie: str, size_bytes: int) -> bool:
        """Whether the bookie takes requests of this size. Raises BookieFailed."""
        async with self._asking.setdefault(bookie, asyncio.Lock()):
            if size_bytes < self._usual_bytes and self.takes(bookie, size_bytes) is None:
                await self._ask(bookie, self._usual_bytes)
            if self.takes(bookie, size_bytes) is None:
                await self._ask(bookie, size_bytes)
            return self.takes(bookie, size_bytes) is True

    async def _ask(self, bookie: str, size_bytes: int) -> None:
        if self.takes(bookie, size_bytes) is not None:
            return
        if await self._is_answered(bookie, size_bytes):
            self._taken[bookie] = size_bytes
        elif await self._is_answered(bookie, 0):
            self._refused[bookie] = size_bytes
            log.warning(
                "bookie %s takes no request of %d bytes: its nettyMaxFrameSizeBytes should be "
                "larger than maxMessageSize of the brokers",
                bookie,
                size_bytes,
            )
            self._on_refusal()
        else:
            raise BookieFailed(f"bookie {bookie}: it closes every connection")

    async def _is_answered(self, bookie: str, size_bytes: int) -> bool:
        """False if the bookie closes the connection. Raises BookieFailed."""
        connection = self._connected(bookie)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(response: Response | None, why: BookieFailed | None) -> None:
            if done.done():
                return
            if response is not None or connection.was_closed:
                done.set_result(response is not None)
            else:
                done.set_exception(BookieFailed(*(why.args if why else ())))

        connection.read(NO_LEDGER, 0, answered, size_bytes=size_bytes)
        try:
            return await done
        finally:
            connection.break_off("it has served its purpose")
