"""The description of all routes, for tools that read OpenAPI."""

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pybroker.admin.operation import JSON, DescribedRoute
from pybroker.admin.routing import route
from pybroker.admin.services import AdminServices
from pybroker.base.json_schema import OBJECT, record

_PIECE_BYTES: Final = 32 * 1024
_DOCUMENT: Final = record(
    "", {"openapi": {"type": "string"}, "info": OBJECT, "paths": OBJECT, "components": OBJECT}
)


class DescriptionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._document: bytes | None = None

    def routes(self) -> list[DescribedRoute]:
        return [route("GET", "/admin/openapi.json", self.description, _DOCUMENT)]

    async def description(self, request: Request) -> Response:
        """This description."""
        if self._document is None:
            # Imported here, so that a broker starts without it.
            from pybroker.admin.description import described

            served: Any = request.app.routes
            self._document = await described(served)
        return StreamingResponse(_in_pieces(self._document), media_type=JSON)


async def _in_pieces(document: bytes) -> AsyncIterator[bytes]:
    """Sends the description as fast as the client reads: it is long, and clients may be slow."""
    for start in range(0, len(document), _PIECE_BYTES):
        yield document[start : start + _PIECE_BYTES]
