"""Routes whose answer combines those of all brokers, and routes of one transaction coordinator.

Only superusers and the owner of a transaction may see it. Only the coordinator's broker knows the
owner, so the client is redirected there and authenticates there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pybroker.admin.operation import Endpoint
from pybroker.admin.over_brokers.asking import Asking, reply_of
from pybroker.admin.replies import check
from pybroker.admin.services import AdminServices
from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.base.names import COORDINATOR_ASSIGN
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import BrokerAddress, NotServedHere

_TRANSACTIONS: Final = "/admin/v3/transactions"
_ONE: Final = "coordinatorId"  # query parameter
_NOT_FOUND: Final = 404

# Answers a request; receives the route's own handler.
Whole = Callable[[Request, Endpoint], Awaitable[Any]]


class EverybodyRoutes:
    """`all_of_them` is also for other modules: it returns what each broker answers."""

    def __init__(self, services: AdminServices, asking: Asking) -> None:
        self._services = services
        self._ownership = services.topics.ownership
        self._coordinators = services.coordinators
        self._asking = asking

    def by_route(self) -> dict[tuple[str, str], Whole]:
        of_one = (
            ("GET", "coordinatorInternalStats/{most}"),
            ("GET", "transactionMetadata/{most}/{least}"),
            ("GET", "timeline/{most}/{least}"),
            ("POST", "abortTransaction/{most}/{least}"),
        )
        return {
            ("GET", "/admin/v2/{domain}/{tenant}/{namespace}"): self._lists,
            ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics"): self._lists,
            ("GET", "/admin/v3/kafka/groups"): self._groups,
            ("GET", "/admin/v3/kafka/endOffsets/{name}"): self._partitions,
            ("GET", "/admin/v3/kafka/shareOffsets/{group}/{name}"): self._partitions,
            ("DELETE", "/admin/v3/kafka/offsets/{name}"): self._lists,
            ("GET", f"{_TRANSACTIONS}/coordinators"): self._list_coordinators,
            ("GET", f"{_TRANSACTIONS}/coordinatorStats"): self._of_coordinators,
            ("GET", f"{_TRANSACTIONS}/slowTransactions/{{timeout_ms}}"): self._of_coordinators,
            **{
                (method, f"{_TRANSACTIONS}/{path}"): self._of_coordinator for method, path in of_one
            },
        }

    async def _lists(self, request: Request, own: Endpoint) -> Any:
        """Asks all brokers: only those that have loaded a non-persistent topic know it."""
        return sorted({name for reply in await self.all_of_them(request, own) for name in reply})

    async def _groups(self, request: Request, own: Endpoint) -> list[dict[str, Any]]:
        """Each broker knows the groups of Kafka's that it coordinates."""
        found = [group for reply in await self.all_of_them(request, own) for group in reply]
        return sorted(found, key=lambda group: str(group["group"]))

    async def _partitions(self, request: Request, own: Endpoint) -> list[dict[str, Any]]:
        found = [each for reply in await self.all_of_them(request, own) for each in reply]
        return sorted(found, key=lambda each: int(each["partition"]))

    async def _of_coordinators(self, request: Request, own: Endpoint) -> Any:
        if (one := request.query_params.get(_ONE, "")).isdecimal():
            self._check_here(int(one))
        if _ONE in request.query_params:
            return await own(request)
        joined: dict[str, Any] = {}
        for each in await self.all_of_them(request, own):
            joined |= each
        return joined

    async def _of_coordinator(self, request: Request, own: Endpoint) -> Response:
        self._check_here(request.path_params["most"])
        return await own(request)

    def _check_here(self, coordinator_id: int) -> None:
        """Raises NotServedHere if another broker serves the coordinator."""
        there = coordinator_id < self._coordinators.count
        if there and self._coordinators.remote(coordinator_id) is not None:
            raise NotServedHere(COORDINATOR_ASSIGN.partition_at(coordinator_id))

    async def _list_coordinators(self, request: Request, own: Endpoint) -> list[dict[str, Any]]:
        return [
            {"id": each, "brokerServiceUrl": await self._url_of(each)}
            for each in range(self._coordinators.count)
        ]

    async def _url_of(self, coordinator_id: int) -> str:
        try:
            owner = await self._ownership.owner_of(COORDINATOR_ASSIGN.partition_at(coordinator_id))
        except ServiceNotReady:
            return ""  # the coordinator is moving to another broker
        return self._services.service_url if owner is None else owner.broker_url

    async def all_of_them(self, request: Request, own: Endpoint) -> list[Any]:
        """The answers of the brokers, this one first. Omits a broker that has left the cluster
        meanwhile, and a broker of Apache Pulsar that refuses or does not answer. Raises
        ServiceNotReady if a broker of pybroker does not answer, HTTPException if it refuses.
        """
        brokers = self._asking.brokers
        path, query = request.scope["raw_path"].decode("ascii"), request.url.query
        target = f"{path}?{query}" if query else path

        async def ask(broker_id: str, broker: BrokerAddress) -> Reply | None:
            is_foreign = brokers.is_foreign(broker_id)
            try:
                reply = await brokers.ask(broker, request.method, target)
                return None if is_foreign and not reply.is_done else reply
            except PulsarError as error:
                if is_foreign or broker_id not in brokers.others():
                    return None
                raise ServiceNotReady(
                    f"broker {broker_id} does not answer, so the result would be incomplete; try "
                    f"again: {error}"
                ) from error

        first = check(reply_of(await own(request)))
        asked = [ask(*each) for each in brokers.others().items()]
        found = [reply for reply in await asyncio.gather(*asked) if reply is not None]
        # A broker that does not yet know a new namespace has none of its topics.
        there = [check(reply) for reply in found if reply.status != _NOT_FOUND]
        return [first.json(), *(reply.json() for reply in there)]
