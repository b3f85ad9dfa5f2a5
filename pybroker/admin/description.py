"""The API's OpenAPI 3.1 description, generated from the served routes.

It is generated at the first request, a few routes per turn of the loop, and kept as bytes.
"""

import json
import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final

from starlette.convertors import Convertor

from pybroker.admin.http.permitted import plain_path
from pybroker.admin.operation import JSON, RAW, DescribedRoute, Operation, PartConvertor
from pybroker.admin.shapes.common import REFUSAL
from pybroker.base.json_schema import BYTES, TEXT, Schema
from pybroker.base.runtime import Pace
from pybroker.base.version import version
from pybroker.security.authorization import Need
from pybroker.security.permissions import route_row

_ROUTES_A_TURN: Final = 20
_SIGNED_IN: Final[list[Schema]] = [{"token": []}, {"password": []}, {}]
_PART: Final = re.compile(r"\{(\w+)\}")


async def described(routes: Iterable[DescribedRoute]) -> bytes:
    document = Description()
    pace = Pace(_ROUTES_A_TURN)
    for route in routes:
        document.add(route)
        await pace.step()
    return await document.written(pace)


class Description:
    def __init__(self) -> None:
        self._paths: dict[str, Schema] = {}
        self._templates: dict[str, str] = {}  # path without names of variables → path with them
        self._schemas: dict[str, Schema] = {}
        self._refusals: set[int] = set()

    def add(self, route: DescribedRoute) -> None:
        path = plain_path(route.path)
        # OpenAPI treats paths that differ only in the names of their variables as one.
        first = self._templates.setdefault(_PART.sub("{}", path), path)
        names = dict(zip(_PART.findall(path), _PART.findall(first), strict=True))
        self._paths.setdefault(first, {})[route.method.lower()] = self._operation(route, names)

    def _operation(self, route: DescribedRoute, names: dict[str, str]) -> Schema:
        operation, parts = route.operation, route.param_convertors
        described: Schema = {
            "operationId": _id_of(route),
            "tags": [_tag_of(route.path)],
            "parameters": [
                *(_part(names[part], convertor) for part, convertor in parts.items()),
                *self._query(operation),
            ],
            "responses": self._responses(operation, parts),
            **_security(route_row(route.method, plain_path(route.path)).need),
        }
        if operation.summary:
            described["summary"] = operation.summary
        if operation.body is not None:
            content = {operation.body.media: {"schema": self._shared(operation.body.schema)}}
            if operation.body.or_bytes:
                content[RAW] = {"schema": BYTES}
            described["requestBody"] = {
                "description": f"At most {operation.body.most_bytes} bytes",
                "required": operation.body.required,
                "content": content,
            }
        return described

    def _query(self, operation: Operation) -> Iterator[Schema]:
        for name, schema in operation.query.items():
            yield {"name": name, "in": "query", "schema": self._shared(schema)}

    def _responses(self, operation: Operation, parts: Iterable[str]) -> Schema:
        found: Schema = {}
        for answer in operation.answers:
            response: Schema = {"description": _phrase(answer.status)}
            if answer.schema is not None:
                response["content"] = {answer.media: {"schema": self._shared(answer.schema)}}
            found[str(answer.status)] = response
        for status in operation.refusals(parts):
            found[str(status)] = {"$ref": f"#/components/responses/{status}"}
            self._refusals.add(status)
        return found

    def _shared(self, schema: Any) -> Any:
        """Replaces each schema that has a title by a reference, and lists it once among the
        components.
        """
        if isinstance(schema, list):
            return [self._shared(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        title = schema.get("title")
        if not isinstance(title, str):
            return {name: self._shared(part) for name, part in schema.items()}
        if title not in self._schemas:
            self._schemas[title] = {}  # first, because the schema may contain itself
            whole = {name: self._shared(part) for name, part in schema.items()}
            self._schemas[title] = whole
        return {"$ref": f"#/components/schemas/{title}"}

    async def written(self, pace: Pace) -> bytes:
        """The description as JSON, encoded path by path."""
        paths = []
        for path, item in sorted(self._paths.items()):
            paths.append(f"{json.dumps(path)}:{json.dumps(item, separators=(',', ':'))}")
            await pace.step()
        head = json.dumps(self._head(), separators=(",", ":"))
        return f'{head[:-1]},"paths":{{{",".join(paths)}}}}}'.encode()

    def _head(self) -> Schema:
        refusal = {JSON: {"schema": self._shared(REFUSAL)}}
        refusals = {
            str(status): {"description": _phrase(status), "content": refusal}
            for status in sorted(self._refusals)
        }
        schemes = {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            "password": {"type": "http", "scheme": "basic"},
        }
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "pybroker's admin API",
                "version": version(),
                "description": "Apache Pulsar's admin REST API, as far as pybroker serves it.",
            },
            "components": {
                "schemas": self._schemas,
                "responses": refusals,
                "securitySchemes": schemes,
            },
        }


def _part(name: str, convertor: Convertor[Any]) -> Schema:
    schema = convertor.schema if isinstance(convertor, PartConvertor) else TEXT
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _security(need: Need) -> Schema:
    if need is Need.NOTHING:
        return {"security": []}
    return {"security": _SIGNED_IN, "x-permission": need.name.lower()}


def _id_of(route: DescribedRoute) -> str:
    words = re.findall(r"\w+", plain_path(route.path).removeprefix("/admin/"))
    slash = ["slash"] if route.path.endswith("/") else []
    return "_".join([route.method.lower(), *words, *slash])


def _tag_of(path: str) -> str:
    """The first word that is not a version (namespaces, brokers …). For topics it is the domain."""
    words = [part for part in path.split("/") if part and part not in ("admin", "v2", "v3")]
    return "topics" if words[0].startswith("{") else words[0]


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
