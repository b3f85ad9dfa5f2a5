"""The properties of topics, set by their creators. All partitions share them."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.finding import existing
from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute
from pybroker.admin.routing import TOPIC, asked, read_json, route, texts, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import PROPERTIES, PROPERTIES_TAKEN
from pybroker.base.json_schema import TEXT
from pybroker.base.names import TopicName
from pybroker.broker.topics import Topics

_OURS: Final = "property."  # prefix of the topic's properties among those of its ledger
MOST_BYTES: Final = 64 * 1024  # each new ledger writes them again


class PropertyRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[DescribedRoute]:
        path = f"{TOPIC}/properties"
        return [
            route("GET", path, self.get, PROPERTIES),
            route(
                "PUT",
                path,
                self.update,
                body=Body(PROPERTIES_TAKEN, required=False, most_bytes=MUCH_BYTES),
                refuses=(409,),
            ),
            route("DELETE", path, self.remove, query={"key": TEXT}, refuses=(409,)),
        ]

    async def get(self, request: Request) -> dict[str, str]:
        return await properties_of(self._topics, topic_of(request))

    async def update(self, request: Request) -> None:
        """Sets properties; other properties stay."""
        await change_properties(self._topics, topic_of(request), texts(await read_json(request)))

    async def remove(self, request: Request) -> None:
        """Removes the property ?key=…; not an error if it does not exist."""
        if not (key := asked(request, "key")):
            raise HTTPException(400, "No property given: add ?key=…")
        await change_properties(self._topics, topic_of(request), {key: None})


async def properties_of(topics: Topics, name: TopicName) -> dict[str, str]:
    """The topic's properties. Raises TopicNotFound."""
    if topics.tenants.partitions(name):
        return topics.tenants.partitioned_properties(name)
    return _ours((await existing(topics, name)).ledger.properties)


def _ours(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_OURS): value for key, value in properties.items() if key.startswith(_OURS)
    }


async def change_properties(
    topics: Topics, name: TopicName, changes: Mapping[str, str | None]
) -> None:
    """Sets properties; None removes one. Durable when this returns. Raises TopicNotFound,
    HTTPException.
    """
    if topics.tenants.partitions(name):
        await topics.partitioned.change_properties(name, partial(_changed, changes=changes))
        return
    topic = await existing(topics, name)
    _changed(_ours(topic.ledger.properties_to_come), changes)
    await topic.ledger.update_properties({_OURS + key: changes[key] for key in changes})


def _changed(now: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Raises HTTPException if the properties become too large."""
    return topic_properties({k: v for k, v in {**now, **changes}.items() if v is not None})


def topic_properties(value: Any) -> dict[str, str]:
    """Checks properties, a JSON object of strings or null. Raises HTTPException."""
    properties = texts(value)
    if sum(len(k.encode()) + len(v.encode()) for k, v in properties.items()) > MOST_BYTES:
        raise HTTPException(
            412, f"A topic's properties may take at most {MOST_BYTES} bytes in total"
        )
    return properties
