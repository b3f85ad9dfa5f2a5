"""TLS between a socket and a protocol that knows nothing of it: one object, which is the protocol
of the socket's transport and the transport of the inner protocol.

asyncio's own counts a connection only once its handshake is over; here those that have not got so
far are few (`TlsDoor`), and each has a limit of time. Plaintext is never buffered: what is written
is encrypted and handed on at once, in one piece; what is read goes into the inner protocol's own
buffer, record after record. Flow control is the socket's.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.base.runtime import break_cycles_of
from pybroker.security.newcomers import Newcomers
from pybroker.security.tls_contexts import TlsContexts

MAX_HANDSHAKES: Final = 200
MAX_HANDSHAKES_OF_ADDRESS: Final = 50
# What OpenSSL was given once it keeps room for, as long as the connection lives.
_RECEIVE_BYTES: Final = 128 * 1024
_ENCRYPT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("pybroker.tls")


@dataclass(frozen=True, slots=True)
class TlsListener:
    """A bound socket, and what connections to it begin with."""

    socket: socket.socket
    contexts: TlsContexts


class TlsDoor:
    """Makes the connections of a listening socket; knows those that are not in yet."""

    def __init__(
        self,
        contexts: TlsContexts,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        handshake_timeout_s: float,
    ) -> None:
        self.contexts = contexts
        self.handshake_timeout_s = handshake_timeout_s
        # One buffer for all: it is filled and emptied within one callback.
        self.buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._new_protocol = new_protocol
        self._handshaking = Newcomers[TlsConnection]()

    def __call__(self) -> "TlsConnection":
        return TlsConnection(self, self._new_protocol())

    @property
    def handshakes(self) -> int:
        return len(self._handshaking)

    def began(self, connection: "TlsConnection", address: str) -> None:
        """Where too many are at it, the oldest of the machine that has most of them makes room."""
        oldest = None
        if self._handshaking.of_machine(address) >= MAX_HANDSHAKES_OF_ADDRESS:
            oldest = self._handshaking.oldest_of(address)
        elif len(self._handshaking) >= MAX_HANDSHAKES:
            oldest = self._handshaking.oldest_where_most_are()
        if oldest is not None:
            oldest.abort()
            self.ended(oldest)
        self._handshaking.came(connection, address)

    def ended(self, connection: "TlsConnection") -> None:
        self._handshaking.went(connection)

    def close(self) -> None:
        while (connection := self._handshaking.oldest_where_most_are()) is not None:
            connection.abort()
            self.ended(connection)


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    def __init__(self, door: TlsDoor, protocol: asyncio.BaseProtocol) -> None:
        asyncio.Transport.__init__(self)
        self._door = door
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = door.contexts.current().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshaking = True
        self._paused = False
        self._closing = False

    # -- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        peer = transport.get_extra_info("peername")
        self._door.began(self, peer[0] if peer else "unknown")
        self._timer = self._loop.call_later(self._door.handshake_timeout_s, self._too_slow)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._door.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._door.buffer[:nbytes])
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
        self._protocol = asyncio.Protocol()  # the other one may refer to this
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
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert
            self._fail(f"no TLS handshake: {error.reason or error}")
            return
        if self._resumes_with_what_expired():
            self._fail("the TLS session that it resumes is of a certificate that has expired")
            return
        self._handshaking = False
        self._handshake_over()
        self._flush()
        self._protocol.connection_made(self)
        self._read()

    def _resumes_with_what_expired(self) -> bool:
        """TLS 1.2 knows sessions by ids, too, which no option turns off."""
        if not self._tls.session_reused:
            return False
        certificate = self._tls.getpeercert()
        return certificate is not None and self._door.contexts.has_expired(certificate)

    def _too_slow(self) -> None:
        self._fail("no TLS handshake within the handshake timeout")

    def _handshake_over(self) -> None:
        self._door.ended(self)
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
        """All that can be decrypted, as far as the inner protocol takes it."""
        try:
            more = True
            while more and not self._paused and not self._closing:
                more = self._read_some()
        except ssl.SSLError as error:
            self._flush()
            self._fail(f"what came is no TLS: {error.reason or error}")
            return
        self._flush()

    def _read_some(self) -> bool:
        """False if nothing is left."""
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
                if not got:  # the peer says that this is all
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
            self._fail(f"cannot be written to: {error.reason or error}")
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
        with contextlib.suppress(ssl.SSLError):  # such as that the peer has not said it yet
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
        """`peercert` is there only if the client showed one that was verified."""
        if name == "peercert":
            return self._tls.getpeercert() or default
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return default if self._socket is None else self._socket.get_extra_info(name, default)
