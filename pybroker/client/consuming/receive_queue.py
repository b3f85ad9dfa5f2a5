"""Messages received and not yet taken; shared by all topics of one consumer."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.errors import Timeout
from pybroker.client.messages import Message


class ReceiveQueue:
    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._failure: Exception | None = None
        # Keeps what is not for the application.
        self.sieve: Callable[[Sequence[Message]], Sequence[Message]] | None = None
        # After this many taken messages the broker is granted as many permits.
        self.half = 1

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def put(self, messages: Sequence[Message]) -> None:
        self._messages.extend(messages if self.sieve is None else self.sieve(messages))
        if self._waiters:
            self._wake(len(self._messages))

    def put_back(self, messages: Sequence[Message]) -> None:
        """Puts back messages that a caller polled but could not use, in their order."""
        self._messages.extendleft(reversed(messages))
        self._wake(len(messages))

    def poll(self) -> Message | None:
        """A queued message, if any; the caller must report it with `tell_taken`."""
        return self._messages.popleft() if self._messages else None

    async def get(self, timeout_s: float | None) -> Message:
        """Like `poll`, but waits. Raises Timeout, or the error that ended the consumer."""
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
                # Another waiter may still use the wake-up.
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)
                raise
            if (message := self.poll()) is not None:
                return message

    def settle(self) -> None:
        """Reports messages that other threads took, in a queue that allows that: ThreadQueue."""

    def waiting(self, receiver: object) -> list[Message]:
        """The messages of one TopicConsumer that were not taken."""
        return [each for each in self._messages if each.entry.receiver is receiver]

    def discard(self, receiver: object, among: MessageSet | None = None) -> list[Message]:
        """Drops the messages of one TopicConsumer (those `among` these), and returns them."""
        dropped: list[Message] = []
        kept: deque[Message] = deque()
        for each in self._messages:
            goes = each.entry.receiver is receiver and (among is None or each.place in among)
            (dropped if goes else kept).append(each)
        self._messages = kept
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


def tell_taken(messages: Sequence[Message]) -> None:
    """Tells each TopicConsumer which of its messages the application has taken."""
    by_receiver: dict[object, list[Message]] = {}
    for message in messages:
        receiver = message.entry.receiver
        if receiver in by_receiver:
            by_receiver[receiver].append(message)
        else:
            by_receiver[receiver] = [message]
    for group in by_receiver.values():
        group[0].entry.receiver.on_taken(group)
