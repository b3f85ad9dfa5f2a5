"""The visitor that a request comes from, and the errors of its client as answers."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from starlette.requests import Request

from pybroker.admin.http.authenticated import IDENTITY, SHOWN

if TYPE_CHECKING:
    from pybroker.gateway.visitor import Visitor


def address_of(request: Request) -> tuple[str, int]:
    client = request.client
    return ("unknown", 0) if client is None else (client.host, client.port)


def visitor_of(request: Request) -> "Visitor":
    from pybroker.gateway.visitor import Visitor

    shown = request.scope.get(SHOWN)
    return Visitor(address_of(request), request.scope.get(IDENTITY), shown[0] if shown else None)


def answered_by_client() -> AbstractContextManager[None]:
    """Within it, the errors of a visitor's client become errors of the broker."""
    from pybroker.gateway.answers import answerable

    return answerable()
