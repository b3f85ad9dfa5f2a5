"""The receive queue of a visitor's consumers: it holds the broker back by bytes.

`receiver_queue_size` limits messages, which may have five megabytes each. Here, once the queue has
`AHEAD_BYTES`, the client's connections deliver no more messages. What the broker has already
written to them is accounted and limited there, as for sockets that a peer does not read.

A message may be a thousand times as large as what the broker has sent, because it is decompressed
here. So what all queues hold together is limited, too. Beyond that the clients of a machine that
holds more than its share of the limit get no more, and of the machine that holds the most, the
queues that stay full for `TAKE_S` are ended until there is room.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    @property
    def machine(self) -> str: ...
    def hold(self) -> None: ...
    def go_on(self) -> None: ...


@dataclass(slots=True)
class _Full:
    size_bytes: int
    since_s: float


class Ahead:
    """What the queues of all visitors hold, those that have more than AHEAD_BYTES."""

    def __init__(self, limit_bytes: int) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._full: dict[ReadAhead, _Full] = {}  # the one that has been full for longest first
        self._of_machines = Counter[str]()  # bytes
        self._valves: dict[str, dict[Valve, None]] = {}
        self._tight: dict[str, float] = {}  # machines whose clients get no more; since when
        self._due: asyncio.TimerHandle | None = None

    def add(self, valve: Valve) -> None:
        self._valves.setdefault(valve.machine, {})[valve] = None
        if valve.machine in self._tight:
            valve.hold()

    def remove(self, valve: Valve) -> None:
        of_machine = self._valves.get(valve.machine, {})
        of_machine.pop(valve, None)
        if not of_machine:
            self._valves.pop(valve.machine, None)

    def account(self, queue: "ReadAhead", held_bytes: int) -> None:
        excess = held_bytes if held_bytes > AHEAD_BYTES else 0
        known = self._full.get(queue)
        change = excess - (known.size_bytes if known is not None else 0)
        if not change:
            return
        if not excess:
            del self._full[queue]
        elif known is not None:
            known.size_bytes = excess
        else:
            self._full[queue] = _Full(excess, asyncio.get_running_loop().time())
        self._count(queue.machine, change)

    def _count(self, machine: str, change: int) -> None:
        self.held_bytes += change
        self._of_machines[machine] += change
        if not self._of_machines[machine]:
            del self._of_machines[machine]
        if self.held_bytes * 2 <= self._limit_bytes:
            for each in list(self._tight):
                self._loosen(each)
        elif machine in self._tight:
            if self._of_machines[machine] * 2 <= self._share_bytes:
                self._loosen(machine)
        elif self.held_bytes > self._limit_bytes:
            # The first time others may have more than their shares, too.
            for each in [machine] if self._tight else list(self._of_machines):
                if self._of_machines[each] > self._share_bytes:
                    self._tighten(each)

    @property
    def _share_bytes(self) -> int:
        return self._limit_bytes // max(1, len(self._of_machines))

    def _tighten(self, machine: str) -> None:
        self._tight[machine] = asyncio.get_running_loop().time()
        for valve in self._valves.get(machine, ()):
            valve.hold()
        if self._due is None:
            self._look_later()

    def _loosen(self, machine: str) -> None:
        del self._tight[machine]
        for valve in list(self._valves.get(machine, ())):
            valve.go_on()

    def _look_later(self) -> None:
        self._due = asyncio.get_running_loop().call_later(TAKE_S, self._end_what_stays_full)

    def _end_what_stays_full(self) -> None:
        self._due = None
        full_until_s = asyncio.get_running_loop().time() - TAKE_S
        while self._tight:
            ((machine, _),) = self._of_machines.most_common(1)
            queue = next(each for each in self._full if each.machine == machine)
            since_s = self._tight.get(machine, math.inf)
            if max(since_s, self._full[queue].since_s) > full_until_s:
                break
            queue.end()
        if self._tight:
            self._look_later()


class ReadAhead(ReceiveQueue):
    def __init__(self, valve: Valve, ahead: Ahead) -> None:
        super().__init__()
        self._valve = valve
        self._ahead = ahead
        self._held_bytes = 0
        self._holds = False
        self._has_failed = asyncio.Event()
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

    @property
    def machine(self) -> str:
        return self._valve.machine

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._has_failed.set()

    async def until_failed(self) -> None:
        """Raises what has ended its consumer, also while nobody wants a message. Returns if there
        still are some: whoever takes the last one is told.
        """
        await self._has_failed.wait()
        if not len(self) and self.failure is not None:
            raise self.failure

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
