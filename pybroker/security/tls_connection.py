"""TLS between a socket and a protocol that is unaware of TLS: one object, which is the protocol of
the socket's transport and the transport of the inner protocol.

asyncio's own TLS counts a connection only after its handshake; here unfinished ones are limited
(`TlsAcceptor`), and each has a time limit. Plaintext is never buffered: output is encrypted and
passed on at once, in one piece; input goes into the inner protocol's own buffer, record by record.
Flow control is the socket's.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base.runtime import break_cycles_of
from pybroker.security.pending_connections import PendingConnections
from pybroker.security.tls_contexts import TlsContexts

# Connections whose ClientHello is incomplete: only for a moment, as a client sends it at once.
MAX_SILENT: Final = 200
# Connections whose ClientHello was answered: the next step follows a round trip later. Answering
# costs 0.2 to 1 ms of CPU, so a flood of hellos needs 0.1 s or more to displace all of them.
MAX_ANSWERED: Final = 500
# OpenSSL keeps buffers of the largest size ever used, as long as the connection lives.
_RECEIVE_BYTES: Final = 128 * 1024
_ENCRYPT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("pybroker.tls")


@dataclass(frozen=True, slots=True)
class TlsListener:
    """A bound socket, and the TLS context of its connections."""

    socket: socket.socket
    contexts: TlsContexts


def most_handshakes(descriptors: int) -> tuple[int, int]:
    """A port's limits of silent and answered connections, if `descriptors` files may be open."""
    share = max(1, descriptors // 16)
    return min(MAX_SILENT, share), min(MAX_ANSWERED, share)


class TlsAcceptor:
    """Creates the connections of a listening socket and tracks unfinished handshakes.

    Silent and answered connections have separate limits: peers that have sent nothing never
    displace one whose ClientHello was answered. At a limit, the oldest connection of the machine
    with most of that kind is closed.
    """

    def __init__(
        self,
        contexts: TlsContexts,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        handshake_timeout_s: float,
    ) -> None:
        self.contexts = contexts
        self.handshake_timeout_s = handshake_timeout_s
        # One buffer for all: filled and emptied within one callback.
        self.buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._new_protocol = new_protocol
        self._silent, self._answered = (
            PendingConnections[TlsConnection](),
            PendingConnections[TlsConnection](),
        )
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_silent, self._most_answered = most_handshakes(
            descriptors if descriptors != resource.RLIM_INFINITY else sys.maxsize
        )

    def __call__(self) -> "TlsConnection":
        return TlsConnection(self, self._new_protocol())

    @property
    def handshakes(self) -> int:
        return len(self._silent) + len(self._answered)

    def began(self, connection: "TlsConnection", address: str) -> None:
        self._make_room(self._silent, self._most_silent)
        self._silent.add(connection, address)

    def answered(self, connection: "TlsConnection", address: str) -> None:
        """Called when the first ClientHello of the connection has arrived."""
        self._silent.remove(connection)
        self._make_room(self._answered, self._most_answered)
        self._answered.add(connection, address)

    def _make_room(self, pending: "PendingConnections[TlsConnection]", most: int) -> None:
        if len(pending) < most:
            return
        oldest = pending.oldest_where_most_are()
        if oldest is not None:
            oldest.abort()
            pending.remove(oldest)

    def ended(self, connection: "TlsConnection") -> None:
        self._silent.remove(connection)
        self._answered.remove(connection)

    def close(self) -> None:
        for pending in (self._silent, self._answered):
            while (connection := pending.oldest_where_most_are()) is not None:
                connection.abort()
                pending.remove(connection)


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    def __init__(self, acceptor: TlsAcceptor, protocol: asyncio.BaseProtocol) -> None:
        asyncio.Transport.__init__(self)
        self._acceptor = acceptor
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = acceptor.contexts.current().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshaking = True
        self._answered = False  # whether the ClientHello was answered
        self._address = "unknown"
        self._paused = False
        self._closing = False

    # -- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else "unknown"
        self._acceptor.began(self, self._address)
        self._timer = self._loop.call_later(self._acceptor.handshake_timeout_s, self._too_slow)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._acceptor.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._acceptor.buffer[:nbytes])
        if self._handshaking:
            self._shake_hands()
        else:
            self._read()

    def eof_received(self) -> bool | None:
        if self._handshaking or not isinstance(
            self._protocol, asyncio.Protocol | asyncio.BufferedProtocol
        ):
            return None
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._handshake_over()
        self._closing = True
        if not self._handshaking:
            self._protocol.connection_lost(exc)
        self._protocol = asyncio.Protocol()  # the inner protocol may refer to this connection
        break_cycles_of(self._socket)

    def pause_writing(self) -> None:
        if not self._handshaking:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if not self._handshaking:
            self._protocol.resume_writing()

    # -- the handshake

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._answer()
            return
        except ssl.SSLError as error:
            self._flush()  # sends the alert
            self._fail(f"no TLS handshake: {error.reason or error}")
            return
        if self._resumes_with_what_expired():
            self._fail("the resumed TLS session uses a certificate that has expired")
            return
        self._handshaking = False
        self._handshake_over()
        self._flush()
        self._protocol.connection_made(self)
        self._read()

    def _answer(self) -> None:
        """The handshake has output as soon as the whole ClientHello is here."""
        if self._outgoing.pending and not self._answered:
            self._answered = True
            self._acceptor.answered(self, self._address)
        self._flush()

    def _resumes_with_what_expired(self) -> bool:
        """TLS 1.2 also resumes sessions by id, which no option turns off."""
        if not self._tls.session_reused:
            return False
        certificate = self._tls.getpeercert()
        return certificate is not None and self._acceptor.contexts.has_expired(certificate)

    def _too_slow(self) -> None:
        self._fail("the TLS handshake timed out")

    def _handshake_over(self) -> None:
        self._acceptor.ended(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, reason: str) -> None:
        log.info("closing %s: %s", self.get_extra_info("peername"), reason)
        assert self._socket is not None
        if self._handshaking:
            self._socket.close()
            self._handshake_over()
            self._timer = self._loop.call_later(1.0, self._socket.abort)
        else:
            self._socket.abort()

    # -- reading

    def _read(self) -> None:
        """Decrypts as much as the inner protocol accepts."""
        try:
            more = True
            while more and not self._paused and not self._closing:
                more = self._read_some()
        except ssl.SSLError as error:
            self._flush()
            self._fail(f"the data received is not TLS: {error.reason or error}")
            return
        self._flush()

    def _read_some(self) -> bool:
        """False if there is nothing more to read."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            received, more = self._fill(buffer)
            if received:
                protocol.buffer_updated(received)
            return more
        assert isinstance(protocol, asyncio.Protocol)
        try:
            data = self._tls.read(_READ_BYTES)
        except ssl.SSLWantReadError:
            return False
        if data:
            protocol.data_received(data)
        else:
            self.close()
        return bool(data)

    def _fill(self, buffer: memoryview) -> tuple[int, bool]:
        received, size, read = 0, len(buffer), self._tls.read
        try:
            while received < size:
                got: Any = read(size - received, buffer[received:])
                if not got:  # the peer has closed its side
                    self._loop.call_soon(self.close)
                    return received, False
                received += got
        except ssl.SSLWantReadError:
            return received, False
        return received, True

    # -- the inner protocol's transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        try:
            encrypted = self._encrypted(data)
        except ssl.SSLError as error:
            self._fail(f"writing failed: {error.reason or error}")
            return
        assert self._socket is not None
        self._socket.write(encrypted)

    def _encrypted(self, data: bytes | bytearray | memoryview) -> bytes:
        if len(data) <= _ENCRYPT_BYTES:
            self._tls.write(data)
            return self._outgoing.read()
        view, pieces = memoryview(data), []
        for start in range(0, len(view), _ENCRYPT_BYTES):
            self._tls.write(view[start : start + _ENCRYPT_BYTES])
            pieces.append(self._outgoing.read())
        return b"".join(pieces)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _flush(self) -> None:
        if self._outgoing.pending:
            assert self._socket is not None
            self._socket.write(self._outgoing.read())

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        assert self._socket is not None
        if not self._handshaking:
            self._say_goodbye()
        self._socket.close()

    def _say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # for example, the peer has not closed its side yet
            self._tls.unwrap()
        self._flush()

    def abort(self) -> None:
        self._closing = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        assert self._socket is not None
        if not self._paused and not self._closing:
            self._paused = True
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        assert self._socket is not None
        if self._paused and not self._closing:
            self._paused = False
            self._socket.resume_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._paused and not self._closing:
            self._read()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert self._socket is not None
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        assert self._socket is not None
        return self._socket.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        assert self._socket is not None
        return self._socket.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peercert` is present only if the client sent a verified one."""
        if name == "peercert":
            return self._tls.getpeercert() or default
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return default if self._socket is None else self._socket.get_extra_info(name, default)
