"""Publishes messages over HTTP as producers do: each request opens a connection.

The answer comes when each message is durable or refused. A refused message does not affect others.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from managed_ledger.position import Position
from managed_ledger.storage.one_thread import OneThread
from pybroker.admin.finding import existing, names_of_parts
from pybroker.admin.http.authenticated import IDENTITY
from pybroker.admin.http.guard import MAX_BODY_BYTES
from pybroker.admin.http.visiting import address_of, answered_by_client, visitor_of
from pybroker.admin.operation import RAW, Body, DescribedRoute, flags
from pybroker.admin.routes.transacting import asked_txn
from pybroker.admin.routing import asked, forget_body, read_body, read_json, route, topic_of
from pybroker.admin.services import AdminServices
from pybroker.admin.shapes.produce import ACKS, MESSAGES, UNSEEN_MESSAGES
from pybroker.admin.shapes.transacting import TXN
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
from pybroker.base.json_schema import TEXT
from pybroker.base.machines import machine_of
from pybroker.base.names import TopicName, TxnId, check_client
from pybroker.broker.brokers.ownership import NotServedHere, check_owned
from pybroker.broker.local_messages import LocalBatch, LocalMessage, LocalSender
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.schemas.compatibility import NONE, StoredSchema

if TYPE_CHECKING:
    from types import ModuleType

    from pybroker.admin.idempotency import Claim, IdempotencyKeys, Record

_TOPIC: Final = "/topics/{domain:domain}/{tenant:segment}/{namespace:segment}/{topic:form}"
MOST_BYTES_AT_WORK: Final = 16 * 1024 * 1024
ENCODING_TIMEOUT_S: Final = 10.0  # includes the wait for earlier requests
_TAKEN: Final = Body(
    MESSAGES,
    misfit=None,
    most_bytes=MAX_BODY_BYTES,
    at_once=UNSEEN_MESSAGES,
    or_bytes=True,
)
_STORED, _TRY_AGAIN, _REFUSED = 0, 1, 2  # Apache Pulsar's error codes
_MAY_GO_WELL: Final = (ServiceNotReady, PersistenceError, QuotaExceededError)
_NO_VERSION: Final = -1
_NO_SCHEMA: Final = StoredSchema("", NONE, b"")
_MOST_SAID: Final = 1500  # characters for each message: there may be many

_KEY: Final = "idempotency-key"


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that an earlier request with the same key has published."""

    message_id: str


_Made = LocalMessage | Stored | str  # a text says why a message is invalid
Parts = Callable[[], list[TopicName]]  # the topic's current partitions; raises TopicNotFound


class ProduceRoutes:
    def __init__(self, services: AdminServices) -> None:
        self._services = services
        self._topics = services.topics
        self._turn = itertools.count()
        self._at_work_bytes = Counter[str]()  # by machine
        self._keys: IdempotencyKeys | None = None
        # One thread: with several, the loop would wait for each.
        self._encoding = OneThread("encoding")

    def routes(self) -> list[DescribedRoute]:
        return [
            route(
                "POST",
                path,
                handler,
                ACKS,
                query={**flags("authoritative"), "txn": TXN, "key": TEXT},
                body=_TAKEN,
                refuses=(409, 422, 429),
                changes=False,  # messages are not audited
            )
            for path, handler in (
                (_TOPIC, self.produce),
                (_TOPIC + "/partitions/{partition:int}", self.produce_to_partition),
            )
        ]

    async def produce(self, request: Request) -> dict[str, Any]:
        """Publish messages to an existing topic. Those with a key go to the partition of its hash,
        others round-robin. A body of application/octet-stream is one message, with ?key=.
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
        with self._room(machine_of(address_of(request)[0]), len(await read_body(request))):
            key = request.headers.get(_KEY)
            if key is None:
                return await self._publish_body(request, parts, None)
            return await self._publish_once(request, parts, key)

    async def _publish_once(self, request: Request, parts: Parts, key: str) -> dict[str, Any]:
        """Publishes what was not published by an earlier request with the same key."""
        if self._keys is None:
            from pybroker.admin.idempotency import IdempotencyKeys  # imported on first use

            self._keys = IdempotencyKeys(self._services.metadata, self._services.clock)
        identity, txn_id = request.scope.get(IDENTITY), asked_txn(request)
        about = {
            "path": request.scope["path"],
            "type": request.headers.get("content-type", ""),
            "key": asked(request, "key") or "",
            **({} if txn_id is None else {"txn": str(txn_id)}),
        }
        owner = None if identity is None else identity.acting
        body = await read_body(request)
        async with self._keys.claimed(owner, key, about, body) as claim:
            if claim.record.is_answered:
                return _repeated(claim.record)
            return await self._publish_body(request, parts, claim)

    @contextmanager
    def _room(self, machine: str, size_bytes: int) -> Iterator[None]:
        """Counts a request's bytes while it is handled: one that waits for a publish rate holds all
        of its data. A machine that has nothing else at work finds room even where others have taken
        all. Raises TooManyRequests.
        """
        at_work, most = self._at_work_bytes, MOST_BYTES_AT_WORK
        reserve = 0 if machine in at_work else most
        if size_bytes > most or at_work.total() + size_bytes > most + reserve:
            raise TooManyRequests("Too many bytes are being published over HTTP; try again later")
        at_work[machine] += size_bytes
        try:
            yield
        finally:
            at_work[machine] -= size_bytes
            if not at_work[machine]:
                del at_work[machine]

    async def _publish_body(
        self, request: Request, there: Parts, claim: "Claim | None"
    ) -> dict[str, Any]:
        parts, txn_id = there(), asked_txn(request)
        name, schema, made, chosen = await self._asked_for(request, parts)
        sender = LocalSender(address_of(request), name)
        forget_body(request)  # a publish rate may delay this: keep only the messages
        if there() != parts:
            raise ServiceNotReady("The topic's partitions changed in the meantime; try again")
        topics: list[Topic] = []
        if claim is not None:
            topics, made, chosen = await self._what_is_left(claim, made, chosen, parts)
        batches = _batches(made, chosen, parts)
        if txn_id is not None:
            _check_all_made(made)
            await self._join(request, txn_id, batches.values())
        if claim is not None:
            await claim.begin(topics)
        await self._services.publish(
            request.scope.get(IDENTITY),
            sender,
            list(batches.values()),
            None if schema.type == NONE else schema,
        )
        known = _NO_VERSION if claim is None else claim.record.schema_version
        acks = _acks(made, chosen, batches, parts, known)
        if claim is not None:
            await claim.note(_ids(acks), acks["schemaVersion"])
        _check_any_opened(batches.values())
        if txn_id is not None:
            _check_all_stored(batches.values())
        return acks

    async def _asked_for(
        self, request: Request, parts: Sequence[TopicName]
    ) -> tuple[str, StoredSchema, Sequence[_Made], Sequence[int]]:
        """The producer's name, the schema, the messages and the indexes of their partitions."""
        from pybroker.admin import producing  # imported on first use

        if request.headers.get("content-type") == RAW:
            raw = [LocalMessage(await read_body(request), asked(request, "key"))]
            chosen = producing.chosen_partitions(raw, len(parts), next(self._turn))
            return "", self._known_schema(parts[0]) or _NO_SCHEMA, raw, chosen
        body = await read_json(request)
        if (why := json_schema.misfit(body, UNSEEN_MESSAGES)) is not None:
            raise HTTPException(400, why)
        name = body.get("producerName") or ""
        check_client("Producer", name, {})
        schema = self._schema(producing, parts[0], body)
        return name, schema, *await self._made(producing, body["messages"], schema, len(parts))

    async def _what_is_left(
        self,
        claim: "Claim",
        made: Sequence[_Made],
        chosen: Sequence[int],
        parts: Sequence[TopicName],
    ) -> tuple[list[Topic], Sequence[_Made], Sequence[int]]:
        """The topics; the messages, of which those that are already stored are `Stored`; and their
        partitions, which are those of the first request. Raises HTTPException, PulsarError.
        """
        chosen = claim.record.chosen or chosen
        try:
            topics = [await existing(self._topics, parts[index]) for index in sorted(set(chosen))]
        except NotServedHere:
            raise NotAllowed(
                "Idempotency-Key needs partitions of one broker: publish to each partition"
            ) from None
        if not claim.is_new:
            await claim.find(topics)
        claim.choose(list(chosen))
        return (
            topics,
            [_with_key(message, claim, index) for index, message in enumerate(made)],
            chosen,
        )

    async def _join(self, request: Request, txn_id: TxnId, batches: Iterable[LocalBatch]) -> None:
        """The topics join the transaction. Raises PulsarError."""
        visitors = (await self._services.gateway()).visitors
        with answered_by_client():
            async with visitors.client(visitor_of(request)) as at_broker:
                transaction = at_broker.transaction(txn_id)
                for batch in batches:
                    batch.txn_id = txn_id
                    await transaction.joined(str(batch.topic))

    def _schema(
        self, producing: "ModuleType", topic: TopicName, body: dict[str, Any]
    ) -> StoredSchema:
        """The schema of the given version, else the declared one, else the topic's."""
        version = body.get("schemaVersion")
        if version is not None and version >= 0:
            return self._topics.schemas.get(topic, version).schema
        declared = body.get("keySchema"), body.get("valueSchema")
        known = None if any(declared) else self._known_schema(topic)
        schema: StoredSchema = known or producing.declared_schema(*declared)
        return schema

    def _known_schema(self, topic: TopicName) -> StoredSchema | None:
        try:
            return self._topics.schemas.get(topic).schema
        except TopicNotFound:
            return None

    async def _made(
        self, producing: "ModuleType", messages: list[Any], schema: StoredSchema, count: int
    ) -> tuple[Sequence[_Made], Sequence[int]]:
        """The messages and the indexes of their partitions."""
        turn, now_ms = next(self._turn), self._services.clock.now_ms()

        def work() -> tuple[Sequence[_Made], Sequence[int]]:
            # The executor may hold this function after the answer: leave it no messages.
            nonlocal messages
            given, messages = messages, []
            made = producing.made_messages(given, schema, now_ms)
            return made, producing.chosen_partitions(made, count, turn)

        try:
            async with asyncio.timeout(ENCODING_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(self._encoding, work)
        except TimeoutError:
            messages = []  # nor does a request that is given up wait with its own
            raise TooManyRequests(
                "Too many bytes are being published over HTTP; try again later"
            ) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None


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


def _with_key(message: _Made, claim: "Claim", index: int) -> _Made:
    if (stored := claim.record.ids[index]) is not None:
        return Stored(stored)
    if not isinstance(message, LocalMessage):
        return message
    return replace(message, properties={**message.properties, **claim.property_of(index)})


def _ids(acks: dict[str, Any]) -> list[str | None]:
    return [each.get("messageId") for each in acks["messagePublishResults"]]


def _repeated(record: "Record") -> dict[str, Any]:
    """The answer of an earlier request."""
    version = {"schemaVersion": record.schema_version}
    acks = [{"messageId": each, "errorCode": _STORED, **version} for each in record.ids]
    return {"messagePublishResults": acks, **version}


def _check_any_opened(batches: Iterable[LocalBatch]) -> None:
    """If all producers were refused, raises the first reason."""
    refusals = [batch.refusal for batch in batches]
    refused = [refusal for refusal in refusals if refusal is not None]
    if not refused or len(refused) < len(refusals):
        return
    if isinstance(refused[0], MetadataError):  # the request does not meet what the topic requires
        raise NotAllowed(str(refused[0]))
    raise refused[0]


def _check_all_made(made: Sequence[_Made]) -> None:
    """In a transaction, a part of a request is not enough. Raises HTTPException."""
    for number, message in enumerate(made):
        if isinstance(message, str):
            raise HTTPException(400, f"Nothing was published: message {number}: {message}")


def _check_all_stored(batches: Iterable[LocalBatch]) -> None:
    """Raises the first error: whoever does not look at each result must not commit."""
    for batch in batches:
        for outcome in batch.outcomes:
            if not isinstance(outcome, Position):
                raise outcome


def _acks(
    made: Sequence[_Made],
    chosen: Sequence[int],
    batches: dict[int, LocalBatch],
    parts: Sequence[TopicName],
    known_version: int,
) -> dict[str, Any]:
    """`known_version`: of the schema, unless a producer has just told it."""
    versions = [batch.schema_version for batch in batches.values() if batch.schema_version]
    version = int.from_bytes(versions[0], "big") if versions else known_version
    outcomes = {index: iter(batch.outcomes) for index, batch in batches.items()}
    results = [
        _ack(
            next(outcomes[index]) if isinstance(message, LocalMessage) else message,
            parts[index].partition,
        )
        for message, index in zip(made, chosen, strict=True)
    ]
    return {
        "messagePublishResults": [result | {"schemaVersion": version} for result in results],
        "schemaVersion": version,
    }


def _ack(outcome: Position | PulsarError | Stored | str, partition: int) -> dict[str, Any]:
    if isinstance(outcome, Stored):
        return {"messageId": outcome.message_id, "errorCode": _STORED}
    if isinstance(outcome, Position):
        message_id = f"{outcome.ledger_id}:{outcome.entry_id}:{partition}"
        return {"messageId": message_id, "errorCode": _STORED}
    code = _TRY_AGAIN if isinstance(outcome, _MAY_GO_WELL) else _REFUSED
    return {"errorCode": code, "errorMsg": str(outcome)[:_MOST_SAID]}
