"""A received message as JSON, with the fields of Apache Pulsar's WebSocket API."""

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pybroker.base.runtime import Pace, iso_time
from pybroker.client.messages import Message
from pybroker.gateway.message_ids import text_of_message_id

_PARTS_A_TURN: Final = 20
_PART_BYTES: Final = 3 * 16 * 1024  # three bytes are four characters of Base64


def received(message: Message, with_topic: bool) -> Iterator[str]:
    """The message, a large one in parts. Of a consumer of several topics, each message also names
    its own (an extension).
    """
    told: dict[str, Any] = {
        "messageId": text_of_message_id(message.message_id()),
        "properties": message.properties(),
        "publishTime": _iso_or_number(message.publish_timestamp()),
        "redeliveryCount": message.redelivery_count(),
    }
    if event_ms := message.event_timestamp():
        told["eventTime"] = _iso_or_number(event_ms)
    if message.has_partition_key():
        told["key"] = message.partition_key()
    if with_topic:
        told["topic"] = message.topic_name()
    head, data = f'{json.dumps(told)[:-1]}, "payload": "', message.data()
    if len(data) <= _PART_BYTES:
        yield f'{head}{base64.b64encode(data).decode()}"}}'
        return
    yield head
    for at in range(0, len(data), _PART_BYTES):
        yield base64.b64encode(data[at : at + _PART_BYTES]).decode()
    yield '"}'


def _iso_or_number(at_ms: int) -> str:
    """Applications may set any number; not every one is a time."""
    try:
        return iso_time(at_ms)
    except (ValueError, OverflowError):
        return str(at_ms)


async def answer_of(messages: Sequence[Message]) -> bytes:
    """`{"messages": [...]}`, encoded a little at a time."""
    pieces, pace = [b'{"messages": ['], Pace(_PARTS_A_TURN)
    for number, message in enumerate(messages):
        pieces.append(b", " if number else b"")
        for part in received(message, with_topic=False):
            pieces.append(part.encode())
            await pace.step()
    pieces.append(b"]}")
    return b"".join(pieces)
