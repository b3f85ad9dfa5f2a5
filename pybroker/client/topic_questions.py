"""Asks a broker about many topics at once: where each ends, what lies behind a place, a cursor.

Differs: official clients need a consumer on each topic. A broker says in CONNECTED whether it
answers; Apache Pulsar does not.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.base.errors import NotAllowed, PulsarError
from pybroker.client.connection.cluster import Cluster
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.client.errors import from_wire
from pybroker.client.options import InitialPosition
from pybroker.wire import pulsar_api_pb2 as pb

Place = tuple[int, int]  # ledger id, entry id
_QUESTIONS_EACH: Final = 500
_REQUESTS_AT_ONCE: Final = 4
_POSITIONS: Final = {
    InitialPosition.Earliest: pb.CommandSubscribe.Earliest,
    InitialPosition.Latest: pb.CommandSubscribe.Latest,
}


class TopicQuestion(NamedTuple):
    """About one topic or partition, which must exist."""

    topic: str
    # Counts the entries behind it, and samples the next of them.
    after: Place | None = None
    # Looks for the first entry there or behind it that can be delivered.
    first_from: Place | None = None
    # Moves the subscription's cursor up to it, forward only.
    acknowledge: Place | None = None
    # Looks when the message at this entry was published.
    published: Place | None = None
    # Hands over what stands behind `after` up to the message there, where that is little.
    read_to: Place | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: str
    # The last entry that can be delivered; entry id -1 if there is none.
    last: Place = (-1, -1)
    entries_behind: int = 0
    # How many entries were sampled, their messages, and their bytes, uncompressed.
    sample: tuple[int, int, int] | None = None
    first: Place | None = None
    # The subscription's mark-delete position and backlog; None if there is no such subscription.
    cursor: Place | None = None
    backlog: int = 0
    # Of its newest schema, the same for schemas that say the same; empty if there is none.
    schema_digest: bytes = b""
    # In ms; None if there is no message that can be delivered.
    published_ms: int | None = None
    # Whether `entries` are all up to `read_to`. False: read them by a reader; None: ask again,
    # unless no topic of the request was answered, as brokers do that hand nothing over.
    is_read: bool | None = None
    entries: Sequence[StoredEntry] = ()
    # Why the topic could not be asked; then nothing else counts.
    error: PulsarError | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked of all the topics."""

    subscription: str | None = None
    # A subscription that is missing is created there.
    initial_position: InitialPosition | None = None
    sample_messages: int = 0
    # Nothing but the schemas' digests; the topics need not be there.
    schema_only: bool = False
    # Of all topics of a request together, what is handed over.
    read_bytes: int = 0


async def can_ask(cluster: Cluster) -> bool:
    async def ask() -> bool:
        return (await cluster.service_connection()).answers_topic_questions

    return await cluster.patiently(ask, "What the broker can do")


async def ask(
    cluster: Cluster, questions: Sequence[TopicQuestion], asking: Asking
) -> list[TopicState]:
    """An answer to each question, in their order. Raises NotAllowed if the broker has none."""
    parts = [
        questions[at : at + _QUESTIONS_EACH] for at in range(0, len(questions), _QUESTIONS_EACH)
    ]
    answers: list[TopicState] = []
    for at in range(0, len(parts), _REQUESTS_AT_ONCE):
        some = parts[at : at + _REQUESTS_AT_ONCE]
        for found in await asyncio.gather(*(_ask(cluster, part, asking) for part in some)):
            answers += found
    return answers


async def _ask(
    cluster: Cluster, questions: Sequence[TopicQuestion], asking: Asking
) -> list[TopicState]:
    async def ask() -> pb.CommandAskTopicsResponse:
        connection = await cluster.service_connection()
        if not connection.answers_topic_questions:
            raise NotAllowed("This broker cannot be asked about several topics at once")
        answer: pb.CommandAskTopicsResponse = await connection.request(
            _request(questions, asking), cluster.timeout_s
        )
        return answer

    what = f"A question about {len(questions)} topics"
    answer = await cluster.patiently(ask, what)
    return [
        _state(question.topic, each)
        for question, each in zip(questions, answer.answer, strict=True)
    ]


def _request(questions: Sequence[TopicQuestion], asking: Asking) -> pb.CommandAskTopics:
    request = pb.CommandAskTopics(
        sample_messages=asking.sample_messages,
        schema_only=asking.schema_only,
        read_bytes=asking.read_bytes,
    )
    if asking.subscription is not None:
        request.subscription = asking.subscription
        if asking.initial_position is not None:
            request.initial_position = _POSITIONS[asking.initial_position]
    for question in questions:
        asked = request.question.add(topic=question.topic)
        if question.after is not None:
            _set(asked.after, question.after)
        if question.first_from is not None:
            _set(asked.first_from, question.first_from)
        if question.acknowledge is not None:
            _set(asked.acknowledge, question.acknowledge)
        if question.published is not None:
            _set(asked.published, question.published)
        if question.read_to is not None:
            _set(asked.read_to, question.read_to)
    return request


def _set(place: pb.MessageIdData, given: Place) -> None:
    place.ledgerId = given[0] & 0xFFFF_FFFF_FFFF_FFFF
    place.entryId = given[1] & 0xFFFF_FFFF_FFFF_FFFF


def _state(topic: str, answer: pb.TopicAnswer) -> TopicState:
    if answer.HasField("error"):
        return TopicState(topic, error=from_wire(answer.error, answer.message))
    sample = None
    if answer.sample_entries:
        sample = answer.sample_entries, answer.sample_messages, answer.sample_bytes
    return TopicState(
        topic,
        _place(answer.last) if answer.HasField("last") else (-1, -1),
        answer.entries_behind,
        sample,
        _place(answer.first) if answer.HasField("first") else None,
        _place(answer.cursor) if answer.HasField("cursor") else None,
        answer.backlog,
        answer.schema_digest,
        answer.published_ms if answer.HasField("published_ms") else None,
        answer.is_read if answer.HasField("is_read") else None,
        [StoredEntry(each.ledgerId, each.entryId, each.data) for each in answer.entry],
    )


def _place(found: pb.MessageIdData) -> Place:
    ledger_id, entry_id = found.ledgerId, found.entryId
    return (
        ledger_id if ledger_id < 2**63 else ledger_id - 2**64,
        entry_id if entry_id < 2**63 else entry_id - 2**64,
    )
