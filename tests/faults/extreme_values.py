"""Every command and every admin route with extreme values, derived from their tables.

A command starts with sensible values; then each of its fields in turn, nested ones too, takes each
extreme value that its type allows. A route starts with existing names; then each part of its path,
its query and its body does the same. New commands and routes are covered automatically.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from unittest.mock import MagicMock
from urllib.parse import quote

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from starlette.routing import Route

from pybroker.admin.application import AREAS
from pybroker.admin.routes.policy import PolicyRoutes
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire import varint
from pybroker.wire.connection_state import ACCEPTED, ConnectionState

TOPIC: Final = "persistent://public/extremes/t"
SUBSCRIPTION: Final = "s"
PRODUCER, CONSUMER = 1, 1
LONG_TEXT: Final = 1_000_000  # fits into a command
MANY: Final = 10_000
_DEEPEST: Final = 1  # levels of messages within the body; some types contain themselves
_F = FieldDescriptor


class Case(NamedTuple):
    name: str
    data: bytes  # of a command


class Request(NamedTuple):
    method: str
    path: str
    body: bytes


# -- commands


def cases() -> Iterator[Case]:
    """Cases of every command that a connected client may send, and of a second CONNECT."""
    kinds = sorted(ACCEPTED[ConnectionState.CONNECTED] | {pb.BaseCommand.CONNECT})
    for kind in kinds:
        field = _body_of(kind)
        yield Case(f"{field.name}, empty", _command(kind, field, b""))
        make = getattr(pb, field.message_type.name)
        for name, body in _variations(make):
            yield Case(f"{field.name}.{name}", _command(kind, field, body))


def _body_of(kind: int) -> FieldDescriptor:
    """The field of the type's body: its name is the type's, except for underscores and case."""
    wanted = pb.BaseCommand.Type.Name(kind).replace("_", "").lower()  # type: ignore[arg-type]
    renamed = {"lookup": "lookuptopic", "partitionedmetadata": "partitionmetadata"}
    wanted = renamed.get(wanted, wanted)
    for field in pb.BaseCommand.DESCRIPTOR.fields:
        if field.name.replace("_", "").lower() == wanted:
            return field
    raise AssertionError(f"no field of BaseCommand is the body of {wanted}")


def _command(kind: int, field: FieldDescriptor, body: bytes) -> bytes:
    tag = varint.encode(field.number << 3 | 2)
    return b"\x08" + varint.encode(kind) + tag + varint.encode(len(body)) + body


def _variations(make: Callable[[], Message], depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Descriptions of the difference, and the encoded bodies."""
    for field in make().DESCRIPTOR.fields:
        rest = _without(_sensible(make()), field.name)
        yield f"{field.name} left out", rest
        for what, value in _values(field, depth):
            yield f"{field.name} = {what}", rest + value


def _sensible(message: Message) -> Message:
    """Set every required field, and those that name a topic, a producer or a consumer."""
    known: dict[str, Any] = {
        "topic": TOPIC,
        "subscription": SUBSCRIPTION,
        "namespace": "public/extremes",
        "producer_id": PRODUCER,
        "consumer_id": CONSUMER,
        "request_id": 7,
        "subType": pb.CommandSubscribe.Shared,
        "ack_type": pb.CommandAck.Individual,
        "client_version": "extreme",
        "messagePermits": 1,
        "name": "n",
        "schema_data": b"{}",
        "type": 1,
        "ledgerId": 0,
        "entryId": 0,
        "key": "k",
        "value": "v",
    }
    for field in message.DESCRIPTOR.fields:
        if field.name in known and not _repeated(field) and _takes(field, known[field.name]):
            setattr(message, field.name, known[field.name])
        elif field.is_required and field.type == _F.TYPE_MESSAGE:
            _sensible(getattr(message, field.name))
        elif field.is_required:
            setattr(message, field.name, b"" if field.type == _F.TYPE_BYTES else _zero(field))
    return message


def _takes(field: FieldDescriptor, value: Any) -> bool:
    kind = {_F.TYPE_STRING: str, _F.TYPE_BYTES: bytes, _F.TYPE_MESSAGE: Message}
    return isinstance(value, kind.get(field.type, int))


def _zero(field: FieldDescriptor) -> Any:
    return "x" if field.type == _F.TYPE_STRING else 0


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _without(message: Message, name: str) -> bytes:
    message.ClearField(name)
    return message.SerializePartialToString()


_VARINTS: Final = {
    "0": 0,
    "1": 1,
    "-1": 2**64 - 1,
    "2^31 - 1": 2**31 - 1,
    "2^31": 2**31,
    "-2^31": 2**64 - 2**31,
    "2^32 - 1": 2**32 - 1,
    "2^63 - 1": 2**63 - 1,
    "2^63": 2**63,
}
_TEXTS: Final = {
    "empty": b"",
    "1 MB": b"x" * LONG_TEXT,
    "zeros": b"\x00" * 100,
    "not UTF-8": b"\xff\xfe",
    "a path": b"../../../etc/passwd",
    "slashes": b"/" * 1000,
    "a catastrophic expression": b"(a+)+" * 20 + b"$",
    "the highest partition": TOPIC.encode() + b"-partition-999999",
}


def _values(field: FieldDescriptor, depth: int) -> Iterator[tuple[str, bytes]]:
    """Extreme values, encoded with the field's tag; also many of a repeated field."""
    for what, value in _single_values(field, depth):
        yield what, value
        if _repeated(field) and len(value) < 80:
            yield f"{MANY} times {what}", value * MANY


def _single_values(field: FieldDescriptor, depth: int) -> Iterator[tuple[str, bytes]]:
    if field.type in (_F.TYPE_STRING, _F.TYPE_BYTES):
        for what, text in _TEXTS.items():
            yield what, _delimited(field, text)
    elif field.type == _F.TYPE_MESSAGE:
        make = getattr(pb, field.message_type.name, None) or _nested(field)
        yield "an empty one", _delimited(field, b"")
        yield "a sensible one", _delimited(field, _sensible(make()).SerializePartialToString())
        if depth < _DEEPEST:
            for what, body in _variations(make, depth + 1):
                yield what, _delimited(field, body)
    elif field.type == _F.TYPE_DOUBLE:
        for what, bits in (("NaN", b"\xff" * 8), ("infinity", b"\0\0\0\0\0\0\xf0\x7f")):
            yield what, varint.encode(field.number << 3 | 1) + bits
    else:  # numbers, flags, and enums, which are encoded as numbers
        for what, number in _VARINTS.items():
            yield what, varint.encode(field.number << 3) + varint.encode(number)


def _nested(field: FieldDescriptor) -> Callable[[], Message]:
    """The class of a map's entry or of a nested message."""
    from google.protobuf import message_factory

    made: Callable[[], Message] = message_factory.GetMessageClass(field.message_type)
    return made


def _delimited(field: FieldDescriptor, value: bytes) -> bytes:
    return varint.encode(field.number << 3 | 2) + varint.encode(len(value)) + value


# -- routes

_SENSIBLE_PARTS: Final = {
    "tenant": "public",
    "namespace": "extremes",
    "topic": "t",
    "subscription": SUBSCRIPTION,
    "domain": "persistent",
    "cluster": "standalone",
}
_PARTS: Final = {
    "empty": "",
    "long": "x" * 20_000,
    "dots": "..",
    "encoded slashes": "%2e%2e%2f%2e%2e",
    "zeros": "%00",
    "not UTF-8": "%ff%fe",
    "a partition": "t-partition-999999",
    "2^63": str(2**63),
    "2^200": str(2**200),
    "negative": "-1",
    "5000 digits": "9" * 5000,
}
_BODIES: Final = {
    "nothing": b"",
    "not JSON": b"{",
    "null": b"null",
    "true": b"true",
    "0": b"0",
    "-1": b"-1",
    "2^31 - 1": b"2147483647",
    "2^63": str(2**63).encode(),
    "5000 digits": b"9" * 5000,
    "NaN": b"NaN",
    "a list": json.dumps([0] * MANY).encode(),
    "deep": b"[" * 100_000,
    "an object": b"{}",
    "1 MB": json.dumps("x" * 1_000_000).encode(),
    "too large": b"x" * 1_100_000,
    "many keys": json.dumps({str(n): n for n in range(MANY)}).encode(),
}
# Keys that some routes read; each gets every value.
_KEYS: Final = (
    "ledgerId",
    "entryId",
    "excluded",
    "isExcluded",
    "properties",
    "topicType",
    "defaultNumPartitions",
    "allowAutoTopicCreation",
    "autoTopicCreation",
    "deduplicationEnabled",
    "adminRoles",
    "allowedClusters",
    "type",
    "schema",
    "partitions",
    "brokers",
    "namespaces",
    "primary",
    "auto_failover_policy",
    "publishRateInMsgs",
    "msgRateIn",
)
_NUMBERS: Final = (0, -1, 2**31 - 1, 2**63, 2**200, 1e308)
_JSON_VALUES: Final = (None, True, *_NUMBERS, "", "x" * 100_000, [], {})


_ENDS_THE_BROKER: Final = ("/admin/v2/brokers/shutdown",)


def requests() -> Iterator[Request]:
    for area in AREAS:
        families: set[object] = set()
        for route in area(MagicMock()).routes():
            if route.path in _ENDS_THE_BROKER:
                continue
            family = _family(route) if area is PolicyRoutes else id(route)
            yield from _requests_of(route, first=family not in families)
            families.add(family)


def _family(route: Route) -> object:
    """The routes of the policies' table form families: they differ only in the last word and the
    body.
    """
    return route.path.rpartition("/")[0], tuple(sorted(route.methods or ()))


def _requests_of(route: Route, first: bool) -> Iterator[Request]:
    """`first` of its family; for the others only the body is varied."""
    for method in sorted((route.methods or set()) - {"HEAD"}):
        if not first:
            sensible = {n: _SENSIBLE_PARTS.get(n, "0") for n in route.param_convertors}
            for body in _BODIES.values() if method != "GET" else (b"",):
                yield Request(method, _path(route, sensible), body)
            continue
        names = list(route.param_convertors)
        sensible = {name: _SENSIBLE_PARTS.get(name, "0") for name in names}
        polls = route.path.endswith("/receive")
        usual = b'{"waitMs": 0}' if polls else b""
        for extreme in names:
            for part in _PARTS.values():
                yield Request(method, _path(route, sensible | {extreme: part}), usual)
        path = _path(route, sensible)
        for query in ("force=true", "force=" + "x" * 10_000, "perPartition=%ff", "x=" * 10_000):
            yield Request(method, f"{path}?{query}", usual)
        if method in ("PUT", "POST", "DELETE"):
            for body in (*_BODIES.values(), *_objects({"waitMs": 0} if polls else {})):
                yield Request(method, path, body)


def _objects(more: dict[str, int]) -> Iterator[bytes]:
    for key in _KEYS:
        for value in _JSON_VALUES:
            yield json.dumps({"ledgerId": 0, "entryId": 0} | more | {key: value}).encode()


def _path(route: Route, parts: dict[str, str]) -> str:
    path = route.path_format
    for name, value in parts.items():
        path = path.replace("{" + name + "}", quote(value, safe="%"))
    return path
