"""Schemas by topic and version.

Here, the data of a key-value schema is a JSON object of two schemas; in the protocol it is two
length-prefixed schemas. A part that is not JSON (of a primitive type) becomes the empty string.
"""

import json
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pybroker.admin.operation import MUCH_BYTES, Body, DescribedRoute, flags
from pybroker.admin.routing import flag, read_object, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import PROPERTIES, PROPERTIES_TAKEN
from pybroker.base.errors import TopicNotFound
from pybroker.base.json_schema import (
    COUNT,
    TEXT,
    TRUTH,
    WHOLE,
    choice,
    fields,
    list_of,
    record,
    taken,
)
from pybroker.base.json_text import json_of
from pybroker.base.names import SCALABLE, TopicName
from pybroker.broker.schemas.compatibility import (
    AUTO_CONSUME,
    KEY_VALUE,
    TYPE_NAMES,
    TYPE_NUMBERS,
    BadKeyValue,
    StoredSchema,
    join_key_value,
    split_key_value,
    type_name,
)
from pybroker.broker.schemas.known_versions import SchemaVersion

_TOPIC: Final = "/admin/v2/schemas/{tenant:segment}/{namespace:segment}/{topic:form}"
_SEPARATORS: Final = (",", ":")

_NUMBER: Final = record("LongSchemaVersion", {"version": COUNT})
_SCHEMA: Final = record(
    "GetSchemaResponse",
    {
        **fields(COUNT, "version timestamp"),
        "type": choice(*TYPE_NAMES),
        "data": TEXT,
        "properties": PROPERTIES,
    },
)
_SCHEMAS: Final = record(
    "GetAllVersionsSchemaResponse", {"getSchemaResponses": list_of(_SCHEMA, most=None)}
)
_INFO: Final = record("SchemaInfo", fields(COUNT, "version timestamp"))
_METADATA: Final = record("SchemaMetadata", {"info": _INFO, "index": list_of(_INFO, most=None)})
_VERSION: Final = record("PostSchemaResponse", {"version": _NUMBER})
_DELETED: Final = record("DeleteSchemaResponse", {"version": WHOLE})
_COMPATIBLE: Final = record(
    "IsCompatibilityResponse", {"compatibility": TRUTH, "schemaCompatibilityStrategy": TEXT}
)
_PAYLOAD: Final = Body(
    taken(
        {
            "type": choice(
                *(name for name, number in TYPE_NUMBERS.items() if number != AUTO_CONSUME)
            ),
            "schema": TEXT,
            "properties": PROPERTIES_TAKEN,
        },
        required=("type",),
        title="PostSchemaPayload",
    ),
    misfit=422,
    most_bytes=MUCH_BYTES,
)


class SchemaRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._schemas = services.topics.schemas
        self._topics = services.topics
        self._tenants = services.topics.tenants

    def routes(self) -> list[DescribedRoute]:
        return [
            route("GET", f"{_TOPIC}/schema", self.get, _SCHEMA),
            route("GET", f"{_TOPIC}/schema/{{version:int}}", self.get, _SCHEMA),
            route("GET", f"{_TOPIC}/schemas", self.get_all, _SCHEMAS),
            route("GET", f"{_TOPIC}/metadata", self.metadata, _METADATA),
            route(
                "POST", f"{_TOPIC}/schema", self.add, _VERSION, body=_PAYLOAD, refuses=(409, 422)
            ),
            route(
                "DELETE",
                f"{_TOPIC}/schema",
                self.delete,
                _DELETED,
                query=flags("force"),
                refuses=(409,),
            ),
            route(
                "POST",
                f"{_TOPIC}/compatibility",
                self.compatibility,
                _COMPATIBLE,
                body=_PAYLOAD,
                refuses=(422,),
                changes=False,
            ),
            route(
                "POST",
                f"{_TOPIC}/version",
                self.version,
                _NUMBER,
                body=_PAYLOAD,
                refuses=(422,),
                changes=False,
            ),
        ]

    async def get(self, request: Request) -> dict[str, Any]:
        topic, wanted = self._name(request), request.path_params.get("version")
        if wanted is None:
            return _shown(self._schemas.get(topic))
        return _shown(await self._schemas.not_deleted(topic, wanted))

    async def get_all(self, request: Request) -> dict[str, Any]:
        versions = await self._schemas.all(self._name(request))
        return {"getSchemaResponses": [_shown(version) for version in versions]}

    async def metadata(self, request: Request) -> dict[str, Any]:
        """SchemaMetadata: the versions without their schemas."""
        versions = await self._schemas.all(self._name(request))
        if not versions:
            raise TopicNotFound(f"{self._name(request)} has no schema")
        infos = [
            {"version": version.number, "timestamp": version.added_at_ms} for version in versions
        ]
        return {"info": infos[-1], "index": infos}

    async def add(self, request: Request) -> dict[str, Any]:
        """Adds a schema. The topic need not exist yet, but its namespace must."""
        schema = await _schema_of(request)
        self._tenants.check_takes_topics(self._name(request).namespace_name)
        version = await self._schemas.add(self._name(request), schema, by_admin=True)
        return {"version": {"version": version}}

    async def delete(self, request: Request) -> dict[str, Any]:
        """Deletes a schema; with ?force=true all stored versions, which stay readable otherwise."""
        force = flag(request, "force")
        return {"version": await self._schemas.delete(self._name(request), force)}

    async def compatibility(self, request: Request) -> dict[str, Any]:
        name, schema = self._name(request), await _schema_of(request)
        why = await self._schemas.why_incompatible(name, schema)
        strategy = self._schemas.rules(name).strategy
        return {"compatibility": why is None, "schemaCompatibilityStrategy": strategy.value}

    async def version(self, request: Request) -> dict[str, Any]:
        name = self._name(request)
        found = await self._schemas.find(name, await _schema_of(request))
        if found is None:
            raise TopicNotFound(f"{name} has no such schema")
        return {"version": found}

    def _name(self, request: Request) -> TopicName:
        """Routes of schemas name no domain: a scalable topic is meant if there is no other."""
        name = topic_of(request)
        scalable = name._replace(domain=SCALABLE)
        if self._topics.exists(name) or self._tenants.partitions(name):
            return name
        return scalable if self._tenants.has_scalable_topic(scalable) else name


def _shown(version: SchemaVersion) -> dict[str, Any]:
    schema = version.schema
    return {
        "version": version.number,
        "type": type_name(schema.type),
        "timestamp": version.added_at_ms,
        "data": _text(schema),
        "properties": dict(schema.properties),
    }


async def _schema_of(request: Request) -> StoredSchema:
    """The schema in the body, {type, schema, properties}."""
    body = await read_object(request)
    number, text = TYPE_NUMBERS[body["type"]], body.get("schema") or ""
    data = _joined(text) if number == KEY_VALUE else text.encode()
    return StoredSchema(topic_of(request).local, number, data, body.get("properties") or {})


# -- key-value schemas


def _text(schema: StoredSchema) -> str:
    if schema.type != KEY_VALUE:
        return schema.data.decode("utf-8", errors="replace")
    try:
        key, value = map(_shown_part, split_key_value(schema.data))
    except BadKeyValue:
        return ""
    return json.dumps({"key": key, "value": value}, separators=_SEPARATORS)


def _shown_part(data: bytes) -> Any:
    try:
        return json.loads(data) if data else ""
    except (ValueError, RecursionError):
        return data.decode("utf-8", errors="replace")


def _joined(text: str) -> bytes:
    try:
        parts = json_of(text)
        key, value = parts["key"], parts["value"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise HTTPException(
            422, 'The definition of a key-value schema must be the string {"key": …, "value": …}'
        ) from None
    return join_key_value(_stored_part(key), _stored_part(value))


def _stored_part(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    return json.dumps(part, separators=_SEPARATORS, ensure_ascii=False).encode()
