"""START_TLS with bookies that agree, refuse, send garbage, or have another identity."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from certificates import Authority

from managed_ledger.storage.bookkeeper.connection import BookieConnection
from managed_ledger.storage.bookkeeper.errors import BookieFailed
from managed_ledger.storage.bookkeeper.protocol import Code, Operation, Response
from managed_ledger.storage.bookkeeper.start_tls import connect_with_tls
from managed_ledger.storage.tls_files import ClientTls, TlsFiles

# A Response of protocol version 3 to START_TLS: header (version, operation, txnId) and status.
AGREED = bytes.fromhex("0000000a 0a06 080310091800 1000".replace(" ", ""))
REFUSED = bytes.fromhex("0000000b 0a06 080310091800 109403".replace(" ", ""))  # EBADREQ
ASKED = bytes.fromhex("0000000b 0a06 080310091800 d20600".replace(" ", ""))

Bookie = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path)
    authority.issue("bookie")
    authority.issue("broker")
    return authority


def tls(authority: Authority, **more: object) -> ClientTls:
    files = {"trusted": str(authority.path), "checks_host_name": True} | more
    return ClientTls(TlsFiles(**files))  # type: ignore[arg-type]


def of_bookie(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.directory / "bookie.crt", authority.directory / "bookie.key")
    return context


def answering(answer: bytes, context: ssl.SSLContext | None = None) -> Bookie:
    """Serve one connection: answer START_TLS, then answer a read with "no entry"."""

    async def bookie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(ASKED)) == ASKED
        writer.write(answer)
        await writer.drain()
        if context is None:
            writer.close()
            return
        try:
            await writer.start_tls(context)
            request = await reader.readexactly(4 + 20)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return  # the client has hung up
        first = Operation.READ << 16 | 2 << 24
        head = first.to_bytes(4, "big") + Code.NO_ENTRY.to_bytes(4, "big")
        writer.write((24).to_bytes(4, "big") + head + request[8:])
        await writer.drain()

    return bookie


async def read_through(bookie: Bookie, storage_tls: ClientTls) -> Response:
    server = await asyncio.start_server(bookie, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    connection = BookieConnection(f"localhost:{port}", 5.0, 1 << 20, lambda _: None)
    answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def heard(response: Response | None, why: BookieFailed | None) -> None:
        if response is None:
            answered.set_exception(why or BookieFailed())
        else:
            answered.set_result(response)

    try:
        async with asyncio.timeout(10):
            connection.read(7, 3, heard)
            await connect_with_tls(connection, "localhost", port, storage_tls)
            return await answered
    finally:
        connection.break_off("the test is over")
        if answered.done():
            answered.exception()
        server.close()


def test_a_request_is_answered_over_tls(authority: Authority) -> None:
    bookie = answering(AGREED, of_bookie(authority))
    response = asyncio.run(read_through(bookie, tls(authority)))
    assert response[:4] == (Operation.READ, Code.NO_ENTRY, 7, 3)


def test_a_bookie_without_tls_is_an_error_that_says_what_to_configure(authority: Authority) -> None:
    with pytest.raises(BookieFailed, match="does not offer TLS: configure tlsProviderFactoryClass"):
        asyncio.run(read_through(answering(REFUSED), tls(authority)))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed the connection instead of starting TLS"),
        (AGREED[:-1], "closed the connection instead of starting TLS"),
        (bytes.fromhex("7fffffff"), "2,147,483,647 bytes: it is not a bookie"),
        (bytes.fromhex("00000003ffffff"), "cannot be read"),
        (bytes.fromhex("00000000"), "does not offer TLS"),
    ],
)
def test_whatever_else_answers_is_not_spoken_to(
    authority: Authority, answer: bytes, why: str
) -> None:
    with pytest.raises(BookieFailed, match=why):
        asyncio.run(read_through(answering(answer), tls(authority)))


def test_a_bookie_with_somebody_elses_certificate_is_refused(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Authority(tmp_path_factory.mktemp("other"))
    other.issue("bookie")
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(read_through(answering(AGREED, of_bookie(other)), tls(authority)))


def test_a_bookie_with_another_host_name_is_refused_if_names_are_checked(
    authority: Authority,
) -> None:
    async def by_address(checks: bool) -> None:
        server = await asyncio.start_server(answering(AGREED, of_bookie(authority)), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = BookieConnection("a", 5.0, 1 << 20, lambda _: None)
        try:  # the certificate has the address only as a name
            storage_tls = tls(authority, checks_host_name=checks)
            await connect_with_tls(connection, "127.0.0.1", port, storage_tls)
        finally:
            connection.break_off("the test is over")
            server.close()

    asyncio.run(by_address(False))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(by_address(True))


def test_renewed_certificates_are_used_and_broken_ones_are_not(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = (str(authority.directory / f"broker.{end}") for end in ("crt", "key"))

    async def renew() -> None:
        now_s = 0.0
        asyncio.get_running_loop().time = lambda: now_s  # type: ignore[method-assign]
        files = TlsFiles(str(authority.path), certificate, key)
        storage_tls = ClientTls(files, refresh_s=300)
        first = storage_tls.context()
        authority.issue("broker")
        now_s = 299.0
        assert storage_tls.context() is first  # not checked yet
        now_s = 300.0
        second = storage_tls.context()
        assert second is not first
        authority.path.with_name("broker.crt").write_text("half a file")
        now_s = 600.0
        assert storage_tls.context() is second
        assert "the previous certificates stay in use" in caplog.text
        authority.issue("broker")
        now_s = 900.0
        assert storage_tls.context() is not second

    asyncio.run(renew())
