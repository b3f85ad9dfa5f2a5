"""Turns a path and a handler into a route, and reads the parts of a request for all handlers.

Routes match the path as it was sent, so that a name may contain an encoded slash (`a%2Fb`).
Afterwards each `{name:segment}` is decoded on its own, and `{name:form}` as the value of a form.
What a route takes and answers is declared beside it (`operation.py`); only what is declared can be
read.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote

from starlette.convertors import register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from managed_ledger.position import Position
from pybroker.admin.long_json import json_of_answer
from pybroker.admin.operation import (
    JSON,
    NOTHING,
    Answer,
    Body,
    DescribedRoute,
    Operation,
    PartConvertor,
    operation_of,
)
from pybroker.base import json_schema
from pybroker.base.errors import InvalidTopicName
from pybroker.base.json_schema import Schema
from pybroker.base.json_text import json_of
from pybroker.base.names import (
    MAX_PROPERTIES_CHARS,
    SCALABLE,
    TopicName,
    any_topic,
    check_namespace_name,
    check_tenant_name,
)

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Any]]

NAMESPACE: Final = "/admin/v2/namespaces/{tenant:segment}/{namespace:segment}"
TOPICS: Final = "/admin/v2/{domain:domain}/{tenant:segment}/{namespace:segment}"
BODY: Final = "pybroker.body"  # key in the scope of a request
PARSED: Final = "pybroker.parsed"
_FORGOTTEN: Final = "pybroker.forgotten"
TOPIC: Final = TOPICS + "/{topic:form}"
SCALABLE_TOPICS: Final = "/admin/v2/scalable/{tenant:segment}/{namespace:segment}"
SCALABLE_TOPIC: Final = SCALABLE_TOPICS + "/{topic:form}"
SEGMENT_PATH: Final = (
    "/admin/v2/segments/{tenant:segment}/{namespace:segment}/{topic:form}/{descriptor:segment}"
)
_SCALABLE_PATHS: Final = ("/admin/v2/scalable/", "/admin/v2/segments/")


class SegmentConvertor(PartConvertor[str]):
    regex = "[^/]+"
    schema: ClassVar[Schema] = {"type": "string", "minLength": 1}

    def convert(self, value: str) -> str:
        try:
            return unquote(value, errors="strict")
        except UnicodeDecodeError:
            raise HTTPException(412, f"{value[:200]} is not percent-encoded UTF-8") from None

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


class FormConvertor(SegmentConvertor):
    """Decodes topics and subscriptions: Apache Pulsar's clients encode them as in forms, with a
    plus for a space.
    """

    def convert(self, value: str) -> str:
        return super().convert(value.replace("+", "%20"))


class NumberConvertor(PartConvertor[int]):
    regex = "[0-9]{1,20}"
    schema: ClassVar[Schema] = json_schema.whole(0, 10**20 - 1)

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class DomainConvertor(PartConvertor[str]):
    regex = "(?:non-)?persistent"
    schema: ClassVar[Schema] = json_schema.choice("persistent", "non-persistent")

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", SegmentConvertor())
register_url_convertor("form", FormConvertor())
register_url_convertor("int", NumberConvertor())  # Starlette's takes any number of digits
register_url_convertor("domain", DomainConvertor())


def route(
    method: str,
    path: str,
    handler: Handler,
    answers: Schema | Answer | Iterable[Answer] = NOTHING,
    *,
    query: Mapping[str, Schema] = MappingProxyType({}),
    body: Schema | Body | None = None,
    refuses: Iterable[int] = (),
    changes: bool | None = None,
) -> DescribedRoute:
    """A route that calls `handler`. A Response is returned as it is, None becomes 204, any other
    value JSON.

    `answers` may be the schema of the returned value; `refuses` are the statuses of the route's own
    refusals. By default all methods except GET change something, and are audited; `changes`
    overrides this.
    """
    changes = method != "GET" if changes is None else changes
    operation = Operation.declared(answers, query, body, refuses, handler, changes)

    async def endpoint(request: Request) -> Response:
        operation.begin(request)
        if operation.body is not None and operation.body.misfit is not None:
            _check(await read_json(request), operation.body)
        return await answered(await handler(request))

    return DescribedRoute(path, endpoint, method, operation)


async def answered(answer: Any) -> Response:
    """The response for a handler's result; see `route`."""
    if answer is None:
        return Response(status_code=204)
    return answer if isinstance(answer, Response) else await _as_json(answer)


async def _as_json(answer: Any) -> Response:
    try:
        return Response(await json_of_answer(answer), 200, media_type=JSON)
    except ValueError:  # a value from before a limit was lowered, which JSON cannot represent
        text = json.dumps(answer)
        log.warning("a response contains values that are not JSON: %s", text[:1000])
        kept = json.loads(text, parse_constant=lambda name: None)
        return Response(
            json.dumps(kept, ensure_ascii=False).encode(errors="replace"), 200, media_type=JSON
        )


def _check(value: Any, body: Body) -> None:
    if value is None and not body.required:
        return
    assert body.misfit is not None
    if (why := json_schema.misfit(value, body.schema)) is not None:
        raise HTTPException(body.misfit, why)


async def read_body(request: Request) -> bytes:
    """The complete body. Raises HTTPException if it is larger than the route accepts."""
    if BODY not in request.scope:
        request.scope[BODY] = await _received_body(request)
    body: bytes = request.scope[BODY]
    return body


async def _received_body(request: Request) -> bytes:
    body = operation_of(request).body
    assert body is not None, "the route declares no body"
    pieces, size = [], int(request.headers.get("content-length", "0"))
    if size <= body.most_bytes:
        size = 0
        try:
            async for piece in request.stream():
                pieces.append(piece)
                size += len(piece)
                if size > body.most_bytes:
                    break
        except ClientDisconnect:
            raise HTTPException(
                400, "The client disconnected before the body was complete"
            ) from None
    if size > body.most_bytes:
        raise HTTPException(413, f"The body is larger than {body.most_bytes} bytes")
    return b"".join(pieces)


def forget_body(request: Request) -> None:
    """Frees the body, which may be large. The handler cannot be called again."""
    for kept in (BODY, PARSED):
        request.scope.pop(kept, None)
    request.scope[_FORGOTTEN] = True


def is_forgotten(request: Request) -> bool:
    """Whether the body was freed: see `forget_body`."""
    return _FORGOTTEN in request.scope


async def read_json(request: Request, default: Any = None) -> Any:
    """The body as JSON, parsed once; `default` if it is empty or null."""
    if PARSED not in request.scope:
        request.scope[PARSED] = await _parsed_body(request)
    value = request.scope[PARSED]
    return default if value is None else value


async def _parsed_body(request: Request) -> Any:
    body = await read_body(request)
    if not body.strip():
        return None
    try:
        value = json_of(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is not JSON: {error}") from None
    declared = operation_of(request).body
    assert declared is not None
    return json_schema.without_text(value, declared.at_once or declared.schema)


async def read_text(request: Request) -> str | None:
    """The body as text, which Apache Pulsar's clients send raw, or as a JSON string."""
    body = (await read_body(request)).strip()
    if not body:
        return None
    try:
        text = json_of(body) if body.startswith(b'"') else body.decode()
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body is not text: {error}") from None
    return text if isinstance(text, str) else None


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; an empty object if there is no body."""
    value = await read_json(request, {})
    if not isinstance(value, dict):
        raise HTTPException(400, "The body must be a JSON object")
    return value


def texts(value: Any) -> dict[str, str]:
    """Properties: a JSON object of strings, or null. Raises HTTPException."""
    value = value or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise HTTPException(400, "properties must be an object whose values are strings")
    if sum(map(len, value)) + sum(map(len, value.values())) > MAX_PROPERTIES_CHARS:
        raise HTTPException(
            412, f"Properties may take at most {MAX_PROPERTIES_CHARS} characters in total"
        )
    return value


def message_id(body: Any) -> Position:
    """The position in a JSON message id. Raises HTTPException."""
    ids = (body.get("ledgerId"), body.get("entryId")) if isinstance(body, dict) else (None, None)
    ledger_id, entry_id = ids
    if type(ledger_id) is not int or type(entry_id) is not int:
        raise HTTPException(400, 'A message id must be {"ledgerId": …, "entryId": …}')
    return Position(ledger_id, entry_id)


def partitioned_metadata(partitions: int, properties: dict[str, str]) -> dict[str, Any]:
    """A topic's partitions as Apache Pulsar's PartitionedTopicMetadata."""
    metadata = {"partitions": partitions, "deleted": False}
    return metadata | ({"properties": properties} if properties else {})


def asked(request: Request, name: str) -> str | None:
    """A query parameter as sent."""
    assert name in operation_of(request).query, f"the route declares no {name}"
    said: str | None = request.query_params.get(name)
    return said


def all_asked(request: Request) -> dict[str, str]:
    """The declared query parameters that were sent, as sent."""
    sent, declared = request.query_params, operation_of(request).query
    return {name: sent[name] for name in declared if name in sent}


def repeated(request: Request, name: str) -> list[str]:
    """All values of a query parameter that may be repeated."""
    asked(request, name)
    return list(request.query_params.getlist(name))


def flag(request: Request, name: str, default: bool = False) -> bool:
    return (asked(request, name) or str(default)).lower() == "true"


def number(request: Request, name: str, default: int) -> int:
    """A query parameter as a number. Raises HTTPException."""
    value = asked(request, name)
    if value is None:
        return default
    if not value.isascii() or not value.removeprefix("-").isdigit() or len(value) > 20:
        raise HTTPException(400, f"{name} must be a number")
    return int(value)


def tenant_of(request: Request) -> str:
    """The tenant in the path. Raises InvalidTopicName."""
    tenant: str = request.path_params["tenant"]
    check_tenant_name(tenant)
    return tenant


def namespace_of(request: Request) -> str:
    """tenant/namespace in the path. Raises InvalidTopicName."""
    params = request.path_params
    name = f"{params['tenant']}/{params['namespace']}"
    check_namespace_name(name)
    return name


def topic_of(request: Request) -> TopicName:
    """The topic in the path. Raises InvalidTopicName."""
    params = request.path_params
    is_scalable = request.scope["path"].startswith(_SCALABLE_PATHS)
    domain = params.get("domain") or (SCALABLE if is_scalable else "persistent")
    return _parsed(domain, params["tenant"], params["namespace"], params["topic"])


def _parsed(domain: str, tenant: str, namespace: str, local: str) -> TopicName:
    name = any_topic(f"{domain}://{tenant}/{namespace}/{local}")
    if name != (domain, tenant, namespace, local):
        raise InvalidTopicName("A tenant or namespace must not contain a slash")
    return name
