"""Limits how long an HTTP connection may keep the broker waiting, and the number of connections.

At any moment a connection is either answering (a handler runs), or waiting for its peer. The peer
must send a complete request head within `HEAD_S` of connecting or of the last response, and read
some of a response that is being sent every `TAKE_S`. At most `MAX_CONNECTIONS` are open. When
another one arrives, the broker closes one that waits for its peer: it takes the address with the
most waiting connections, and of these the one that has waited longest. So clients that send
requests and read the responses are always served.
"""

import asyncio
from collections import Counter, deque
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from pybroker.admin.http.authenticated import with_certificate
from pybroker.admin.http.hanging_up import with_hang_up
from pybroker.admin.http.upgrading import with_switch
from pybroker.base.machines import machine_of
from pybroker.base.runtime import break_cycles_of

HEAD_S: Final = 10.0
TAKE_S: Final = 10.0
_LINGER_S: Final = 5.0  # for the peer to read the rest, before the connection is aborted
MAX_CONNECTIONS: Final = 200
# Every chunk of a body is a parser event, however short it is. Data with more lines than this is
# parsed in pieces.
MOST_LINES: Final = 400
PIECE_BYTES: Final = 2048


class _Flow(FlowControl):
    """A connection's flow control. While it is `held`, nothing is read."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class ImpatientProtocol(H11Protocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waiting_since_s = self.loop.time()
        self._head_due: asyncio.TimerHandle | None = None
        self._take_due: asyncio.TimerHandle | None = None
        self._later: deque[bytes] = deque()  # received but not parsed
        self._is_endless = False

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing. Java's HTTP client offers HTTP/2 in every first request, and accepts
        HTTP/1.1. uvicorn would warn about each, and recommend a package that this broker does not
        use.
        """

    @property
    def machine(self) -> str:
        return machine_of(self.client[0]) if self.client else "unknown"

    @property
    def waits_for_peer(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return answered or self.flow.write_paused or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._make_room()
        super().connection_made(transport)
        self.flow = self._reading = _Flow(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app = with_certificate(self.app, certificate)
        self.app = with_hang_up(self.app, transport.abort, self._answer_without_end)
        self.app = with_switch(self.app, self._switch)
        self._wait_for_head()

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, ImpatientProtocol)]
        open_ones = [other for other in others if not other.transport.is_closing()]
        if len(open_ones) >= MAX_CONNECTIONS:
            waiting = [other for other in open_ones if other.waits_for_peer]
            if waiting:
                peers = Counter(other.machine for other in waiting)
                first = min(waiting, key=lambda o: (-peers[o.machine], o.waiting_since_s))
                first.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timers()
        break_cycles_of(self.transport)

    def _cancel_timers(self) -> None:
        for timer in (self._head_due, self._take_due):
            if timer is not None:
                timer.cancel()

    def _switch(self, new: Any) -> None:
        """This connection is no HTTP any more: it has no place here, and other limits."""
        is_lost = self not in self.connections
        self._cancel_timers()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.cycle.disconnected = True  # it needs no answer
        self.transport.set_protocol(new)
        new.connection_made(self.transport)
        if is_lost:
            new.connection_lost(None)
            return
        self.transport.write(new.head())
        received, _ = self.conn.trailing_data
        new.begin(received + b"".join(self._later))
        self._later.clear()

    # -- requests

    def data_received(self, data: bytes) -> None:
        if not self._later and data.count(b"\n") <= MOST_LINES:
            super().data_received(data)
            return
        if not self._later:
            self.loop.call_soon(self._parse_next)
        self._later += (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        self.flow.pause_reading()
        self._reading.held = True

    def _parse_next(self) -> None:
        """Parses one piece, so that other work runs between the pieces."""
        if self.transport.is_closing():
            self._later.clear()
            return
        piece = self._later.popleft()
        if self._later:
            self.loop.call_soon(self._parse_next)
        else:
            self._reading.held = False
            self.flow.resume_reading()
        super().data_received(piece)

    def _wait_for_head(self) -> None:
        self.waiting_since_s = self.loop.time()
        if self._head_due is not None:
            self._head_due.cancel()
        self._head_due = self.loop.call_later(HEAD_S, self._no_head)

    def _no_head(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._hang_up()

    def on_response_complete(self) -> None:
        self._wait_for_head()
        super().on_response_complete()

    def _answer_without_end(self) -> None:
        self._is_endless = True

    def shutdown(self) -> None:
        super().shutdown()
        if self._is_endless:
            self._hang_up()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def _hang_up(self) -> None:
        self.transport.close()
        if self._take_due is None:
            self._take_due = self.loop.call_later(_LINGER_S, self.transport.abort)

    # -- answers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._take_due is not None and not self.transport.is_closing():
            self._take_due.cancel()
            self._take_due = None

    def _wait_for_taking(self) -> None:
        before = self.transport.get_write_buffer_size()
        self._take_due = self.loop.call_later(TAKE_S, self._look_what_was_taken, before)

    def _look_what_was_taken(self, before: int) -> None:
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._wait_for_taking()
