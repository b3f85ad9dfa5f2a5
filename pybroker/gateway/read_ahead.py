"""The receive queue of a visitor's consumers: it holds the broker back by bytes.

`receiver_queue_size` limits messages, which may have five megabytes each. Here, once the queue has
`AHEAD_BYTES`, the client's connections deliver no more messages. What the broker has already
written to them is accounted and limited there, as for sockets that a peer does not read.

A message may be a thousand times as large as what the broker has sent, because it is decompressed
here. So what all queues hold together is limited, too: beyond that no client gets more, and the
queue that has been full for longest is ended after `TAKE_S`, until there is room.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pybroker.base.errors import TooManyRequests
from pybroker.base.runtime import do_nothing
from pybroker.client.consuming.message_set import MessageSet
from pybroker.client.consuming.receive_queue import ReceiveQueue
from pybroker.client.messages import Message

AHEAD_BYTES: Final = 64 * 1024
TAKE_S: Final = 10.0
_OF_A_MESSAGE: Final = 500  # bytes that it takes besides its payload


class Valve(Protocol):
    def hold(self) -> None: ...
    def go_on(self) -> None: ...


class Ahead:
    """What the queues of all visitors hold beyond AHEAD_BYTES each."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self.tight = False
        self._limit_bytes = limit_bytes
        self._full: dict[ReadAhead, int] = {}  # the one that has been full for longest first
        self._valves: dict[Valve, None] = {}
        self._due: asyncio.TimerHandle | None = None

    def add(self, valve: Valve) -> None:
        self._valves[valve] = None
        if self.tight:
            valve.hold()

    def remove(self, valve: Valve) -> None:
        self._valves.pop(valve, None)

    def account(self, queue: "ReadAhead", held_bytes: int) -> None:
        excess = held_bytes if held_bytes > AHEAD_BYTES else 0
        self.held_bytes += excess - self._full.get(queue, 0)
        if excess:
            self._full[queue] = excess
        else:
            self._full.pop(queue, None)
        if not self.tight and self.held_bytes > self._limit_bytes:
            self._tighten()
        elif self.tight and self.held_bytes * 2 <= self._limit_bytes:
            self._loosen()

    def _tighten(self) -> None:
        self.tight = True
        for valve in self._valves:
            valve.hold()
        self._look_later()

    def _loosen(self) -> None:
        self.tight = False
        if self._due is not None:
            self._due.cancel()
        for valve in list(self._valves):
            valve.go_on()

    def _look_later(self) -> None:
        self._due = asyncio.get_running_loop().call_later(TAKE_S, self._end_the_oldest)

    def _end_the_oldest(self) -> None:
        if self.tight and self._full:
            next(iter(self._full)).end()
        if self.tight:
            self._look_later()


class ReadAhead(ReceiveQueue):
    def __init__(self, valve: Valve, ahead: Ahead) -> None:
        super().__init__()
        self._valve = valve
        self._ahead = ahead
        self._held_bytes = 0
        self._holds = False
        self.came: Callable[[], None] = do_nothing  # called after each arrival

    def put(self, messages: Sequence[Message]) -> None:
        self._count(messages, 1)
        super().put(messages)
        self.came()

    def put_back(self, messages: Sequence[Message]) -> None:
        self._count(messages, 1)
        super().put_back(messages)

    def poll(self) -> Message | None:
        message = super().poll()
        if message is not None:
            self._count((message,), -1)
        return message

    def discard(self, receiver: object, among: MessageSet | None = None) -> list[Message]:
        dropped = super().discard(receiver, among)
        self._count(dropped, -1)
        return dropped

    def end(self) -> None:
        """Its messages go to other consumers of their subscriptions."""
        self.fail(TooManyRequests("Too much is waiting to be received: receive faster, or less"))
        while self.poll() is not None:
            pass

    def _count(self, messages: Sequence[Message], sign: int) -> None:
        self._held_bytes += sign * sum(len(each.data()) + _OF_A_MESSAGE for each in messages)
        self._ahead.account(self, self._held_bytes)
        if self._held_bytes >= AHEAD_BYTES and not self._holds:
            self._holds = True
            self._valve.hold()
        elif self._holds and self._held_bytes <= AHEAD_BYTES // 2:
            self._holds = False
            self._valve.go_on()
