"""Subscriptions: list, create, delete, skip, reset; on a partitioned topic, of every partition."""

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.admin.routing import TOPIC, flag, read_json, read_object, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.broker.subscription import Subscription
from pybroker.broker.tenants import Conflict
from pybroker.broker.topic import Topic
from pybroker.errors import SubscriptionNotFound, TopicNotFound

_TIME: Final = "{timestamp_ms:int}"
_SUBSCRIPTION: Final = TOPIC + "/subscription/{subscription:segment}"


class SubscriptionRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[Route]:
        return [
            route("GET", f"{TOPIC}/subscriptions", self.list_all),
            route("PUT", _SUBSCRIPTION, self.create),
            route("DELETE", _SUBSCRIPTION, self.delete),
            route("POST", f"{_SUBSCRIPTION}/skip_all", self.skip_all),
            route("POST", f"{_SUBSCRIPTION}/resetcursor", self.reset_to_position),
            route("POST", f"{_SUBSCRIPTION}/resetcursor/{{timestamp_ms:int}}", self.reset_to_time),
        ]

    async def list_all(self, request: Request) -> list[str]:
        names = [n async for topic in self._each_topic(request) for n in topic.subscriptions]
        return sorted(set(names))

    async def create(self, request: Request) -> None:
        """The body is a position, as reset_to_position takes it; without one, the end."""
        name = request.path_params["subscription"]
        body = await read_json(request, "latest")
        first = _position(body)
        properties = _properties(body)
        topics = [topic async for topic in self._each_topic(request)]
        if any(name in topic.subscriptions for topic in topics):
            raise Conflict(f"Subscription {name} of {topic_of(request)} already exists")
        for topic in topics:
            start = _mark_delete_before(first, topic)
            await topic.subscription(name, start, properties, create=True)

    async def delete(self, request: Request) -> None:
        found = [subscription async for subscription in self._each(request)]
        if any(s.consumers for s in found) and not flag(request, "force"):
            raise HTTPException(
                412,
                f"Subscription {found[0].name} has connected consumers; close them or use force",
            )
        async for topic in self._each_topic(request):
            if found[0].name in topic.subscriptions:
                await topic.delete_subscription(found[0].name)

    async def skip_all(self, request: Request) -> None:
        async for subscription in self._each(request):
            await subscription.skip_all()

    async def reset_to_position(self, request: Request) -> None:
        """{ledgerId, entryId[, isExcluded]}: the next message; with isExcluded the one before."""
        body = await read_object(request)
        position = _position(body)
        async for subscription in self._each(request):
            excluded = body.get("isExcluded") and position not in (EARLIEST, LATEST)
            await subscription.seek(position.after if excluded else position)

    async def reset_to_time(self, request: Request) -> None:
        async for subscription in self._each(request):
            await subscription.seek_to_time(request.path_params["timestamp_ms"])

    async def _each_topic(self, request: Request) -> AsyncIterator[Topic]:
        """The topic, or the partitions of a partitioned one. Raises TopicNotFound."""
        name = topic_of(request)
        count = self._topics.tenants.partitions(name)
        for part in [name.partition_at(index) for index in range(count)] or [name]:
            topic = await self._topics.get(part)
            if topic is None:
                raise TopicNotFound(f"{part} does not exist")
            yield topic

    async def _each(self, request: Request) -> AsyncIterator[Subscription]:
        """Raises SubscriptionNotFound if no partition has it."""
        name = request.path_params["subscription"]
        found = False
        async for topic in self._each_topic(request):
            if name in topic.subscriptions:
                found = True
                yield topic.subscriptions[name]
        if not found:
            raise SubscriptionNotFound(f"{topic_of(request)} has no subscription {name}")


def _properties(body: Any) -> dict[str, str]:
    found = body.get("properties") if isinstance(body, dict) else None
    if found is not None and not (
        isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    ):
        raise HTTPException(400, "properties must be an object whose values are text")
    return found or {}


def _position(body: Any) -> Position:
    """From a message id in JSON, or "earliest", or "latest"."""
    if body in ("latest", "earliest"):
        return LATEST if body == "latest" else EARLIEST
    ids = (body.get("ledgerId"), body.get("entryId")) if isinstance(body, dict) else (None, None)
    ledger_id, entry_id = ids
    if type(ledger_id) is not int or type(entry_id) is not int:
        raise HTTPException(400, 'A message id is {"ledgerId": …, "entryId": …}')
    return Position(ledger_id, entry_id)


def _mark_delete_before(first: Position, topic: Topic) -> Position | None:
    if first >= LATEST:
        return None
    return EARLIEST if first <= EARLIEST else topic.ledger.previous_position(first)
