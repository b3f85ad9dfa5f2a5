"""An in-memory transport between a session and code in this process."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from pybroker.server.connections.session import Session
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.frames import MAX_COMMAND_BYTES, CommandFrame, FrameDecoder

# Called with each command of the session, and with None at its end.
Heard = Callable[[pb.BaseCommand | None], None]


class SessionTransport(asyncio.Transport):
    """The session's side: input waits while the session does not read. A subclass takes its output
    (`write`), and learns of its end (`ended`).
    """

    def __init__(self, session: Session, address: tuple[str, int], **extra: Any) -> None:
        super().__init__({"peername": address, "sockname": address, **extra})
        self._session = session
        self._waiting: deque[memoryview] = deque()
        self._paused = self._closing = self._reading = self._at_end = False
        self._loop = asyncio.get_running_loop()

    def feed(self, data: bytes) -> None:
        self._waiting.append(memoryview(data))
        self._read_soon()

    def feed_end(self) -> None:
        """Closes once the session has read everything."""
        self._at_end = True
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading or self._paused or self._closing:
            return
        if self._waiting:
            self._reading = True
            self._loop.call_soon(self._read)
        elif self._at_end:
            self.close()

    def _read(self) -> None:
        """Delivers as much as a socket would deliver at once."""
        self._reading = False
        if self._paused or self._closing:
            return
        buffer, size = self._session.get_buffer(-1), 0
        while self._waiting and size < len(buffer):
            piece = self._waiting.popleft()
            part = piece[: len(buffer) - size]
            buffer[size : size + len(part)] = part
            size += len(part)
            if len(part) < len(piece):
                self._waiting.appendleft(piece[len(part) :])
        if size:
            self._session.buffer_updated(size)
        self._read_soon()

    def ended(self) -> None:
        raise NotImplementedError

    # -- the part of asyncio.Transport that a session needs

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._read_soon()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignored: everything written is consumed at once."""

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._waiting.clear()
            self._loop.call_soon(self._lost)

    def abort(self) -> None:
        self.close()

    def _lost(self) -> None:
        self._session.connection_lost(None)
        self.ended()
        # Breaks reference cycles; nothing is read or delivered any more.
        del self._session


class MemoryTransport(SessionTransport):
    """Hands the session's commands to a function."""

    def __init__(self, session: Session, address: tuple[str, int], heard: Heard) -> None:
        super().__init__(session, address)
        self._heard = heard
        self._decoder = FrameDecoder(MAX_COMMAND_BYTES)

    def write(self, data: Any) -> None:
        for event in self._decoder.receive(data):
            assert isinstance(event, CommandFrame)
            self._heard(event.command)

    def ended(self) -> None:
        self._heard(None)
        del self._heard
