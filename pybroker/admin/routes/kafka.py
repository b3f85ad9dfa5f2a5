"""Groups of Kafka's clients, and their offsets in transactions of any client."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.http.permitted import identity_of
from pybroker.admin.operation import Body, DescribedRoute
from pybroker.admin.routes.transacting import id_of
from pybroker.admin.routing import number, read_object, route
from pybroker.admin.services import AdminServices, KafkaGroups
from pybroker.admin.shapes import kafka as shapes
from pybroker.broker.brokers.other_brokers import ASKED_BY_A_BROKER

_WHOLE_TOPIC: Final = -1
_GROUPS: Final = "/admin/v3/kafka/groups"
_GROUP: Final = _GROUPS + "/{group:segment}"
_ENDS: Final = "/admin/v3/kafka/endOffsets/{name:segment}"
_SHARES: Final = "/admin/v3/kafka/shareOffsets/{group:segment}/{name:segment}"
_FORGET: Final = "/admin/v3/kafka/offsets/{name:segment}"
_OFFSETS: Final = "/admin/v3/transactions/{most:int}/{least:int}/kafkaOffsets"


class KafkaRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services

    def routes(self) -> list[DescribedRoute]:
        body, move, shares = Body(shapes.COMMIT), Body(shapes.MOVE), shapes.SHARE_OFFSETS
        return [
            route("GET", _GROUPS, self.groups, shapes.GROUPS, refuses=(409,)),
            route("GET", _GROUP, self.group, shapes.GROUP, refuses=(404, 409)),
            route("GET", _ENDS, self.ends, shapes.ENDS, refuses=(404, 409)),
            route("GET", _SHARES, self.shares, shares, refuses=(404, 409)),
            route("POST", _SHARES, self.move_shares, shares, body=move, refuses=(404, 409)),
            route("DELETE", _SHARES, self.delete_shares, shares, refuses=(404, 409)),
            route("DELETE", _FORGET, self.forget, shapes.LOGS, query=shapes.OF_PARTITION),
            route("POST", _OFFSETS, self.commit, body=body, refuses=(404, 405, 409), changes=False),
        ]

    @property
    def _kafka(self) -> KafkaGroups:
        """Raises HTTPException (409) if the broker does not serve Kafka's clients."""
        found = self._services.kafka()
        if found is None:
            raise HTTPException(409, "This broker does not serve Kafka's clients: start it --kafka")
        return found

    async def groups(self, request: Request) -> list[dict[str, Any]]:
        """The groups of Kafka's clients that this broker coordinates."""
        return await self._kafka.groups()

    async def group(self, request: Request) -> dict[str, Any]:
        """A group, with the committed offset and the lag of each partition."""
        return await self._kafka.group(request.path_params["group"])

    async def ends(self, request: Request) -> list[dict[str, int]]:
        """Where those partitions of a topic end that this broker serves: the offset of the next
        committed message.
        """
        return await self._kafka.end_offsets(request.path_params["name"])

    async def shares(self, request: Request) -> list[dict[str, Any]]:
        """Where a share group is on the partitions of a topic."""
        return await self._kafka.share_offsets(*_share_group(request))

    async def move_shares(self, request: Request) -> list[dict[str, Any]]:
        """Let a share group without members begin anew at other offsets."""
        body = await read_object(request)
        offsets = {each["partition"]: each["offset"] for each in body["offsets"]}
        only_here = ASKED_BY_A_BROKER in request.headers
        return await self._kafka.move_share_offsets(*_share_group(request), offsets, only_here)

    async def delete_shares(self, request: Request) -> list[dict[str, Any]]:
        """Delete the subscriptions of a share group without members on a topic."""
        only_here = ASKED_BY_A_BROKER in request.headers
        return await self._kafka.delete_share_offsets(*_share_group(request), only_here)

    async def forget(self, request: Request) -> list[int]:
        """Forget what groups that this broker coordinates have committed of a topic, or of one of
        its partitions. Returns the numbers of the logs where that is done.
        """
        partition = number(request, "partition", _WHOLE_TOPIC)
        return await self._services.forget_kafka_offsets(
            request.path_params["name"], None if partition == _WHOLE_TOPIC else partition
        )

    async def commit(self, request: Request) -> None:
        """Commit offsets of a group in a transaction, whichever client began it: they count when it
        commits. With `memberId` and `generation`, only if the member is still in that generation.
        """
        body = await read_object(request)
        identity = identity_of(request) if IDENTITY in request.scope else None
        member = body.get("memberId", ""), body.get("groupInstanceId"), body.get("generation", -1)
        await self._kafka.commit_offsets(
            identity, id_of(request), body["group"], member, body["offsets"]
        )


def _share_group(request: Request) -> tuple[str, str]:
    """The group and the topic."""
    return request.path_params["group"], request.path_params["name"]
