"""The clients connected to the binary ports."""

from typing import Final

from starlette.responses import Response

from pybroker.console.page import Page, View
from pybroker.console.visit import Visit

_PATH: Final = "/console/connections"
_CONNECTIONS: Final = "/admin/v2/brokers/connections"
_MOST: Final = 500


async def connections(visit: Visit) -> Response:
    search = visit.query("search")
    found = await visit.api.get(_CONNECTIONS, {"limit": _MOST, "search": search})
    return await visit.render("connections.html", search=search, **found)


PAGE: Final = Page("Connections", _PATH, (View("GET", _PATH, connections),), ("GET", _CONNECTIONS))
