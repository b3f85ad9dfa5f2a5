"""Turns a publish request into messages: their schema, and their partitions.

Values are encoded in a thread, because an Avro value may take long. The thread yields the
interpreter now and then; otherwise the loop would wait for it 5 ms at every turn. `produce.py`
among the routes imports this at the first request.
"""

import base64
import binascii
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException

from pybroker.admin.shapes.produce import MESSAGE
from pybroker.base.json_schema import LONG, misfit, without_text
from pybroker.base.json_text import json_of
from pybroker.base.key_hash import java_string_hash
from pybroker.broker.local_messages import LocalMessage
from pybroker.broker.schemas.avro import MAX_SCHEMA_BYTES
from pybroker.broker.schemas.compatibility import (
    KEY_VALUE,
    TYPE_NAMES,
    TYPE_NUMBERS,
    BadKeyValue,
    StoredSchema,
    join_key_value,
    split_key_value,
    type_name,
)
from pybroker.values.by_schema import NotEncodable, TextEncoder

_STRING: Final = StoredSchema("String", TYPE_NAMES.index("STRING"), b"")
_NOWHERE_ELSE: Final = ("__local__",)
_MAX_DIGITS: Final = 19
_MESSAGES_A_BREATH: Final = 50


# -- schemas


def declared_schema(key_schema: str | None, value_schema: str | None) -> StoredSchema:
    """The schema that the body declares. Values without a schema are text, as in Apache Pulsar."""
    schema = _declared(key_schema, _schema_of(value_schema) if value_schema else _STRING)
    if schema.size_bytes > MAX_SCHEMA_BYTES:  # a long schema may be more than a command can carry
        raise HTTPException(400, f"A schema may have at most {MAX_SCHEMA_BYTES} bytes")
    return schema


def _declared(key_schema: str | None, value: StoredSchema) -> StoredSchema:
    if not key_schema:
        return value
    key = _schema_of(key_schema)
    properties = {"kv.encoding.type": "SEPARATED"}
    for part, schema in (("key", key), ("value", value)):
        properties[f"{part}.schema.name"] = schema.name
        properties[f"{part}.schema.type"] = "BYTES" if not schema.type else type_name(schema.type)
        properties[f"{part}.schema.properties"] = json.dumps(dict(schema.properties))
    return StoredSchema("KeyValue", KEY_VALUE, join_key_value(key.data, value.data), properties)


def _schema_of(text: str) -> StoredSchema:
    """Parses Apache Pulsar's SchemaInfo, a JSON text with the definition in Base64."""
    try:
        info = json_of(text)
        kind, definition = info["type"], info.get("schema") or ""
        properties = info.get("properties") or {}
        if not all(isinstance(each, str) for each in (*properties, *properties.values())):
            raise TypeError("properties must be strings")
        data = base64.b64decode(definition, validate=True)
        return StoredSchema(str(info.get("name") or kind), TYPE_NUMBERS[kind], data, properties)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, binascii.Error):
        raise HTTPException(
            400,
            'A schema is a JSON string, {"type": …, "schema": …, "properties": …}; its type is one '
            "of Apache Pulsar's, and its definition is Base64",
        ) from None


class _Encoder:
    """Encodes the keys and values of a topic's messages. Raises NotEncodable."""

    def __init__(self, schema: StoredSchema) -> None:
        self._key: TextEncoder | None = None
        self._separated = False
        if schema.type != KEY_VALUE:
            self._value = TextEncoder(type_name(schema.type), schema.data)
            return
        try:
            key, value = split_key_value(schema.data)
        except BadKeyValue as error:
            raise NotEncodable(str(error)) from None
        of = schema.properties.get
        self._key = TextEncoder(of("key.schema.type", "BYTES"), key)
        self._value = TextEncoder(of("value.schema.type", "BYTES"), value)
        self._separated = of("kv.encoding.type") == "SEPARATED"

    def encode(self, key: str | None, payload: str) -> dict[str, Any]:
        value = self._value.encode(payload)
        if self._key is None:
            return {"payload": value, "key": key}
        if key is None:
            raise NotEncodable("A message with a key-value schema needs a key")
        data = self._key.encode(key)
        if not self._separated:
            return {"payload": join_key_value(data, value)}
        return {"payload": value, "key": base64.b64encode(data).decode(), "key_is_base64": True}


# -- messages


def made_messages(
    messages: Sequence[Any], schema: StoredSchema, now_ms: int
) -> list[LocalMessage | str]:
    """For each message of the request the message to publish, or the reason why it is invalid.
    Raises NotEncodable if no message can be published.
    """
    encoder, made = _Encoder(schema), []
    for number, message in enumerate(messages, 1):
        made.append(_made(message, encoder, now_ms))
        if number % _MESSAGES_A_BREATH == 0:
            time.sleep(0)
    return made


def _made(message: Any, encoder: _Encoder, now_ms: int) -> LocalMessage | str:
    message = without_text(message, MESSAGE)
    if (why := misfit(message, MESSAGE, "The message")) is not None:
        return why
    try:
        return LocalMessage(
            **encoder.encode(message.get("key"), message["payload"]),
            properties=message.get("properties") or {},
            event_time_ms=_event_time(message.get("eventTime")),
            sequence_id=message.get("sequenceId"),
            deliver_at_ms=_deliver_at(message, now_ms),
            replicate_to=_replicated_to(message),
        )
    except NotEncodable as error:
        return str(error)


def _event_time(said: int | str | None) -> int:
    """The event time; Apache Pulsar sends a string of milliseconds."""
    if isinstance(said, str) and said:
        if not (said.isascii() and said.isdecimal() and len(said) <= _MAX_DIGITS):
            raise NotEncodable("eventTime must be a number of milliseconds")
        said = int(said)
    return min(int(said or 0), LONG)


def _deliver_at(message: dict[str, Any], now_ms: int) -> int | None:
    """Differs: Apache Pulsar adds deliverAfterMs to the event time, or to 1970 if there is none,
    and ignores deliverAt without an event time.
    """
    if message.get("deliverAt"):
        return int(message["deliverAt"])
    after_ms = message.get("deliverAfterMs")
    return min(now_ms + int(after_ms), LONG) if after_ms else None


def _replicated_to(message: dict[str, Any]) -> Sequence[str]:
    if message.get("disableReplication"):
        return _NOWHERE_ELSE
    return tuple(message.get("replicationClusters") or ())


# -- partitions


def chosen_partitions(messages: Sequence[LocalMessage | str], count: int, turn: int) -> list[int]:
    """The partition of each message: by the hash of its key, as clients do, otherwise in turn.

    Differs: Apache Pulsar uses all partitions in turn, so messages with the same key lose their
    order.
    """
    chosen = []
    for message in messages:
        if isinstance(message, LocalMessage) and message.key is not None and count > 1:
            chosen.append(java_string_hash(message.key) % count)
        else:
            chosen.append(turn % count)
            turn += 1
    return chosen
