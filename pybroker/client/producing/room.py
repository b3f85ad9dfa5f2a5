"""Limits a producer's messages without receipts, and queues callers that want to send another."""

import asyncio
from collections import deque
from collections.abc import Callable

from pybroker.client.errors import ProducerQueueIsFull
from pybroker.client.options import ProducerOptions


class Room:
    def __init__(self, topic: str, options: ProducerOptions, freed: Callable[[int], None]) -> None:
        """`freed` is called with the number of messages that were answered."""
        self._topic = topic
        self._limit = options.max_pending_messages
        # A caller that can wait awaits `space` first, and is never refused.
        self._refuses = not options.block_if_queue_full
        self._freed = freed
        self._outstanding = 0
        self._promised = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed: Exception | None = None

    def take(self, count: int) -> Exception | None:
        """Counts the messages; returns why they are refused, if so. Call `free` once either way."""
        before = self._outstanding
        self._outstanding += count
        if self._closed is not None:
            return self._closed
        # A batch larger than the limit must still pass, alone.
        if before and self._outstanding > self._limit and self._refuses:
            return ProducerQueueIsFull(
                f"{before} messages to {self._topic} are waiting for their receipts"
            )
        return None

    def free(self, count: int) -> None:
        self._outstanding -= count
        self._freed(count)
        if self._waiters:
            self._wake()

    async def space(self) -> None:
        """Returns when there is room for another message, first come, first served.

        The room is reserved from the waiter's wake-up until it is used, or the waiter is cancelled.
        """
        if not self._waiters and self._has_some:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._promised -= 1
                self._wake()
            raise
        self._promised -= 1

    def close(self, error: Exception) -> None:
        """Callers that wait for room, and all later ones, get `error`."""
        self._closed = error
        self._wake()

    @property
    def _has_some(self) -> bool:
        return self._outstanding + self._promised < self._limit or self._closed is not None

    def _wake(self) -> None:
        while self._waiters and self._has_some:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._promised += 1
                waiter.set_result(None)
