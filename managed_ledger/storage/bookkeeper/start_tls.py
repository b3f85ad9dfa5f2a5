"""TLS to a bookie: a request in the clear, then a handshake on the same connection.

A bookie has one port. A client asks for TLS with START_TLS, a protobuf message of protocol version
3, even if it uses another version afterwards. A bookie without TLS refuses it.

Source: BookkeeperProtocol.proto; org.apache.bookkeeper.proto.PerChannelBookieClient.
"""

import asyncio
from typing import Final

from managed_ledger.codec import Writer
from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.connection import BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.formats.protobuf import fields, put_bytes, put_int
from managed_ledger.storage.tls_files import ClientTls

_VERSION_THREE: Final = 3
_START_TLS: Final = 9
_STATUS: Final = 2  # of a response
_OK: Final = 0
_MAX_ANSWER_BYTES: Final = 1024


async def connect_with_tls(
    connection: BookieConnection, host: str, port: int, tls: ClientTls
) -> None:
    """Raises OSError (ssl.SSLError too), BookieFailed."""
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(_Asking, host, port)
    try:
        _require_ok(await asking.answer)
        secured = await loop.start_tls(transport, connection, tls.context(), server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    if secured is None:
        raise BookieFailed("the connection was lost during the TLS handshake")
    connection.connection_made(secured)


class _Asking(asyncio.Protocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(_request())

    def data_received(self, data: bytes) -> None:
        self._received += data
        size = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 or self.answer.done():
            return
        if size > _MAX_ANSWER_BYTES:
            self._fail(f"it answered START_TLS with {size:,} bytes: it is not a bookie")
        elif len(self._received) >= 4 + size:
            self.answer.set_result(bytes(self._received[4 : 4 + size]))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"it closed the connection instead of starting TLS ({error or 'no reason'})")

    def _fail(self, why: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(BookieFailed(why))
            self.answer.exception()  # there may be no waiter any more


def _request() -> bytes:
    header, request = Writer(), Writer()
    for number, value in enumerate((_VERSION_THREE, _START_TLS, 0), start=1):
        put_int(header, number, value)
    put_bytes(request, 1, header.getvalue())
    put_bytes(request, 106, b"")  # startTLSRequest
    message = request.getvalue()
    return len(message).to_bytes(4, "big") + message


def _require_ok(answer: bytes) -> None:
    """Raises BookieFailed if the bookie does not offer TLS."""
    try:
        statuses = [each.value for each in fields(answer, "an answer") if each.number == _STATUS]
    except CorruptStorage as error:
        raise BookieFailed(f"its answer to START_TLS cannot be read ({error})") from error
    if statuses != [_OK]:
        raise BookieFailed(
            "it does not offer TLS: configure tlsProviderFactoryClass and its certificate in "
            "bookkeeper.conf, or set bookkeeperTLSClientAuthentication=false in broker.conf"
        )
