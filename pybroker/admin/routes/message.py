"""Single messages: the n-th in a subscription's backlog, the n-th stored, or the message at a
position.

The body is the payload as published, decompressed; encrypted payloads and chunks are returned as
stored. A batch is a sequence of [metadata size u32][SingleMessageMetadata][payload]; then there is
the header X-Pulsar-num-batch-message. Everything else is in headers, under Apache Pulsar's names.
"""

import asyncio
import base64
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position
from pybroker.admin.finding import single
from pybroker.admin.operation import Answer, DescribedRoute
from pybroker.admin.routing import TOPIC, asked, number, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import MESSAGE_ID
from pybroker.base.json_schema import BYTES, WHOLE, choice, whole
from pybroker.base.names import check_subscription_name
from pybroker.base.runtime import iso_time
from pybroker.broker.entry_metadata import INDEX, entry_with_index
from pybroker.broker.publish_time import first_to_read
from pybroker.broker.topic import Topic
from pybroker.broker.waiting_entries import NothingAcknowledged, waiting_entry
from pybroker.wire.decompression import CannotDecompress, decompressed
from pybroker.wire.message_metadata import BadEntry, parse_metadata, payload_of

_NUMBER: Final = "{number:int}"
# Fields of MessageMetadata that are shown unchanged, and their headers.
_PLAIN: Final = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "highest_sequence_id": "highest-sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "null_partition_key": "null-partition-key",
    "null_value": "null-value",
    "uncompressed_size": "uncompressed-size",
    "encryption_algo": "encryption-algo",
    "marker_type": "marker-type",
    "txnid_least_bits": "txnid-least-bits",
    "txnid_most_bits": "txnid-most-bits",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "num_messages_in_batch": "num-batch-message",
}
_TIMES: Final = {
    "publish_time": "publish-time",
    "event_time": "event-time",
    "deliver_at_time": "deliver-at-time",
}
_BYTES: Final = {
    "ordering_key": "Base64-ordering-key",
    "encryption_param": "Base64-encryption-param",
    "schema_version": "Base64-schema-version-b64encoded",
}
_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_UNFIT: Final = re.compile(rb"[^!#$%&'*+.^_`|~0-9A-Za-z-]")  # not allowed in the name of a header
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


class MessageRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._topics = services.topics

    def routes(self) -> list[DescribedRoute]:
        subscription = f"{TOPIC}/subscription/{{subscription:form}}"
        entry = Answer(BYTES, media="application/octet-stream")
        query = {"initialPosition": choice("earliest", "latest"), "messagePosition": WHOLE}
        return [
            route("GET", f"{subscription}/position/{_NUMBER}", self.peek, entry, refuses=(501,)),
            route(
                "GET",
                f"{TOPIC}/ledger/{{ledger:int}}/entry/{_NUMBER}",
                self.by_id,
                entry,
                refuses=(501,),
            ),
            route(
                "GET", f"{TOPIC}/examinemessage", self.examine, entry, query=query, refuses=(501,)
            ),
            route("GET", f"{TOPIC}/messageid/{{timestamp_ms:int}}", self.id_by_time, MESSAGE_ID),
            route(
                "GET",
                f"{TOPIC}/getMessageIdByIndex",
                self.id_by_index,
                MESSAGE_ID,
                query={"index": whole(0)},
            ),
        ]

    async def peek(self, request: Request) -> Response:
        """Shows the n-th unacknowledged message, counted from 1. A subscription that does not exist
        is treated as if created at the topic's earliest message. Damaged entries count, because
        consumers stop at them too.

        Differs: Apache Pulsar creates the subscription, which then keeps every message.
        """
        topic, number = await self._topic(request), request.path_params["number"]
        name = request.path_params["subscription"]
        check_subscription_name(name)
        if number < 1:
            raise HTTPException(412, "Positions are counted from 1")
        subscription = topic.subscriptions.get(name)
        if subscription is not None:
            found = await subscription.peek(number)
        else:
            nothing = NothingAcknowledged(topic.ledger)
            found = await waiting_entry(topic.ledger, nothing, topic.hidden, number)
        if found is None:
            raise HTTPException(
                404, f"Message not found: fewer than {number} messages wait on {name}"
            )
        return await _answer(topic, *found)

    async def by_id(self, request: Request) -> Response:
        topic = await self._topic(request)
        position = Position(request.path_params["ledger"], request.path_params["number"])
        return await self._stored(topic, position)

    async def examine(self, request: Request) -> Response:
        """The n-th stored entry (?messagePosition, from 1), counted from ?initialPosition."""
        topic = await self._topic(request)
        count = max(1, number(request, "messagePosition", default=1))
        origin = asked(request, "initialPosition") or "latest"
        if origin not in ("earliest", "latest"):
            raise HTTPException(412, "initialPosition must be earliest or latest")
        ledgers = topic.ledger.ledgers()
        total = sum(info.entries for info in ledgers)
        if not total:
            raise HTTPException(412, f"{topic.name} holds no messages to examine")
        index = min(count, total) - 1
        position = _nth(ledgers, index if origin == "earliest" else total - 1 - index)
        return await self._stored(topic, position)

    async def id_by_time(self, request: Request) -> dict[str, int]:
        """The id of the first message published at that time or later; if there is none, the id
        that the next message will get.
        """
        topic = await self._topic(request)
        found = await first_to_read(topic.ledger, request.path_params["timestamp_ms"])
        return _message_id(topic, found)

    async def id_by_index(self, request: Request) -> dict[str, int]:
        """The id of the entry whose messages include this index, if the broker assigns indexes."""
        topic = await self._topic(request)
        if INDEX not in topic.config.broker_entry_metadata_interceptors:
            raise HTTPException(
                412, f"Messages have an index only with brokerEntryMetadataInterceptors={INDEX}"
            )
        index = number(request, "index", default=0)
        found = await entry_with_index(topic.ledger, index) if index >= 0 else None
        if found is None:
            raise HTTPException(
                404, f"Message not found: {topic.name} has no message with index {index}"
            )
        return _message_id(topic, found)

    async def _stored(self, topic: Topic, position: Position) -> Response:
        run = None
        if topic.ledger.has_entry(position):
            run = await topic.ledger.read(position, position, 1, 1)
        if run is None:
            raise HTTPException(404, f"Message not found: {topic.name} has no entry {position}")
        return await _answer(topic, position, run.entries[0])

    async def _topic(self, request: Request) -> Topic:
        return await single(self._topics, topic_of(request), "look at")


def _message_id(topic: Topic, position: Position) -> dict[str, int]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": topic.name.partition,
    }


def _nth(ledgers: Sequence[LedgerInfo], index: int) -> Position:
    for info in ledgers:
        if index < info.entries:
            return Position(info.ledger_id, index)
        index -= info.entries
    raise IndexError(index)


async def _answer(topic: Topic, position: Position, entry: bytes) -> Response:
    try:
        metadata, payload = parse_metadata(entry), payload_of(entry)
    except BadEntry as error:
        raise HTTPException(500, f"The message at {position} cannot be shown: {error}") from None
    # A chunk is a part of compressed data, and only all chunks together can be decompressed.
    if not metadata.encryption_keys and metadata.num_chunks_from_msg <= 1:
        loop = asyncio.get_running_loop()
        try:
            payload = await loop.run_in_executor(
                None, decompressed, metadata.compression, payload, metadata.uncompressed_size
            )
        except CannotDecompress as error:
            raise HTTPException(501, f"The message at {position} is compressed: {error}") from None
    response = Response(payload, media_type="application/octet-stream")
    fields = [
        ("Message-ID", f"{position.ledger_id}:{position.entry_id}"),
        *_described(metadata),
        *_decided(topic, position, metadata),
    ]
    response.raw_headers += [(_header(name), _value(value)) for name, value in fields]
    return response


def _described(metadata: Any) -> Iterator[tuple[str, object]]:
    for field, name in _PLAIN.items():
        if metadata.HasField(field):
            yield name, getattr(metadata, field)
    for field, name in _TIMES.items():
        if metadata.HasField(field):
            yield name, _time(getattr(metadata, field))
    for field, name in _BYTES.items():
        if metadata.HasField(field):
            yield name, base64.b64encode(getattr(metadata, field)).decode()
    if metadata.HasField("compression") and metadata.compression < len(_COMPRESSIONS):
        yield "compression", _COMPRESSIONS[metadata.compression]
    yield "Is-Encrypted", bool(metadata.encryption_keys)
    for cluster in metadata.replicate_to:
        yield "replicated-to", cluster
    properties = {_text(pair.key): _text(pair.value) for pair in metadata.properties}
    if properties:
        yield "PROPERTY", json.dumps(properties)  # for Apache Pulsar's clients since version 3
    for key, value in properties.items():
        yield f"PROPERTY-{key}", value  # for earlier clients


def _decided(topic: Topic, position: Position, metadata: Any) -> Iterator[tuple[str, object]]:
    """Whether readers get the message. A message after an open transaction counts as uncommitted
    too.

    Differs: a message counts as aborted even if only its SEND names the transaction.
    """
    hidden = topic.hidden.contains(position)
    if not metadata.HasField("marker_type") and (hidden or metadata.HasField("txnid_least_bits")):
        yield "txn-aborted", hidden
    yield "txn-uncommitted", position > topic.max_read_position


def _text(value: str | bytes) -> str:
    """A producer's string; protobuf returns bytes if it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="replace")


def _time(at_ms: int) -> str:
    try:
        return iso_time(at_ms)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)  # outside the calendar's range


def _header(name: str) -> bytes:
    """Spelled as in Apache Pulsar, because the Java client is case-sensitive."""
    return _UNFIT.sub(b"_", f"X-Pulsar-{name}".encode())


def _value(value: object) -> bytes:
    if isinstance(value, bytes):
        value = _text(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return _CONTROL.sub(b" ", text.encode()).strip()
