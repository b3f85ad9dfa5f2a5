"""Requests refused before a route sees them."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pybroker.admin.http import guard
from pybroker.admin.http.guard import MAX_BODY_BYTES, Guard

LOCAL_ONLY = ["localhost", "broker.example"]


async def echo(request: Request) -> Response:
    return PlainTextResponse(f"{request.url.path} {len(await request.body())}")


def request(
    method: str = "GET",
    path: str = "/x",
    host_names: list[str] | None = LOCAL_ONLY,
    **options: object,
) -> httpx.Response:
    routes = [Route("/{path:path}", echo, methods=["GET", "POST"])]
    transport = httpx.ASGITransport(Guard(Starlette(routes=routes), host_names))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)  # type: ignore[arg-type]

    return asyncio.run(send())


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "broker.example"])
def test_a_host_that_is_this_machine_is_served(host: str) -> None:
    assert request(headers={"Host": host}).status_code == 200


def test_a_host_name_that_another_site_binds_to_this_machine_is_refused() -> None:
    answer = request(headers={"Host": "evil.example:8080"})
    assert (answer.status_code, list(answer.json())) == (403, ["reason"])


def test_every_host_name_is_served_where_other_machines_come_in() -> None:
    answer = request(headers={"Host": "pulsar:8080"}, host_names=None)
    assert answer.status_code == 200


def test_a_post_from_another_sites_page_is_refused() -> None:
    headers = {"Origin": "http://evil.example"}
    assert request("POST", headers=headers).status_code == 403
    assert request("GET", headers=headers).status_code == 200


def test_a_compressed_body_is_refused() -> None:
    """It would be published as it is."""
    for coding, status in (("gzip", 415), ("Deflate, gzip", 415), ("identity", 200)):
        answer = request("POST", headers={"Content-Encoding": coding}, content=b"x")
        assert answer.status_code == status


def test_a_post_from_our_own_page_is_served() -> None:
    assert request("POST", headers={"Origin": "http://localhost"}).status_code == 200


@pytest.mark.parametrize("host_names", [LOCAL_ONLY, None])
def test_a_host_that_is_no_name_is_refused(host_names: list[str] | None) -> None:
    assert request(headers={"Host": "["}, host_names=host_names).status_code == 403


def test_an_origin_that_is_no_url_is_refused() -> None:
    assert request("POST", headers={"Origin": "http://["}).status_code == 403


def test_a_body_that_says_it_is_too_large_is_refused() -> None:
    assert request("POST", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413


def test_a_body_that_turns_out_too_large_is_refused() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * (MAX_BODY_BYTES // 2)

    assert request("POST", content=chunks()).status_code == 413


def test_a_body_that_comes_a_byte_at_a_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.01)

    async def drops() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES):
            await asyncio.sleep(0)
            yield b"x"

    assert request("POST", content=drops()).status_code == 408


def test_two_lengths_of_one_body_are_refused() -> None:
    headers = {"Content-Length": "3", "Transfer-Encoding": "chunked"}
    assert request("POST", content=b"abc", headers=headers).status_code == 400


def test_routes_see_the_path_as_it_was_sent() -> None:
    assert request(path="/a%2Fb/c").text == "/a%2Fb/c 0"


def test_a_thousand_headers_are_refused() -> None:
    headers = {f"X-{number}": "y" for number in range(1_000)}
    assert request(headers=headers).status_code == 431
