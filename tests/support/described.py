"""Checks that answers of the admin API match their description; for clients in tests."""

from functools import cache
from unittest.mock import MagicMock

import httpx

from pybroker.admin.application import AREAS
from pybroker.admin.operation import JSON, Answer, DescribedRoute
from pybroker.admin.shapes.common import REFUSAL
from pybroker.base.json_schema import misfit


@cache
def routes() -> list[DescribedRoute]:
    return [route for area in AREAS for route in area(MagicMock()).routes()]


def route_of(method: str, path: str) -> DescribedRoute | None:
    """The first matching route, as the broker finds it; `path` as it is sent."""
    fitting = (route for route in routes() if route.path_regex.match(path))
    wanted = "GET" if method == "HEAD" else method
    return next((route for route in fitting if route.method == wanted), None)


def check_described(response: httpx.Response) -> None:
    """An event hook for httpx."""
    request = response.request
    path = request.url.raw_path.decode().partition("?")[0]
    route = route_of(request.method, path)
    if route is None or request.method == "HEAD":
        return
    response.read()
    why = undocumented(route, response)
    assert why is None, f"{request.method} {request.url}: {why}"


def undocumented(route: DescribedRoute, response: httpx.Response) -> str | None:
    status = response.status_code
    found = [answer for answer in route.operation.answers if answer.status == status]
    if not found and status in route.operation.refusals(route.param_convertors):
        found = [Answer(REFUSAL, status)]
    if not found:
        return f"{status} is not in its description: {response.text[:200]}"
    return _misfit_of(found[0], response)


def _misfit_of(answer: Answer, response: httpx.Response) -> str | None:
    if answer.schema is None:
        return "it should have no body" if response.content else None
    media = response.headers["content-type"].partition(";")[0]
    if media != answer.media.partition(";")[0]:
        return f"{media} is not {answer.media}"
    return misfit(response.json(), answer.schema) if media == JSON else None
