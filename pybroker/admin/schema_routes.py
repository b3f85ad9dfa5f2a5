"""Schemas by topic and version."""

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route

from pybroker.admin.routing import read_object, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.broker.schemas import StoredSchema

_TOPIC: Final = "/admin/v2/schemas/{tenant:segment}/{namespace:segment}/{topic:segment}"
# The admin API's names of the wire's numbers, which begin at 0.
_TYPES: Final = (
    "NONE",
    "STRING",
    "JSON",
    "PROTOBUF",
    "AVRO",
    "BOOLEAN",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "KEY_VALUE",
    "INSTANT",
    "LOCAL_DATE",
    "LOCAL_TIME",
    "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
)


class SchemaRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._schemas = services.topics.schemas

    def routes(self) -> list[Route]:
        return [
            route("GET", f"{_TOPIC}/schema", self.get),
            route("GET", f"{_TOPIC}/schema/{{version:int}}", self.get),
            route("POST", f"{_TOPIC}/schema", self.add),
            route("DELETE", f"{_TOPIC}/schema", self.delete),
        ]

    async def get(self, request: Request) -> dict[str, Any]:
        version, schema = self._schemas.get(topic_of(request), request.path_params.get("version"))
        return {
            "version": version,
            "type": _TYPES[schema.type],
            "timestamp": 0,
            "data": schema.data.decode("utf-8", errors="replace"),
            "properties": dict(schema.properties),
        }

    async def add(self, request: Request) -> dict[str, Any]:
        name = topic_of(request)
        version = await self._schemas.add(name, _schema_of(name.local, await read_object(request)))
        return {"version": {"version": version}}

    async def delete(self, request: Request) -> dict[str, Any]:
        name = topic_of(request)
        version, _ = self._schemas.get(name)
        await self._schemas.delete(name)
        return {"version": {"version": version}}


def _schema_of(name: str, body: dict[str, Any]) -> StoredSchema:
    kind, text, properties = body.get("type"), body.get("schema", ""), body.get("properties") or {}
    if kind not in _TYPES:
        raise HTTPException(422, f"type must be one of {', '.join(_TYPES)}")
    if not isinstance(text, str) or not isinstance(properties, dict):
        raise HTTPException(422, "schema must be a string and properties an object")
    texts = {str(key): str(value) for key, value in properties.items()}
    return StoredSchema(name, _TYPES.index(kind), text.encode(), texts)
