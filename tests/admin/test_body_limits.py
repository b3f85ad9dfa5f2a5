"""Each route accepts a body up to the size that it declares, and not a byte more."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from described import routes
from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin import routing
from pybroker.admin.http.guard import MAX_BODY_BYTES
from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import MUCH_BYTES, USUAL_BYTES, DescribedRoute
from pybroker.base.json_schema import TEXT
from pybroker.base.names import MAX_PROPERTIES_CHARS

P = "/admin/v2/persistent"
TAKING = [route for route in routes() if route.operation.body is not None]
MUCH = {
    "POST /admin/v2/namespaces/grantPermissionsOnTopics",
    "POST /admin/v2/namespaces/revokePermissionsOnTopics",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}",
}
OF_RECEIVING = {USUAL_BYTES, 512 * 1024}  # the latter: ids of messages
MUCH_BELOW = ("/properties", "/partitions", "/schema", "/compatibility", "/version", "/{topic}")
MUCH_OF_SUBSCRIPTIONS = ("/resetcursor", "/expireMessages", "/{subscription}")


def limit(route: DescribedRoute) -> int:
    assert route.operation.body is not None
    return route.operation.body.most_bytes


def test_routes_take_little_unless_they_say_more() -> None:
    for route in TAKING:
        path, most = plain_path(route.path), limit(route)
        if path.startswith("/topics/") and "/subscriptions/" in path:
            assert most in OF_RECEIVING, path
        elif path.startswith("/topics/"):
            assert most == MAX_BODY_BYTES
        elif most != USUAL_BYTES:
            ends = path.endswith((*MUCH_BELOW, *MUCH_OF_SUBSCRIPTIONS))
            assert most == MUCH_BYTES, path
            assert ends or f"{route.method} {path}" in MUCH, path


def test_properties_fit_however_they_are_written() -> None:
    assert MAX_PROPERTIES_CHARS * len("\\u00fc") < MUCH_BYTES


def test_all_that_a_topics_properties_may_be_is_taken(admin: httpx.Client, topic: str) -> None:
    much = '{"a": "%s"}' % ("\\u0061" * (MAX_PROPERTIES_CHARS - 1))
    answer = admin.put(f"{P}/{topic}/properties", content=much)
    assert answer.status_code == 204, answer.text


@pytest.mark.parametrize("said", [True, False], ids=["said", "in chunks"])
def test_a_body_that_is_larger_than_the_route_takes_is_refused(
    admin: httpx.Client, topic: str, said: bool
) -> None:
    def chunks(size: int) -> Iterator[bytes]:
        for _ in range(0, size, 1024):
            yield b" " * 1024

    for path, method, most in (
        (f"{P}/{topic}/maxMessageSize", "POST", USUAL_BYTES),
        (f"{P}/{topic}/properties", "PUT", MUCH_BYTES),
        (f"/topics/persistent/{topic}", "POST", MAX_BODY_BYTES),
    ):
        body = b" " * (most + 1024) if said else chunks(most + 1024)
        answer = admin.request(method, path, content=body)
        assert answer.status_code == 413, path
        assert admin.request(method, path, content=b"1" + b" " * (most - 1)).status_code != 413


def test_the_description_says_how_much_a_route_takes(admin: httpx.Client) -> None:
    paths = admin.get("/admin/openapi.json").json()["paths"]
    for route in TAKING:
        operations = [
            item.get(route.method.lower())
            for path, item in paths.items()
            if path.count("/") == plain_path(route.path).count("/")
        ]
        said = f"At most {limit(route)} bytes"
        bodies = [each.get("requestBody", {}) for each in operations if each]
        assert any(body.get("description") == said for body in bodies), route.path


def test_who_goes_in_the_middle_of_a_body_is_no_error_of_the_broker() -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def handler(_: Request) -> None:
        raise AssertionError("there is no body")

    made = routing.route("POST", "/odd", handler, body=TEXT)
    with pytest.raises(HTTPException, match="before the body was complete"):
        asyncio.run(made.endpoint(Request({"type": "http", "headers": []}, gone)))
