"""Transactional ids: their holders, epochs, and last use."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.http.permitted import identity_of, target_of
from pybroker.admin.operation import DescribedRoute
from pybroker.admin.routing import asked, route
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes import transactions as shapes
from pybroker.base.json_schema import TEXT
from pybroker.base.runtime import Pace
from pybroker.security.authorization import Need
from pybroker.transaction.coordinator.sessions.transactional_ids import IdRecord, TransactionalId

_PATH: Final = "/admin/v3/transactions/transactionalIds"
_DESCRIBED_A_TURN: Final = 200


class TransactionalIdRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._authorizer = services.authorizer
        self._coordinators = services.coordinators

    def routes(self) -> list[DescribedRoute]:
        owner = {"owner": TEXT}
        return [
            route("GET", _PATH, self.all, shapes.TRANSACTIONAL_IDS, query=owner),
            route(
                "GET",
                f"{_PATH}/{{id:segment}}",
                self.one,
                shapes.TRANSACTIONAL_ID,
                query=owner,
                refuses=(404,),
            ),
        ]

    async def all(self, request: Request) -> list[dict[str, Any]]:
        """Transactional ids of ?owner=; by default all that the caller may see."""
        owner = asked(request, "owner")
        if owner is None and not self._sees_all(request):
            owner = identity_of(request).acting
        elif owner is not None:
            self._check_owner(request, owner)
        found, pace = [], Pace(_DESCRIBED_A_TURN)
        for transactional_id, record in self._coordinators.ids:
            await pace.step()
            if owner is None or transactional_id.owner == owner:
                found.append(self._described(transactional_id, record))
        return found

    async def one(self, request: Request) -> dict[str, Any]:
        """A transactional id of ?owner=, by default one of the caller's."""
        owner = asked(request, "owner")
        if owner is not None:
            self._check_owner(request, owner)
        elif IDENTITY in request.scope:
            owner = identity_of(request).acting
        wanted = TransactionalId(owner, request.path_params["id"])
        record = self._coordinators.ids.get(wanted)
        if record is None:
            raise HTTPException(404, f"There is no transactional id {wanted.name!r} of {owner}")
        return self._described(wanted, record)

    def _sees_all(self, request: Request) -> bool:
        authorizer = self._authorizer
        if authorizer is None:
            return True
        return authorizer.may(identity_of(request), Need.SUPER_USER, target_of(request))

    def _check_owner(self, request: Request, owner: str) -> None:
        """Raises AuthorizationError unless the caller is the owner or a superuser."""
        authorizer = self._authorizer
        if authorizer is not None and owner != identity_of(request).acting:
            doing = "see other principals' transactional ids"
            authorizer.require(identity_of(request), Need.SUPER_USER, target_of(request), doing)

    def _described(self, transactional_id: TransactionalId, record: IdRecord) -> dict[str, Any]:
        live = (
            transaction
            for coordinator in self._coordinators.served()
            for transaction in coordinator.bound_to(transactional_id)
        )
        return {
            "transactionalId": transactional_id.name,
            "owner": transactional_id.owner,
            "epoch": record.epoch,
            "lastUseTimestamp": record.last_use_ms,
            "openTransactions": [str(transaction.txn_id) for transaction in live],
        }
