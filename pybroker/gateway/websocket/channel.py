"""One WebSocket: text messages in and out, over a connection whose HTTP request asked for it.

wsproto knows the protocol (RFC 6455); here is what bounds it. While a message waits to be received,
or the peer does not read, nothing is read. A turn of the loop handles a limited number of frames,
because the shortest have two bytes. A message that arrives in large parts counts in the budget of
partly received frames, and its sender has a limited time. Nothing is compressed, so nothing grows.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import h11
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    Pong,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from pybroker.base.machines import machine_of
from pybroker.base.runtime import break_cycles_of
from pybroker.gateway.clients import Budget

FREE_BYTES: Final = 64 * 1024  # of a partly received message; of an answer that the peer must take
_READ_BYTES: Final = 32 * 1024
_FRAMES_A_TURN: Final = 50
_HIGH_BYTES: Final = 32 * 1024  # written, not taken by the peer
_MESSAGE_S: Final = 30.0  # for the rest of a message
_LINGER_S: Final = 5.0  # for the peer to close, too

GOING_AWAY: Final = 1001
_TOO_LARGE: Final = 1009
_UNSUPPORTED: Final = 1003
_POLICY: Final = 1008


class NotAWebSocket(Exception):
    """The request does not ask for one, or not as RFC 6455 says."""


class ChannelClosed(Exception):
    """By the peer, by a limit or by the broker."""


class Room(Protocol):
    """The memory of answers, of all connections."""

    async def take(self, size_bytes: int) -> None: ...
    def give_back(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    message_bytes: int
    idle_s: float
    ping_s: float  # 0: no pings


_buffer: Final = memoryview(bytearray(_READ_BYTES))  # filled and emptied within one callback


class Channel(asyncio.BufferedProtocol):
    def __init__(
        self, headers: Iterable[tuple[bytes, bytes]], path: bytes, limits: Limits, budget: Budget
    ) -> None:
        """Raises NotAWebSocket if the request is not a handshake of RFC 6455."""
        self._ws = WSConnection(ConnectionType.SERVER)
        try:
            self._ws.initiate_upgrade_connection(list(headers), path)
            if not any(isinstance(event, Request) for event in self._ws.events()):
                raise NotAWebSocket("The request is not complete")
        except (RemoteProtocolError, LocalProtocolError, h11.LocalProtocolError) as error:
            raise NotAWebSocket(str(error)) from None
        self._limits = limits
        self._budget = budget
        self.room: Room | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._machine = ""
        self._parts: list[str] = []
        self._parts_bytes = self._taken_bytes = 0
        self._message: str | None = None  # received, not yet asked for
        self._in_use = False  # the message that was asked for, until the next one is
        self._receiver: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = self._lost = self._later = self._paused = False
        self._waits_for_budget = False
        self._why = "the connection is closed"
        self._busy_s = self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- the connection

    def head(self) -> bytes:
        """The answer that begins the WebSocket."""
        return self._ws.send(AcceptConnection())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._machine = machine_of(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        self._again("idle", self._limits.idle_s, self._look_whether_idle)
        if self._limits.ping_s:
            self._again("ping", self._limits.ping_s, self._ping)

    def begin(self, received: bytes) -> None:
        """`received`: what came behind the request."""
        assert self._transport is not None
        self._transport.resume_reading()
        self._receive(received)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(bytes(_buffer[:nbytes]))

    def eof_received(self) -> bool:
        return False  # the transport closes

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._forget_message()
        self._writable.set()
        self._wake()
        if self.room is not None:
            self.room.give_back()
        break_cycles_of(self._transport)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._busy_s = self._loop.time()
        self._writable.set()
        self._go_on_soon()

    # -- frames

    def _receive(self, data: bytes) -> None:
        self._busy_s = self._loop.time()
        try:
            self._ws.receive_data(data)
        except LocalProtocolError:
            return  # after the end
        self._go_on()

    def _go_on_soon(self) -> None:
        if not self._later and not self._lost:
            self._later = True
            self._loop.call_soon(self._go_on_later)

    def _go_on_later(self) -> None:
        self._later = False
        self._go_on()

    def _go_on(self) -> None:
        """Handles some frames; what is left waits, and then nothing more is read."""
        left = _FRAMES_A_TURN
        if not self._later and self._may_go_on:
            for event in self._ws.events():
                left -= 1
                self._handle(event)
                if not left or not self._may_go_on:
                    break
        if not left:
            self._go_on_soon()
        self._pause_or_resume()

    @property
    def _may_go_on(self) -> bool:
        waits = self._message is not None or self._in_use or self._waits_for_budget
        return not waits and self._writable.is_set() and not self._lost

    def _pause_or_resume(self) -> None:
        paused = self._later or not self._may_go_on
        if self._transport is None or paused is self._paused or self._lost:
            return
        self._paused = paused
        if paused:
            self._transport.pause_reading()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _handle(self, event: Any) -> None:
        if isinstance(event, CloseConnection):
            self._closed_by_peer(event)
        elif self._closing:
            return
        elif isinstance(event, TextMessage):
            self._take(event.data, event.message_finished)
        elif isinstance(event, BytesMessage):
            self.close(_UNSUPPORTED, "Send text: the messages of this API are JSON")
        elif isinstance(event, Ping):
            self._write(self._ws.send(event.response()))
        else:
            assert isinstance(event, Pong)  # shows that the peer is alive, as any byte does

    def _closed_by_peer(self, event: CloseConnection) -> None:
        if not self._closing:
            self._closing = True
            self._why = f"the peer closed it ({event.code})"
            self._write(self._ws.send(event.response()))
        if self._transport is not None:
            self._transport.close()
        self._wake()

    def _take(self, text: str, finished: bool) -> None:
        self._parts_bytes += len(text) if text.isascii() else len(text.encode())
        if self._parts_bytes > self._limits.message_bytes:
            most = self._limits.message_bytes
            self.close(_TOO_LARGE, f"A message may have {most} bytes (webSocketMaxTextFrameSize)")
            return
        if text:
            self._parts.append(text)
        if finished:
            self._cancel("message")
            self._message = "".join(self._parts)
            self._parts.clear()
            self._wake()
            return
        if "message" not in self._timers:
            self._again("message", _MESSAGE_S, self._too_slow)
        if self._parts_bytes > FREE_BYTES and not self._taken_bytes:
            self._taken_bytes = self._limits.message_bytes
            self._waits_for_budget = not self._budget.take(
                self._taken_bytes, self._granted, self._machine
            )
            if self._waits_for_budget:
                self._cancel("message")  # it is not the sender's time

    def _granted(self) -> None:
        self._waits_for_budget = False
        self._again("message", _MESSAGE_S, self._too_slow)
        self._go_on_soon()

    def _forget_message(self) -> None:
        """Its memory is free."""
        self._parts_bytes = 0
        taken, self._taken_bytes = self._taken_bytes, 0
        if taken:
            self._waits_for_budget = False
            self._budget.give_back(taken, self._granted, self._machine)

    # -- for whoever serves it

    async def receive(self) -> str:
        """The next message. The one before is done, and its memory free. Raises ChannelClosed."""
        if self._in_use:
            self._in_use = False
            self._forget_message()
        while self._message is None:
            if self._closing:
                raise ChannelClosed(self._why)
            self._receiver = self._loop.create_future()
            self._go_on_soon()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message, self._message = self._message, None
        self._in_use = True
        return message

    @property
    def peeked_bytes(self) -> int:
        """The size of the message that was received last."""
        return self._parts_bytes

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    async def send(self, text: str) -> None:
        """Returns once the peer has taken most of what was sent before. Raises ChannelClosed."""
        await self._until_writable()
        self._write(self._ws.send(TextMessage(data=text)))

    async def send_parts(self, parts: Iterator[str], size_bytes: int) -> None:
        """Like `send`, for one message of which `size_bytes` are held meanwhile. A long one counts
        in the memory of answers. Raises ChannelClosed.
        """
        part = next(parts)
        if size_bytes <= FREE_BYTES or self.room is None:
            await self._send_all(part, parts)
            return
        try:
            await self.room.take(size_bytes)
            await self._send_all(part, parts)
        finally:
            self.room.give_back()

    async def _send_all(self, part: str, parts: Iterator[str]) -> None:
        while True:
            following = next(parts, None)
            await self._until_writable()
            self._write(self._ws.send(TextMessage(data=part, message_finished=following is None)))
            if following is None:
                return
            part = following

    async def _until_writable(self) -> None:
        await self._writable.wait()
        if self._closing:
            raise ChannelClosed(self._why)

    def _write(self, data: bytes) -> None:
        self._busy_s = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self, code: int, reason: str) -> None:
        """Closes it in order; the peer gets the reason. Idempotent."""
        if self._closing or self._transport is None:
            return
        self._closing, self._why = True, reason
        self._write(self._ws.send(CloseConnection(code=code, reason=reason)))
        self._again("linger", _LINGER_S, self._transport.abort)
        self._wake()
        self._go_on_soon()

    @property
    def closed(self) -> bool:
        return self._closing

    # -- time

    def _again(self, name: str, delay_s: float, look: Any) -> None:
        self._cancel(name)
        self._timers[name] = self._loop.call_later(delay_s, look)

    def _cancel(self, name: str) -> None:
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _too_slow(self) -> None:
        self.close(_POLICY, f"A message did not arrive within {_MESSAGE_S:g} s")

    def _look_whether_idle(self) -> None:
        left_s = self._busy_s + self._limits.idle_s - self._loop.time()
        if left_s > 0:
            self._again("idle", left_s, self._look_whether_idle)
            return
        seconds = self._limits.idle_s
        self.close(GOING_AWAY, f"Idle for {seconds:g} s (webSocketSessionIdleTimeoutMillis)")

    def _ping(self) -> None:
        self._again("ping", self._limits.ping_s, self._ping)
        if self._writable.is_set() and not self._closing and self._transport is not None:
            self._transport.write(self._ws.send(Ping(payload=b"PING")))
