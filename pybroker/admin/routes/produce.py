"""Publishes messages over HTTP as producers do: each request opens a connection.

The answer comes when each message is durable or refused. A refused message does not affect others.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import Position
from managed_ledger.storage.one_thread import OneThread
from pybroker.admin.finding import names_of_parts
from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.http.guard import MAX_BODY_BYTES
from pybroker.admin.operation import Body, DescribedRoute, flags
from pybroker.admin.routing import forget_body, read_body, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.produce import ACKS, MESSAGES, UNSEEN_MESSAGES
from pybroker.base import json_schema
from pybroker.base.errors import (
    MetadataError,
    NotAllowed,
    PersistenceError,
    PulsarError,
    QuotaExceededError,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
)
from pybroker.base.names import TopicName, check_client
from pybroker.broker.local_messages import LocalBatch, LocalMessage, LocalSender
from pybroker.broker.ownership import check_owned
from pybroker.broker.schemas.compatibility import NONE, StoredSchema

if TYPE_CHECKING:
    from types import ModuleType

_TOPIC: Final = "/topics/{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:form}"
MOST_BYTES_AT_WORK: Final = 16 * 1024 * 1024
ENCODING_TIMEOUT_S: Final = 10.0  # includes the wait for earlier requests
_TAKEN: Final = Body(MESSAGES, misfit=None, most_bytes=MAX_BODY_BYTES, at_once=UNSEEN_MESSAGES)
_STORED, _TRY_AGAIN, _REFUSED = 0, 1, 2  # Apache Pulsar's error codes
_MAY_GO_WELL: Final = (ServiceNotReady, PersistenceError, QuotaExceededError)
_NO_VERSION: Final = -1
_MOST_SAID: Final = 1500  # characters for each message: there may be many

_Made = LocalMessage | str
Parts = Callable[[], list[TopicName]]  # the topic's current partitions; raises TopicNotFound


class ProduceRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._topics = services.topics
        self._turn = itertools.count()
        self._at_work_bytes = 0
        # One thread: with several, the loop would wait for each.
        self._encoding = OneThread("encoding")

    def routes(self) -> list[DescribedRoute]:
        return [
            route(
                "POST",
                path,
                handler,
                ACKS,
                query=flags("authoritative"),
                body=_TAKEN,
                refuses=(409, 429),
                changes=False,  # messages are not audited
            )
            for path, handler in (
                (_TOPIC, self.produce),
                (_TOPIC + "/partitions/{partition:int}", self.produce_to_partition),
            )
        ]

    async def produce(self, request: Request) -> dict[str, Any]:
        """Publish messages to an existing topic. Those with a key go to the partition of its hash,
        others round-robin.
        """
        name = topic_of(request)
        return await self._publish(request, lambda: names_of_parts(self._topics, name))

    async def produce_to_partition(self, request: Request) -> dict[str, Any]:
        """Publish messages to one partition."""
        name, index = topic_of(request), request.path_params["partition"]
        if name.partition >= 0:
            raise HTTPException(400, f"{name} is a partition; name its partitioned topic")
        return await self._publish(request, lambda: [self._partition(name, index)])

    def _partition(self, name: TopicName, index: int) -> TopicName:
        parts = names_of_parts(self._topics, name)
        if not self._topics.tenants.partitions(name) or index >= len(parts):
            raise TopicNotFound(f"{name} has no partition {index}")
        return parts[index]

    async def _publish(self, request: Request, parts: Parts) -> dict[str, Any]:
        there = parts()  # fail early if the topic is missing
        if len(there) == 1:
            check_owned(self._topics.ownership, there[0])  # redirects to the partition's broker
        with self._room(len(await read_body(request))):
            return await self._publish_body(request, parts)

    @contextmanager
    def _room(self, size_bytes: int) -> Iterator[None]:
        """Counts a request's bytes while it is handled: one that waits for a publish rate holds all
        of its data. Raises TooManyRequests.
        """
        if self._at_work_bytes + size_bytes > MOST_BYTES_AT_WORK:
            raise TooManyRequests("Too many bytes are being published over HTTP; try again later")
        self._at_work_bytes += size_bytes
        try:
            yield
        finally:
            self._at_work_bytes -= size_bytes

    async def _publish_body(self, request: Request, there: Parts) -> dict[str, Any]:
        body, parts = await read_json(request), there()
        if (why := json_schema.misfit(body, UNSEEN_MESSAGES)) is not None:
            raise HTTPException(400, why)
        check_client("Producer", body.get("producerName") or "", {})
        from pybroker.admin import producing  # imported on first use

        schema = self._schema(producing, parts[0], body)
        made, chosen = await self._made(producing, body["messages"], schema, len(parts))
        sender = LocalSender(_address(request), body.get("producerName") or "")
        forget_body(request)
        del body  # a publish rate may delay this: keep only the messages
        if there() != parts:
            raise ServiceNotReady("The topic's partitions changed in the meantime; try again")
        batches = _batches(made, chosen, parts)
        await self._services.publish(
            request.scope.get(IDENTITY),
            sender,
            list(batches.values()),
            None if schema.type == NONE else schema,
        )
        _check_any_opened(batches.values())
        return _acks(made, chosen, batches, parts)

    def _schema(
        self, producing: "ModuleType", topic: TopicName, body: dict[str, Any]
    ) -> StoredSchema:
        """The schema of the given version, else the declared one, else the topic's."""
        version = body.get("schemaVersion")
        if version is not None and version >= 0:
            return self._topics.schemas.get(topic, version).schema
        declared = body.get("keySchema"), body.get("valueSchema")
        if not any(declared):
            try:
                return self._topics.schemas.get(topic).schema
            except TopicNotFound:
                pass
        schema: StoredSchema = producing.declared_schema(*declared)
        return schema

    async def _made(
        self, producing: "ModuleType", messages: list[Any], schema: StoredSchema, count: int
    ) -> tuple[Sequence[_Made], Sequence[int]]:
        """The messages and the indexes of their partitions."""
        turn, now_ms, given_up = next(self._turn), self._services.clock.now_ms(), False

        def work() -> tuple[Sequence[_Made], Sequence[int]]:
            if given_up:
                return (), ()
            made = producing.made_messages(messages, schema, now_ms)
            return made, producing.chosen_partitions(made, count, turn)

        try:
            async with asyncio.timeout(ENCODING_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._encoding, work)
        except TimeoutError:
            given_up = True
            raise TooManyRequests(
                "Too many bytes are being published over HTTP; try again later"
            ) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None


def _address(request: Request) -> tuple[str, int]:
    client = request.client
    return ("unknown", 0) if client is None else (client.host, client.port)


def _batches(
    made: Sequence[_Made], chosen: Sequence[int], parts: Sequence[TopicName]
) -> dict[int, LocalBatch]:
    """The messages by the index of their partition, without invalid ones."""
    batches: dict[int, LocalBatch] = {}
    for message, index in zip(made, chosen, strict=True):
        if isinstance(message, LocalMessage):
            batch = batches.setdefault(index, LocalBatch(parts[index]))
            batch.messages.append(message)
    return batches


def _check_any_opened(batches: Iterable[LocalBatch]) -> None:
    """If all producers were refused, raises the first reason."""
    refusals = [batch.refusal for batch in batches]
    refused = [refusal for refusal in refusals if refusal is not None]
    if not refused or len(refused) < len(refusals):
        return
    if isinstance(refused[0], MetadataError):  # the request does not meet what the topic requires
        raise NotAllowed(str(refused[0]))
    raise refused[0]


def _acks(
    made: Sequence[_Made],
    chosen: Sequence[int],
    batches: dict[int, LocalBatch],
    parts: Sequence[TopicName],
) -> dict[str, Any]:
    versions = [batch.schema_version for batch in batches.values() if batch.schema_version]
    version = int.from_bytes(versions[0], "big") if versions else _NO_VERSION
    outcomes = {index: iter(batch.outcomes) for index, batch in batches.items()}
    results = [
        _ack(
            message if isinstance(message, str) else next(outcomes[index]),
            parts[index].partition,
        )
        for message, index in zip(made, chosen, strict=True)
    ]
    return {
        "messagePublishResults": [result | {"schemaVersion": version} for result in results],
        "schemaVersion": version,
    }


def _ack(outcome: Position | PulsarError | str, partition: int) -> dict[str, Any]:
    if isinstance(outcome, Position):
        message_id = f"{outcome.ledger_id}:{outcome.entry_id}:{partition}"
        return {"messageId": message_id, "errorCode": _STORED}
    code = _TRY_AGAIN if isinstance(outcome, _MAY_GO_WELL) else _REFUSED
    return {"errorCode": code, "errorMsg": str(outcome)[:_MOST_SAID]}
