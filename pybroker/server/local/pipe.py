"""A client within this process: its connection and a session, joined by a pipe instead of a socket.

The session is one like any other, so permissions, rates, quotas and limits on connections apply
without extra code. It is logged in from the beginning, with the identity that the caller has
authenticated. MESSAGE commands wait in the pipe while the client holds them back, and count as
bytes that the peer has not read; all other commands, such as receipts, pass them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from pybroker.base.errors import AuthenticationError, TooManyRequests
from pybroker.base.runtime import Clock
from pybroker.security.identity import Identity
from pybroker.server.connections.live_login import LiveLogin
from pybroker.server.connections.session import Session
from pybroker.server.local.transport import SessionTransport
from pybroker.wire import commands

_DELIVERED_A_TURN: Final = 64 * 1024  # bytes
_MESSAGE: Final = b"\x08\x09"  # how a BaseCommand begins that is a MESSAGE
_HEAD: Final = 10  # both sizes of a frame, and that beginning


class Pipe(SessionTransport):
    """The session's transport; `end` is the client's."""

    def __init__(
        self, session: Session, client: asyncio.Protocol, address: tuple[str, int], url: str
    ) -> None:
        super().__init__(session, address, service_url=url)
        self.end = ClientEnd(self)
        self._client = client
        self._commands: deque[bytes] = deque()
        self._messages: deque[bytes] = deque()
        self._size_bytes = 0
        self._high_bytes = 0
        self._full = self._delivering = self._holds = False

    # -- from the session to the client

    def write(self, data: Any) -> None:
        if self._closing:
            return
        for frame in _frames(memoryview(data)):
            queue = self._messages if frame[8:_HEAD] == _MESSAGE else self._commands
            queue.append(frame)
            self._size_bytes += len(frame)
        if self._holds:
            self.feed(commands.PONG)  # whoever holds messages back is alive
        self._check_full()
        self._deliver_soon()

    def hold(self) -> None:
        self._holds = True

    def go_on(self) -> None:
        self._holds = False
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering and (self._commands or (self._messages and not self._holds)):
            self._delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        room = _DELIVERED_A_TURN
        while room > 0 and (queue := self._next()):
            frame = queue.popleft()
            room -= len(frame)
            self._size_bytes -= len(frame)
            self._client.data_received(frame)  # it may hold the next one back
        self._check_full()
        self._deliver_soon()

    def _next(self) -> deque[bytes] | None:
        if self._commands:
            return self._commands
        return self._messages if self._messages and not self._holds else None

    def get_write_buffer_size(self) -> int:
        return self._size_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high or 0
        self._check_full()

    def _check_full(self) -> None:
        if self._closing:
            return
        if not self._full and self._size_bytes > self._high_bytes:
            self._full = True
            self._session.pause_writing()
        elif self._full and self._size_bytes <= self._high_bytes // 4:
            self._full = False
            self._session.resume_writing()

    def close(self) -> None:
        if not self._closing:
            self._deliver_rest()
        super().close()

    def _deliver_rest(self) -> None:
        """The reason why a session refuses a client comes before its end."""
        while self._commands:
            self._loop.call_soon(self._client.data_received, self._commands.popleft())

    def ended(self) -> None:
        self._messages.clear()
        client, self._client = self._client, _NOBODY
        client.connection_lost(None)

    # -- logging in

    def log_in(self, identity: Identity | None) -> None:
        """Also later, with newer credentials of the same role."""
        session = self._session
        if identity is not None:
            is_super_user = session.services.is_super_user(identity)
            session.login = LiveLogin(identity, "", False, is_super_user)


class ClientEnd(asyncio.Transport):
    """The client's transport."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def write(self, data: Any) -> None:
        if not self._pipe.is_closing():
            self._pipe.feed(bytes(data))

    def is_closing(self) -> bool:
        return self._pipe.is_closing()

    def close(self) -> None:
        self._pipe.feed_end()

    def abort(self) -> None:
        self._pipe.abort()


_NOBODY: Final = asyncio.Protocol()


class Within:
    """Connects clients of this process. `accept` creates a session."""

    def __init__(self, accept: Callable[[], Session], clock: Clock) -> None:
        self._accept = accept
        self._clock = clock

    def connect(
        self,
        client: asyncio.Protocol,
        address: tuple[str, int],
        identity: Identity | None,
        url: str,
    ) -> Pipe:
        """`url` is what lookups name for topics of this broker. The session counts with the
        connections of `address`. Raises TooManyRequests; AuthenticationError if the credentials
        have expired.
        """
        expires_ms = None if identity is None else identity.expires_ms
        if expires_ms is not None and self._clock.now_ms() >= expires_ms:
            raise AuthenticationError("The credentials have expired: log in again")
        session = self._accept()
        pipe = Pipe(session, client, address, url)
        session.connection_made(pipe)
        if session.closed:
            raise TooManyRequests("There are too many connections; try again later")
        pipe.log_in(identity)
        client.connection_made(pipe.end)
        return pipe


def _frames(data: memoryview) -> Iterator[bytes]:
    """Sessions write whole frames."""
    at = 0
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 4], "big")
        yield bytes(data[at : at + size])
        at += size
