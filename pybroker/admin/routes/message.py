"""Single messages: the n-th in a subscription's backlog, the n-th stored, or the message at a
position.

The body is the payload as published, decompressed; encrypted payloads and chunks are returned as
stored. A batch is a sequence of [metadata size u32][SingleMessageMetadata][payload]; then there is
the header X-Pulsar-num-batch-message. Everything else is in headers, under Apache Pulsar's names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position
from pybroker.admin.finding import single
from pybroker.admin.http.answer_memory import room_of
from pybroker.admin.message_headers import as_headers
from pybroker.admin.operation import Answer, DescribedRoute
from pybroker.admin.routing import TOPIC, asked, number, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.common import MESSAGE_ID
from pybroker.base.errors import ServiceNotReady
from pybroker.base.json_schema import BYTES, WHOLE, choice, whole
from pybroker.base.names import check_subscription_name
from pybroker.broker.persistent.entry_metadata import INDEX, entry_with_index, shown_entry
from pybroker.broker.persistent.publish_time import first_to_read
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.subscriptions.waiting_entries import NothingAcknowledged, waiting_entry
from pybroker.wire.decompression import MAX_BYTES, CannotDecompress, decompressed
from pybroker.wire.message_metadata import BadEntry, parse_metadata, payload_of

_NUMBER: Final = "{number:int}"
Found = tuple[Position, bytes]


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

        async def find() -> Found:
            if subscription is not None:
                found = await subscription.peek(number)
            else:
                nothing = NothingAcknowledged(topic.ledger)
                found = await waiting_entry(topic.ledger, nothing, topic.hidden, number)
            if found is None:
                raise HTTPException(
                    404, f"Message not found: fewer than {number} messages wait on {name}"
                )
            return found

        return await _answer(request, topic, find)

    async def by_id(self, request: Request) -> Response:
        topic = await self._topic(request)
        position = Position(request.path_params["ledger"], request.path_params["number"])
        return await self._stored(request, topic, position)

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
        return await self._stored(request, topic, position)

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

    async def _stored(self, request: Request, topic: Topic, position: Position) -> Response:
        async def find() -> Found:
            run = None
            if topic.ledger.has_entry(position):
                run = await topic.ledger.read(position, position, 1, 1)
            if run is None:
                raise HTTPException(404, f"Message not found: {topic.name} has no entry {position}")
            return position, run.entries[0]

        return await _answer(request, topic, find)

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


async def _answer(request: Request, topic: Topic, find: Callable[[], Awaitable[Found]]) -> Response:
    """The entry that `find` finds. While the answer has to wait for room, the entry is not kept."""
    room = room_of(request.scope)
    ledger = topic.ledger
    shown = await _shown(ledger, *await find())
    if not room.take_now(size_bytes := shown.size_bytes):
        del shown
        await room.take(size_bytes)
        shown = await _shown(ledger, *await find())
        if shown.size_bytes > size_bytes:  # it is another one by now
            raise ServiceNotReady("The message is not there any more: try again")
    response = Response(await shown.body(), media_type="application/octet-stream")
    response.raw_headers += shown.headers(topic)
    return response


async def _shown(ledger: ManagedLedger, position: Position, entry: bytes) -> "_Shown":
    return _Shown(position, await shown_entry(ledger, position, entry))


class _Shown:
    """An entry with its metadata. Raises HTTPException."""

    def __init__(self, position: Position, entry: bytes) -> None:
        self._position = position
        try:
            self._metadata, self._payload = parse_metadata(entry), payload_of(entry)
        except BadEntry as error:
            raise HTTPException(
                500, f"The message at {position} cannot be shown: {error}"
            ) from None

    @property
    def _is_compressed(self) -> bool:
        """A chunk is a part of compressed data: only all chunks together can be decompressed."""
        metadata = self._metadata
        is_whole = not metadata.encryption_keys and metadata.num_chunks_from_msg <= 1
        return is_whole and bool(metadata.compression)

    @property
    def size_bytes(self) -> int:
        """The size of the answer, before anything is decompressed."""
        claimed: int = self._metadata.uncompressed_size
        if self._is_compressed and claimed <= MAX_BYTES:  # otherwise it is refused
            return claimed
        return len(self._payload)

    async def body(self) -> bytes:
        if not self._is_compressed:
            return self._payload
        metadata, loop = self._metadata, asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                None, decompressed, metadata.compression, self._payload, metadata.uncompressed_size
            )
        except CannotDecompress as error:
            raise HTTPException(
                501, f"The message at {self._position} is compressed: {error}"
            ) from None

    def headers(self, topic: Topic) -> list[tuple[bytes, bytes]]:
        position, metadata = self._position, self._metadata
        return as_headers(
            (
                ("Message-ID", f"{position.ledger_id}:{position.entry_id}"),
                *_decided(topic, position, metadata),
            ),
            metadata,
        )


def _decided(topic: Topic, position: Position, metadata: Any) -> Iterator[tuple[str, object]]:
    """Whether readers get the message. A message after an open transaction counts as uncommitted
    too.

    Differs: a message counts as aborted even if only its SEND names the transaction.
    """
    hidden = topic.hidden.contains(position)
    if not metadata.HasField("marker_type") and (hidden or metadata.HasField("txnid_least_bits")):
        yield "txn-aborted", hidden
    yield "txn-uncommitted", position > topic.max_read_position
