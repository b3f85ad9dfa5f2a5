"""Splits an entry, as the admin API returns it, into its messages."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pybroker.admin.message_headers import first_properties
from pybroker.base.runtime import Pace
from pybroker.console.api import Reply
from pybroker.console.formats import epoch_ms
from pybroker.wire.message_metadata import BadEntry
from pybroker.wire.single_messages import split_batch

_HEADER: Final = "x-pulsar-"
_MOST_OF_BATCH: Final = 100
_MOST_METADATA: Final = 1024 * 1024  # bytes, of one message of a batch
_MESSAGES_A_TURN: Final = 5


@dataclass(frozen=True, slots=True)
class Message:
    place: str
    data: bytes | None  # None: the message has no value
    size_bytes: int  # of the whole value, of which `data` may be the beginning
    key: str | None
    properties: Mapping[str, str]
    omitted: int  # properties, and other texts that were too long
    producer: str
    sequence_id: str
    published_ms: float | None
    event_ms: float | None
    schema_version: int | None
    encrypted: bool
    uncommitted: bool
    aborted: bool
    marker: bool
    transaction: str
    chunk: str  # "2 of 5"

    def beginning(self, most_bytes: int) -> "Message":
        """The message with the first bytes of its value, so that the entry can be freed."""
        return replace(self, data=None if self.data is None else self.data[:most_bytes])


async def messages_of(reply: Reply, most_bytes: int) -> list[Message]:
    """The messages of an entry, each with at most so many bytes of its value; at most the first
    hundred of a batch.
    """
    found, pace = list[Message](), Pace(_MESSAGES_A_TURN)
    try:
        for message in islice(each_message(reply), _MOST_OF_BATCH):
            found.append(message.beginning(most_bytes))
            await pace.step()
    except BadEntry:
        return [whole_entry(reply).beginning(most_bytes)]
    return found


def each_message(reply: Reply) -> Iterator[Message]:
    """The messages of an entry. Raises BadEntry, perhaps after some messages."""
    said = _headers(reply)
    count = int(said.get("num-batch-message") or 0)
    if not count or said.get("is-encrypted") == "true":
        yield _message(said, reply.body)
        return
    for index, (single, data) in enumerate(split_batch(reply.body, count, _MOST_METADATA)):
        yield _single(said, single, data, index)


def whole_entry(reply: Reply) -> Message:
    """The entry as one message, even if it is a batch."""
    return _message(_headers(reply), reply.body)


def _headers(reply: Reply) -> dict[str, str]:
    found = {}
    for name, value in reply.headers:
        lower = name.decode("latin-1").lower()
        if lower.startswith(_HEADER):
            found[lower.removeprefix(_HEADER)] = value.decode(errors="replace")
    return found


def _single(said: dict[str, str], single: Any, data: bytes, index: int) -> Message:
    more = {
        "message-id": f"{said['message-id']}:{index}",
        "null-value": str(single.null_value).lower(),
        "event-time": str(single.event_time or ""),
        "sequence-id": str(single.sequence_id),
        "partition-key": single.partition_key,
    }
    properties, omitted = first_properties(single.properties)
    whole = _message(said | more, data, properties, omitted)
    return whole if single.HasField("partition_key") else replace(whole, key=None)


def _message(
    said: dict[str, str],
    data: bytes,
    properties: Mapping[str, str] | None = None,
    omitted: int = 0,
) -> Message:
    """`properties` are those of a message of a batch."""
    least, most = said.get("txnid-least-bits"), said.get("txnid-most-bits")
    pieces, piece = said.get("num-chunks-from-msg"), said.get("chunk-id", "0")
    return Message(
        place=said.get("message-id", ""),
        data=None if said.get("null-value") == "true" else data,
        size_bytes=len(data),
        key=said.get("partition-key"),
        properties=_properties(said) if properties is None else properties,
        omitted=omitted + int(said.get("omitted", "0")),
        producer=said.get("producer-name", ""),
        sequence_id=said.get("sequence-id", ""),
        published_ms=_time(said.get("publish-time")),
        event_ms=_time(said.get("event-time")),
        schema_version=_version(said.get("base64-schema-version-b64encoded")),
        encrypted=said.get("is-encrypted") == "true",
        uncommitted=said.get("txn-uncommitted") == "true",
        aborted=said.get("txn-aborted") == "true",
        marker="marker-type" in said,
        transaction=f"({most},{least})" if least else "",
        chunk=f"{int(piece) + 1} of {pieces}" if pieces and int(pieces) > 1 else "",
    )


def _properties(said: Mapping[str, str]) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(said.get("property", "{}"))
    except ValueError:
        return {}
    return found


def _time(text: str | None) -> float | None:
    if not text:
        return None
    return float(text) if text.isascii() and text.isdigit() else epoch_ms(text)


def _version(text: str | None) -> int | None:
    try:
        data = base64.b64decode(text or "", validate=True)
    except ValueError:
        return None
    return int.from_bytes(data) if len(data) == 8 else None
