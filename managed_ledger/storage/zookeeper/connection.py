"""One TCP connection to a ZooKeeper server: the handshake, requests in order, events, pings.

ZooKeeper answers in the order of the requests, so a queue matches answers to requests. The requests
of one loop tick are sent in one write.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from managed_ledger.storage.zookeeper.errors import (
    ConnectionLoss,
    SessionExpired,
    ZooKeeperError,
    error_of,
)
from managed_ledger.storage.zookeeper.jute import JuteReader, JuteWriter
from managed_ledger.storage.zookeeper.operations import OpCode

MAX_FRAME_BYTES: Final = 8 << 20  # jute.maxbuffer is 1 MiB by default
_HEAD: Final = Struct(">iqi")  # xid, zxid, error
_EVENT_XID: Final = -1
_PING_XID: Final = -2
_PING: Final = JuteWriter().i32(_PING_XID).i32(OpCode.PING).frame()


@dataclass(slots=True)
class SessionGrant:
    """Identifies a session to any server of the ensemble."""

    session_id: int
    password: bytes
    timeout_ms: int
    last_zxid: int = 0


class _Request:
    __slots__ = ("asked_s", "body", "code", "done", "what")

    def __init__(self, code: OpCode, body: bytes, what: str, asked_s: float) -> None:
        self.asked_s = asked_s
        self.code = code
        self.body = body
        self.what = what
        self.done: asyncio.Future[JuteReader] = asyncio.get_running_loop().create_future()


class ZooKeeperConnection(asyncio.Protocol):
    def __init__(
        self,
        grant: SessionGrant,
        event: Callable[[int, str], None],
        lost: Callable[["ZooKeeperConnection"], None],
    ) -> None:
        """`event(type, path)` is called for each event of a watch."""
        self._grant = grant
        self._event = event
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: deque[_Request] = deque()
        self._outgoing: list[bytes] = []
        self._xid = 0
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.heard_s = self._loop.time()
        self._asked_s = self.heard_s
        # When the latest answered request was sent: the session existed then. The time of reading
        # the answer would prove less, because the answer may have waited here for long.
        self.alive_s = -math.inf
        self._pinged_s: float | None = None  # the oldest ping without an answer
        self._hello_s = self.heard_s

    def request(self, code: OpCode, body: bytes, what: str) -> asyncio.Future[JuteReader]:
        """Fails with ZooKeeper's error, or with ConnectionLoss."""
        request = _Request(code, body, what, self._loop.time())
        if self._is_over:
            request.done.set_exception(ConnectionLoss(f"the connection is gone: {what}"))
            return request.done
        self._xid = self._xid % 0x7FFFFFFF + 1
        self._waiting.append(request)
        self._send(JuteWriter().i32(self._xid).i32(code).raw(body).frame())
        return request.done

    def _send(self, frame: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None:
            self._transport.write(b"".join(outgoing))
            self._asked_s = self._loop.time()

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._hello_s = self._loop.time()
        grant = self._grant
        hello = JuteWriter().i32(0).i64(grant.last_zxid).i32(grant.timeout_ms)
        hello.i64(grant.session_id).buffer(grant.password or bytes(16)).flag(False)
        transport.write(hello.frame())
        self._check_soon()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        self._buffer += data
        try:
            while len(self._buffer) >= 4 and not self._is_over:
                size = int.from_bytes(self._buffer[:4], "big")
                if size > MAX_FRAME_BYTES:
                    raise ZooKeeperError(f"a response of {size} bytes: the peer is not ZooKeeper")
                if len(self._buffer) < 4 + size:
                    return
                message = bytes(self._buffer[4 : 4 + size])
                del self._buffer[: 4 + size]
                self._received(JuteReader(message))
        except ZooKeeperError as mistake:
            self.end(mistake)

    def _received(self, reader: JuteReader) -> None:
        if not self.ready.done():
            self._welcomed(reader)
            return
        xid, zxid, error = reader.numbers(_HEAD)
        if zxid > 0:
            self._grant.last_zxid = zxid
        if xid == _EVENT_XID:
            kind, _state = reader.i32(), reader.i32()
            self._event(kind, reader.text())
        elif xid == _PING_XID:
            if self._pinged_s is not None:
                self.alive_s = max(self.alive_s, self._pinged_s)
                self._pinged_s = None
        else:
            if not self._waiting:
                raise ZooKeeperError("ZooKeeper sent a response without a request")
            request = self._waiting.popleft()
            self.alive_s = max(self.alive_s, request.asked_s)
            if request.done.done():
                return
            if error == 0 or request.code is OpCode.MULTI:  # the parts of a multi say what failed
                request.done.set_result(reader)
            else:
                request.done.set_exception(error_of(error, request.what))

    def _welcomed(self, reader: JuteReader) -> None:
        reader.i32()
        timeout_ms, session_id = reader.i32(), reader.i64()
        if timeout_ms <= 0:
            self.end(SessionExpired("ZooKeeper no longer knows the session; open a new client"))
            return
        self._grant.timeout_ms, self._grant.session_id = timeout_ms, session_id
        self._grant.password = reader.buffer()
        self.alive_s = self._hello_s
        self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.end(ConnectionLoss(f"the connection to ZooKeeper was lost: {error or 'closed'}"))

    # --- life

    def _check_soon(self) -> None:
        self._timer = self._loop.call_later(self._grant.timeout_ms / 6000, self._check)

    def _check(self) -> None:
        """Ping after a third of the timeout without a request. Break off after two thirds without
        an answer, so that there is time to ask another server.
        """
        now, timeout_s = self._loop.time(), self._grant.timeout_ms / 1000
        if now - self.heard_s > timeout_s * 2 / 3:
            self.end(ConnectionLoss("ZooKeeper does not answer"))
            return
        if self.ready.done() and now - self._asked_s >= timeout_s / 3 - timeout_s / 6:
            if self._pinged_s is None:
                self._pinged_s = now
            self._send(_PING)
        self._check_soon()

    def end(self, why: ZooKeeperError) -> None:
        """Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self.ready.done():
            self.ready.set_exception(why)
            self.ready.exception()  # mark as retrieved: there may be no waiter
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if not request.done.done():
                request.done.set_exception(ConnectionLoss(f"{why}: {request.what}"))
        self._lost(self)
