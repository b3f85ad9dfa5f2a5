"""What a browser sends is read in proportion to its size, and a form only from who may send one."""

import asyncio
import socket
from urllib.parse import urlsplit

import pytest
from browsing import Browser
from credentials import token
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.console.forms import cookie_of, read_form
from pybroker.testing import RunningBroker

CHARSET = "application/x-www-form-urlencoded"


def asking(cookies: list[bytes] | None = None, body: bytes = b"") -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"cookie", each) for each in cookies or ()]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def answer_without_the_body(broker: RunningBroker, path: str, size: int, cookie: str = "") -> bytes:
    """The first line of the answer to a form whose body never comes."""
    parts = urlsplit(broker.admin_url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n"
        head += f"Content-Type: {CHARSET}\r\nContent-Length: {size}\r\n\r\n"
        connection.sendall(head.encode())
        return connection.recv(4096).split(b"\r\n")[0]


def test_a_cookie_is_read_without_the_standard_library(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quadratic(_: str) -> str:
        raise AssertionError("this takes seconds for a long cookie")

    monkeypatch.setattr("http.cookies._unquote", quadratic)
    browser = Browser(broker.admin_url)
    odd = 'a="' + '\\"' * 30_000 + '"'
    assert browser.http.get("/console/login", headers={"cookie": odd}).status_code == 200
    assert browser.log_in(token("admin")).status_code == 303


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        ([], ""),
        ([b"id=1"], "1"),
        ([b"x=2; id = 1 ;y=3"], "1"),
        ([b"idx=1; xid=2"], ""),
        ([b"id=1", b"id=2"], "2"),
        ([b"id=a=b"], "a=b"),
        ([b"id"], ""),
    ],
)
def test_a_cookie_has_the_value_that_was_sent(cookies: list[bytes], found: str) -> None:
    assert cookie_of(asking(cookies), "id") == found


@pytest.mark.parametrize("path", ["/console/assets/x", "/console/topics/go", "/console/nowhere"])
def test_without_a_login_a_form_is_answered_before_its_body_is_read(
    broker: RunningBroker, path: str
) -> None:
    said = answer_without_the_body(broker, path, 1_000_000)
    assert said.split()[1] in (b"303", b"404")


def test_the_form_of_the_login_has_at_most_64_kib(broker: RunningBroker) -> None:
    said = answer_without_the_body(broker, "/console/login", 65_537)
    assert said.split()[1] == b"413"


def fields_of(body: bytes, most_bytes: int = 1_000_000) -> dict[str, object]:
    async def read() -> dict[str, object]:
        form = await read_form(asking(body=body), most_bytes)
        return dict(await form.fields())

    return asyncio.run(read())


@pytest.mark.parametrize("before", range(32 * 1024 - 4, 32 * 1024 + 1))
def test_a_long_field_is_decoded_in_pieces_that_split_no_escape(before: int) -> None:
    value = "x" * before + "%C3%A9" * 9 + "+%" + "y" * 40_000 + "%4"
    found = fields_of(b"a=" + value.encode())
    assert found == {"a": "x" * before + "é" * 9 + " %" + "y" * 40_000 + "%4"}


def test_a_form_has_the_fields_that_were_sent() -> None:
    body = b"a=1&b=x+y%26&&c&a=2&%66orm_token=t&d=%ff"
    found = fields_of(body)
    assert found == {"a": "2", "b": "x y&", "c": "", "form_token": "t", "d": "\ufffd"}
    assert asyncio.run(read_form(asking(body=b"a=1&form_token=t&b=2"), 100)).token == "t"


@pytest.mark.parametrize(
    ("body", "status"), [(b"a=\xff", 400), (b"a=1&" * 200, 400), (b"a" * 101, 413)]
)
def test_a_form_that_cannot_be_read_is_refused(body: bytes, status: int) -> None:
    with pytest.raises(HTTPException) as refused:
        fields_of(body, most_bytes=900 if status == 400 else 100)
    assert refused.value.status_code == status
