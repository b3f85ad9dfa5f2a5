"""Clients of the HTTP port that do not behave."""

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pybroker.admin import http_server
from pybroker.admin.http_server import HttpServer
from pybroker.admin.unsaid_bodies import UnsaidBodies


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


def exchange(sent: bytes) -> bytes:
    """All that the server says to `sent`, until it hangs up."""

    async def run() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        route = Route("/", hello, methods=["GET", "DELETE"])
        server = HttpServer(UnsaidBodies(Starlette(routes=[route])))
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


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: loc"])
def test_whoever_sends_no_request_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_server, "_HEADER_TIMEOUT_S", 0.05)
    assert exchange(sent) == b""


def test_what_is_not_http_is_refused() -> None:
    assert exchange(b"\x00\x00\x00\x04nope\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_body_that_a_delete_does_not_announce_is_no_request() -> None:
    head = b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = exchange(head + b'{"force": true}\r\n\r\n')
    assert said.startswith(b"HTTP/1.1 200")
    assert said.count(b"HTTP/1.1") == 1
    assert b"connection: close" in said


def test_a_delete_that_announces_its_body_keeps_the_connection() -> None:
    delete = b"DELETE / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    said = exchange(delete + b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200") == 2
