"""Topics and partitioned topics: list, create, update, delete, unload, terminate."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import Position
from pybroker.admin.finding import each_part, existing, names_of_parts, partitioned, single
from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute, flags
from pybroker.admin.routes.property import change_properties, topic_properties
from pybroker.admin.routing import (
    TOPIC,
    TOPICS,
    flag,
    namespace_of,
    partitioned_metadata,
    read_json,
    route,
    topic_of,
)
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import (
    MESSAGE_ID,
    PARTITION_COUNT,
    PARTITIONED,
    PROPERTIES_TAKEN,
    TEXTS,
)
from pybroker.base.json_schema import map_of
from pybroker.broker.brokers.ownership import check_owned
from pybroker.broker.persistent.topic import Topic


class TopicRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics
        self._permissions = services.permissions
        self._tenants = services.topics.tenants

    def routes(self) -> list[DescribedRoute]:
        partitions, ids = f"{TOPIC}/partitions", map_of(MESSAGE_ID, most=None)
        properties = Body(PROPERTIES_TAKEN, required=False, most_bytes=MUCH_BYTES)
        count = Body(PARTITION_COUNT, misfit=None, most_bytes=MUCH_BYTES)
        return [
            route("GET", TOPICS, self.list_all, TEXTS),
            route("GET", f"{TOPICS}/partitioned", self.list_partitioned, TEXTS),
            route("PUT", TOPIC, self.create, body=properties, refuses=(409,)),
            route("DELETE", TOPIC, self.delete, query=flags("force")),
            route(
                "GET",
                partitions,
                self.partitions,
                PARTITIONED,
                query=flags("checkAllowAutoCreation"),
            ),
            route("PUT", partitions, self.create_partitioned, body=count, refuses=(406, 409)),
            route("POST", partitions, self.update_partitions, body=count, refuses=(406, 409, 422)),
            route(
                "DELETE", partitions, self.delete_partitioned, query=flags("force"), refuses=(409,)
            ),
            route("PUT", f"{TOPIC}/unload", self.unload),
            route("POST", f"{TOPIC}/terminate", self.terminate, MESSAGE_ID),
            route("POST", f"{TOPIC}/terminate/partitions", self.terminate_partitions, ids),
            route("POST", f"{TOPIC}/createMissedPartitions", self.create_missed_partitions),
            route("GET", f"{TOPIC}/lastMessageId", self.last_message_id, MESSAGE_ID),
        ]

    async def list_all(self, request: Request) -> list[str]:
        found = await self._topics.lists.get(namespace_of(request))
        domain = f"{request.path_params['domain']}://"
        return [name for name in found.names if name.startswith(domain)]

    async def list_partitioned(self, request: Request) -> list[str]:
        namespace = namespace_of(request)
        self._tenants.check_namespace(namespace)
        names = self._tenants.partitioned_topics(namespace)
        return [str(name) for name in names if name.domain == request.path_params["domain"]]

    # -- topics

    async def create(self, request: Request) -> None:
        properties = topic_properties(await read_json(request))
        await self._topics.create(topic_of(request))
        if properties:
            await change_properties(self._topics, topic_of(request), properties)

    async def delete(self, request: Request) -> None:
        await self._topics.delete(topic_of(request), flag(request, "force"))

    async def unload(self, request: Request) -> None:
        for name in names_of_parts(self._topics, topic_of(request)):
            check_owned(self._topics.ownership, name)
            await self._topics.unload(name)

    async def terminate(self, request: Request) -> dict[str, int]:
        topic = await single(self._topics, topic_of(request), "terminate")
        return _message_id(await topic.terminate())

    async def terminate_partitions(self, request: Request) -> dict[str, dict[str, int]]:
        """Terminates all partitions. Returns their last message ids, by partition number."""
        partitioned(self._topics, topic_of(request))
        return {
            str(topic.name.partition): _message_id(await topic.terminate())
            async for topic in each_part(self._topics, topic_of(request))
        }

    async def last_message_id(self, request: Request) -> dict[str, int]:
        topic = await self._topic(request)
        position, batch_index = await topic.last_message_id()
        found = {
            "ledgerId": position.ledger_id,
            "entryId": position.entry_id,
            "partitionIndex": topic.name.partition,
        }
        return found if batch_index < 0 else found | {"batchIndex": batch_index}

    # -- partitioned topics

    async def partitions(self, request: Request) -> dict[str, Any]:
        name = topic_of(request)
        auto_create = flag(request, "checkAllowAutoCreation")
        count = await self._topics.partitions_for_client(name, auto_create)
        return partitioned_metadata(count, self._tenants.partitioned_properties(name))

    async def create_partitioned(self, request: Request) -> None:
        count, properties = _partitioned(await read_json(request))
        await self._topics.create_partitioned(topic_of(request), count, properties)

    async def update_partitions(self, request: Request) -> None:
        count, _ = _partitioned(await read_json(request))
        await self._topics.partitioned.grow(topic_of(request), count)

    async def create_missed_partitions(self, request: Request) -> None:
        """Does nothing: partitions are created on first use, so none can be missing."""
        partitioned(self._topics, topic_of(request))

    async def delete_partitioned(self, request: Request) -> None:
        await self._topics.delete_partitioned(topic_of(request), flag(request, "force"))

    async def _topic(self, request: Request) -> Topic:
        return await existing(self._topics, topic_of(request))


def _message_id(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


def _partitioned(body: Any) -> tuple[int, dict[str, str]]:
    """Parses a number of partitions, or {"partitions": …, "properties": {…}}."""
    count, properties = body, None
    if isinstance(body, dict):
        count, properties = body.get("partitions"), body.get("properties")
    if type(count) is not int:
        raise HTTPException(406, "The body must be the number of partitions")
    return count, topic_properties(properties)
