"""pybroker extensions: connections and recent log lines. For superusers, like all of /brokers."""

from itertools import islice
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import asked, number, route
from pybroker.admin.services import AdminServices, Connected
from pybroker.admin.shapes.common import TEXTS
from pybroker.base.json_schema import COUNT, TEXT, WHOLE, fields, list_of, or_null, record

_BROKERS: Final = "/admin/v2/brokers"
_MOST: Final = 1000
_CONNECTION: Final = record(
    "Connection",
    {
        **fields(COUNT, "number protocolVersion producers consumers"),
        **fields(TEXT, "address clientVersion"),
        "role": or_null(TEXT),
    },
)
_CONNECTIONS: Final = record(
    "Connections", {"connections": list_of(_CONNECTION, most=None), "total": COUNT}
)
_LINES: Final = record("LogLines", {"lines": TEXTS})


class InspectionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[DescribedRoute]:
        some = {"limit": WHOLE, "search": TEXT}
        return [
            route("GET", f"{_BROKERS}/connections", self.connections, _CONNECTIONS, query=some),
            route(
                "GET", f"{_BROKERS}/log", self.log, _LINES, query={"lines": WHOLE}, refuses=(412,)
            ),
        ]

    async def connections(self, request: Request) -> dict[str, Any]:
        """Clients connected to the binary ports, oldest first: up to ?limit (100) of those whose
        address, role or client version contains ?search.
        """
        limit = max(0, min(number(request, "limit", default=100), _MOST))
        words = (asked(request, "search") or "").lower()
        fitting = (each for each in self._services.connected() if words in _text_of(each))
        return {
            "connections": [_shown(each) for each in islice(fitting, limit)],
            "total": self._services.connections(),
        }

    async def log(self, request: Request) -> dict[str, list[str]]:
        """The last ?lines (200) lines of the log, unchanged, newest last."""
        if self._services.logs is None:
            raise HTTPException(
                412, "This broker is embedded in another process: look at that process's log"
            )
        count = max(1, min(number(request, "lines", default=200), _MOST))
        return {"lines": self._services.logs.recent()[-count:]}


def _shown(connected: Connected) -> dict[str, Any]:
    return {
        "number": connected.number,
        "address": connected.address,
        "role": connected.role,
        "clientVersion": connected.client_version,
        "protocolVersion": connected.protocol_version,
        "producers": connected.producers,
        "consumers": connected.consumers,
    }


def _text_of(connected: Connected) -> str:
    return f"{connected.address} {connected.role or ''} {connected.client_version}".lower()
