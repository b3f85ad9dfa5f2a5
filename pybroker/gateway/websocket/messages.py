"""The JSON of Apache Pulsar's WebSocket API."""

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pybroker.base.json_text import json_of
from pybroker.base.names import MAX_PROPERTIES_CHARS, TxnId
from pybroker.client.messages import MessageId, Outgoing
from pybroker.gateway.message_ids import text_of_message_id

NOT_JSON: Final = 3
NOT_ENCODED: Final = 7
UNKNOWN: Final = 8
_MOST_SAID: Final = 1500  # characters of an error
_LONG: Final = 2**63 - 1


class BadMessage(Exception):
    """`code` is one of Apache Pulsar's WebSocketError."""

    def __init__(self, code: int, why: str, context: Any = None) -> None:
        super().__init__(why)
        self.code = code
        self.context = context


@dataclass(frozen=True, slots=True)
class Published:
    """A message from a producer; `context` comes back with its receipt."""

    message: Outgoing
    context: str | None
    txn_id: TxnId | None


def published(text: str, now_ms: int) -> Published:
    """Raises BadMessage if it is not JSON, or a field has another type."""
    said = _object(text)
    context = said.get("context")
    try:
        return Published(_outgoing(said, now_ms), _text(said, "context"), txn_id_of(said))
    except (ValueError, TypeError, OverflowError) as error:
        raise BadMessage(
            NOT_ENCODED, str(error), context if isinstance(context, str) else None
        ) from None


def _outgoing(said: dict[str, Any], now_ms: int) -> Outgoing:
    properties = said.get("properties") or {}
    if not _are_texts(properties):
        raise ValueError("properties must be an object whose values are strings")
    if sum(map(len, properties)) + sum(map(len, properties.values())) > MAX_PROPERTIES_CHARS:
        raise ValueError(f"properties may take at most {MAX_PROPERTIES_CHARS} characters")
    return Outgoing(
        _payload(said.get("payload")),
        properties or None,
        _text(said, "key"),
        event_timestamp=_time(said.get("eventTime")),
        deliver_at_ms=_deliver_at(said, now_ms),
    )


def _payload(said: Any) -> bytes:
    if not isinstance(said, str):
        raise ValueError("payload must be a string: the message in Base64")
    try:
        return base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"payload must be the message in Base64: {error}") from None


def _are_texts(properties: Any) -> bool:
    return isinstance(properties, dict) and all(isinstance(v, str) for v in properties.values())


def _text(said: dict[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    return value


def _time(said: Any) -> int | None:
    """ISO 8601, or milliseconds since 1970."""
    if said is None:
        return None
    if isinstance(said, str) and not said.isdecimal():
        moment = datetime.fromisoformat(said)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        said = int(moment.timestamp() * 1000)
    if isinstance(said, bool) or not isinstance(said, int | str) or not 0 <= int(said) <= _LONG:
        raise ValueError("eventTime must be a time in ISO 8601, or milliseconds since 1970")
    return int(said) or None


def _deliver_at(said: dict[str, Any], now_ms: int) -> int | None:
    at, after = said.get("deliverAt") or 0, said.get("deliverAfterMs") or 0
    if not all(type(each) is int and 0 <= each <= _LONG for each in (at, after)):
        raise ValueError("deliverAt and deliverAfterMs must be numbers of milliseconds")
    return at or (min(now_ms + after, _LONG) if after else None)


def txn_id_of(said: dict[str, Any]) -> TxnId | None:
    """An extension: `"txn": "0:42"`. Raises ValueError."""
    text = _text(said, "txn")
    return None if text is None else TxnId.parse(text)


def receipt(message_id: MessageId, context: str | None) -> str:
    return _json({"result": "ok", "messageId": text_of_message_id(message_id)}, context)


def failure(code: int, why: str, context: str | None) -> str:
    return _json({"result": f"send-error:{code}", "errorMsg": why[:_MOST_SAID]}, context)


def _json(answer: dict[str, Any], context: str | None) -> str:
    if context is not None:
        answer["context"] = context
    return json.dumps(answer)


# -- consumers and readers


@dataclass(frozen=True, slots=True)
class Command:
    """What a consumer says. `type` is empty for an acknowledgement."""

    type: str
    message_id: str | None
    permits: int
    txn_id: TxnId | None


def command(text: str) -> Command:
    """Raises BadMessage if it is not JSON, or a field has another type."""
    said = _object(text)
    permits = said.get("permitMessages", 0)
    if type(permits) is not int or not 0 <= permits < 2**31:
        raise BadMessage(NOT_JSON, "permitMessages must be a number of messages")
    try:
        return Command(
            _text(said, "type") or "", _text(said, "messageId"), permits, txn_id_of(said)
        )
    except ValueError as error:
        raise BadMessage(NOT_JSON, str(error)) from None


def acknowledged(message_id: str, error: Exception | None) -> str:
    """The answer to an acknowledgement in a transaction (an extension)."""
    if error is None:
        return json.dumps({"result": "ok", "messageId": message_id})
    return json.dumps(
        {"result": "ack-error", "messageId": message_id, "errorMsg": str(error)[:_MOST_SAID]}
    )


def end_of_topic(is_reached: bool) -> str:
    return json.dumps({"endOfTopic": is_reached})


def _object(text: str) -> dict[str, Any]:
    try:
        said = json_of(text)
    except (ValueError, RecursionError) as error:
        raise BadMessage(NOT_JSON, f"This is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise BadMessage(NOT_JSON, "A message must be a JSON object")
    return said
