"""The bookies: those of the cluster. A broker with its own storage has none.

No ledger is placed by racks, so no bookie has one.
"""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import Body, DescribedRoute
from pybroker.admin.routing import route
from pybroker.admin.services import AdminServices
from pybroker.base.json_schema import OBJECT, TEXT, list_of, map_of, record

_BASE: Final = "/admin/v2/bookies"
_RACK: Final = _BASE + "/racks-info/{bookie}"


class BookieRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._bookies = services.bookies

    def routes(self) -> list[DescribedRoute]:
        found = record("BookiesClusterInfo", {"bookies": list_of(record("", {"bookieId": TEXT}))})
        racks = map_of(map_of(OBJECT, most=None), most=None)
        return [
            route("GET", f"{_BASE}/all", self.all, found),
            route("GET", f"{_BASE}/racks-info", self.racks, racks),
            route("GET", _RACK, self.rack, OBJECT),
            route("POST", _RACK, self.set_rack, body=Body(OBJECT), refuses=(501,)),
            route("DELETE", _RACK, self.rack),
        ]

    async def all(self, _: Request) -> dict[str, Any]:
        """The bookies that accept writes; none for a broker with its own storage."""
        return {"bookies": [{"bookieId": bookie} for bookie in self._bookies()]}

    async def racks(self, _: Request) -> dict[str, Any]:
        """Empty: ledgers are not placed by racks."""
        return {}

    async def rack(self, request: Request) -> Any:
        """Not found: no bookie has a rack."""
        raise HTTPException(404, f"Bookie address not found: {request.path_params['bookie']}")

    async def set_rack(self, request: Request) -> None:
        """Refused: ledgers are not placed by racks."""
        raise HTTPException(
            501, "Ledgers are not placed by racks: no bookie of this cluster can have one"
        )
