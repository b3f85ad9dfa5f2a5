"""Misbehaving clients of the HTTP port."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pybroker.admin.http import patience
from pybroker.admin.http.server import HttpServer
from pybroker.admin.http.unsaid_bodies import UnsaidBodies


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


def exchange(sent: bytes) -> bytes:
    """The server's whole output for `sent`, until it closes."""

    async def run() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        route = Route("/", hello, methods=["GET", "DELETE"])
        other = Route("/length", length, methods=["POST"])
        server = HttpServer(UnsaidBodies(Starlette(routes=[route, other])))
        await server.start(listener)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        said = await reader.read()
        writer.close()
        await server.stop()
        return said

    return asyncio.run(run())


def test_a_request_is_answered() -> None:
    said = exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200")
    assert said.endswith(b"hello")


def test_who_asks_for_an_upgrade_is_answered_without_advice_to_install_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upgrade = b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    close = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + upgrade + close)
    assert said.startswith(b"HTTP/1.1 200")
    assert caplog.messages == []


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_client_that_sends_no_request_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.05)
    assert exchange(sent) == b""


def test_what_is_not_http_is_refused() -> None:
    assert exchange(b"\x00\x00\x00\x04nope\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_body_that_a_delete_does_not_announce_is_no_request() -> None:
    head = b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = exchange(head + b'{"force": true}\r\n\r\n')
    assert said.startswith(b"HTTP/1.1 200")
    assert said.count(b"HTTP/1.1") == 1
    assert b"connection: close" in said


def test_what_comes_behind_a_request_with_two_lengths_is_no_request() -> None:
    head = b"POST /length HTTP/1.1\r\nHost: localhost\r\n"
    body = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    said = exchange(head + body + HEAD)
    assert said.count(b"HTTP/1.1") == 1
    assert b"connection: close" in said


def test_a_delete_that_announces_its_body_keeps_the_connection() -> None:
    delete = b"DELETE / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    said = exchange(delete + b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200") == 2


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_half_a_second_request_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.05)
    assert exchange(HEAD + HEAD[:20]).count(b"HTTP/1.1 200") == 1


def with_server(scenario: Callable[[int], Coroutine[Any, Any, None]], answer: bytes) -> None:
    """Runs `scenario` with the port of a server that sends `answer`."""

    async def respond(_: Request) -> Response:
        return Response(answer)

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(Starlette(routes=[Route("/", respond)]))
        await server.start(listener)
        await scenario(listener.getsockname()[1])
        await server.stop()

    asyncio.run(run())


def test_a_connection_too_many_takes_the_place_of_the_one_that_waits_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "MAX_CONNECTIONS", 3)

    async def scenario(port: int) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in opened:
            writer.write(HEAD)
            await reader.readuntil(b"hello")
            writer.write(HEAD[:20])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        await reader.readuntil(b"hello")
        assert await opened[0][0].read() == b""
        opened[1][1].write(HEAD[20:])
        await opened[1][0].readuntil(b"hello")
        for _, each in (*opened, (reader, writer)):
            each.close()

    with_server(scenario, b"hello")


def test_who_does_not_take_the_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TAKE_S", 0.05)

    lost = asyncio.Event()
    connection_lost = patience.ImpatientProtocol.connection_lost

    def tell(protocol: Any, error: Exception | None) -> None:
        connection_lost(protocol, error)
        lost.set()

    monkeypatch.setattr(patience.ImpatientProtocol, "connection_lost", tell)

    async def scenario(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            loop = asyncio.get_running_loop()
            deaf.setblocking(False)
            await loop.sock_sendall(deaf, HEAD)
            await lost.wait()
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while data := await loop.sock_recv(deaf, 1024 * 1024):
                    received += len(data)
            assert received < 50_000_000

    with_server(scenario, bytes(50_000_000))


async def length(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


def test_a_body_of_very_many_chunks_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed, parse = [], patience.H11Protocol.data_received

    def count(protocol: Any, data: bytes) -> None:
        parsed.append(data.count(b"\n"))
        parse(protocol, data)

    monkeypatch.setattr(patience.H11Protocol, "data_received", count)
    head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"
    last = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    said = exchange(head + b"\r\n" + chunks + last)
    assert (said.count(b"HTTP/1.1 200"), b"\r\n\r\n30000HTTP" in said) == (2, True)
    assert said.endswith(b"hello")
    assert max(parsed) <= max(patience.MOST_LINES, patience.PIECE_BYTES)
    assert sum(parsed) == (head + b"\r\n" + chunks + last).count(b"\n")
