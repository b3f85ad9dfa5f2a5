"""What a connection receives: complete requests in a queue, within limits.

A large request counts in the budget of all partly received ones from its first bytes until it is
answered. While the budget, or the queue, has no room, the socket is not read.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pybroker.base.runtime import do_nothing
from pybroker.kafka.codec.frames import FrameReader
from pybroker.server.connections.frame_budget import FREE_BYTES, FrameBudget, machine_at

MAX_QUEUED: Final = 64  # requests received and not begun; one read may bring more
_MAX_QUEUED_BYTES: Final = 1024 * 1024
_CHECKS_OF_A_FRAME: Final = 2


class Hold:
    """A request's share of the budget, until its first `release`."""

    __slots__ = ("_budget", "_granted", "_machine", "_size", "waits")

    def __init__(
        self, budget: FrameBudget, size: int, granted: Callable[[], None], machine: str
    ) -> None:
        self._budget, self._size, self._granted = budget, size, granted
        self._machine = machine
        self.waits = not budget.take(size, self._has_come, machine)

    def _has_come(self) -> None:
        self.waits = False
        self._granted()

    def release(self) -> None:
        if self._granted is not do_nothing:
            self._granted = do_nothing
            self._budget.give_back(self._size, self._has_come, self._machine)


@dataclass(frozen=True, slots=True)
class Frame:
    data: bytes
    hold: Hold | None = None

    def release(self) -> None:
        """Call it when the request is answered or dropped. Idempotent."""
        if self.hold is not None:
            self.hold.release()


class Intake:
    def __init__(self, reader: FrameReader, budget: FrameBudget, came: Callable[[], None]) -> None:
        """`came` is called when there is a request."""
        self._reader = reader
        self._budget = budget
        self._came = came
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._hold: Hold | None = None  # of the request that is partly here
        self._checks = 0  # since the last complete request
        self._stopped = False
        self._reading = True
        self._transport: asyncio.Transport | None = None

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __len__(self) -> int:
        return len(self._queue)

    def receive(self, data: bytes) -> None:
        """Raises Malformed for a frame whose size is negative or too large."""
        for frame in self._reader.receive(data):
            self._queue.append(Frame(frame, self._hold))
            self._queued_bytes += len(frame)
            self._hold, self._checks = None, 0
            self._came()
        size = self._reader.wanted_bytes
        if size > FREE_BYTES and self._hold is None:
            machine = machine_at(self._transport)
            self._hold = Hold(self._budget, size, self._read_if_there_is_room, machine)
        self._read_if_there_is_room()

    def take(self) -> Frame:
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame.data)
        self._read_if_there_is_room()
        return frame

    def _has_room(self) -> bool:
        full = len(self._queue) >= MAX_QUEUED or self._queued_bytes > _MAX_QUEUED_BYTES
        return not full and (self._hold is None or not self._hold.waits)

    def _read_if_there_is_room(self) -> None:
        wanted = self._has_room() and not self._stopped
        if self._transport is None or self._transport.is_closing() or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def is_stuck(self) -> bool:
        """Call it from time to time: whether the same request was incomplete at the last checks,
        although nothing prevented the peer from sending it.
        """
        if self._reader.is_within_a_frame and self._reading:
            self._checks += 1
        return self._checks > _CHECKS_OF_A_FRAME

    def stop(self) -> None:
        """Reads no more, and drops what has not begun."""
        self._stopped = True
        self._read_if_there_is_room()
        for frame in self._queue:
            frame.release()
        self._queue.clear()
        if self._hold is not None:
            self._hold.release()
            self._hold = None
