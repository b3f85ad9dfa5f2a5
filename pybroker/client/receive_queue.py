"""Messages received and not yet taken; shared by all topics of one consumer.

`poll` may be called from any thread: taking from the left of a deque is atomic.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from pybroker.client.errors import Timeout
from pybroker.client.messages import Message


class ReceiveQueue:
    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def put(self, messages: Iterable[Message]) -> None:
        self._messages.extend(messages)
        self._wake(len(self._messages))

    def put_back(self, messages: Sequence[Message]) -> None:
        """What somebody took and cannot use after all, in its order."""
        self._messages.extendleft(reversed(messages))
        self._wake(len(messages))

    def poll(self) -> Message | None:
        try:
            return self._messages.popleft()
        except IndexError:
            return None

    async def get(self, timeout_s: float | None) -> Message:
        """Raises Timeout, or what ended the consumer."""
        if (message := self.poll()) is not None:
            return message
        try:
            async with asyncio.timeout(timeout_s):
                return await self._wait()
        except TimeoutError as error:
            raise Timeout(f"No message within {timeout_s} s") from error

    async def _wait(self) -> Message:
        while True:
            if self._failure is not None:
                raise self._failure
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # The wake-up may have been for somebody who can still use it.
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)
                raise
            if (message := self.poll()) is not None:
                return message

    def discard(self, receiver: object) -> int:
        """Drops what came through one TopicConsumer; how many messages that were."""
        # Element by element: another thread may be polling, and nothing may be seen twice.
        old, self._messages = self._messages, deque()
        kept: list[Message] = []
        dropped = 0
        while old:
            try:
                message = old.popleft()
            except IndexError:
                break
            if message.entry.receiver is receiver:
                dropped += 1
            else:
                kept.append(message)
        self._messages.extend(kept)
        return dropped

    def fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while self._waiters and count > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
