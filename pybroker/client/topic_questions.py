"""Asks a broker about many topics at once: their ends, what follows a position, their cursors.

Differs: official clients need a consumer on each topic. A broker announces support in CONNECTED;
Apache Pulsar has none.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.base.errors import NotAllowed, PulsarError, ServiceNotReady
from pybroker.client.connection.cluster import Cluster
from pybroker.client.connection.connection import Connection
from pybroker.client.connection.retry import PASSING
from pybroker.client.consuming.entry_reader import StoredEntry
from pybroker.client.errors import from_wire
from pybroker.client.options import InitialPosition
from pybroker.wire import pulsar_api_pb2 as pb

Place = tuple[int, int]  # ledger id, entry id
_QUESTIONS_EACH: Final = 500
_REQUESTS_AT_ONCE: Final = 4
_LOOKUPS_AT_ONCE: Final = 100
_MOST_REMEMBERED: Final = 100_000  # topics' brokers
_POSITIONS: Final = {
    InitialPosition.Earliest: pb.CommandSubscribe.Earliest,
    InitialPosition.Latest: pb.CommandSubscribe.Latest,
}


class NoSuchQuestions(NotAllowed):
    """A broker, such as Apache Pulsar's, does not answer questions about several topics."""


class TopicQuestion(NamedTuple):
    """About one topic or partition, which must exist."""

    topic: str
    # Count the entries after this place, and sample the first of them.
    after: Place | None = None
    # Find the first deliverable entry at or after this place.
    first_from: Place | None = None
    # Move the subscription's cursor to this place, forward only.
    acknowledge: Place | None = None
    # Find the publish time of the message at this entry.
    published: Place | None = None
    # Return the entries after `after` up to this message, if they are small.
    read_to: Place | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: str
    # The last deliverable entry; entry id -1 if there is none.
    last: Place = (-1, -1)
    entries_behind: int = 0
    # Number of sampled entries, of their messages, and their uncompressed bytes.
    sample: tuple[int, int, int] | None = None
    first: Place | None = None
    # The subscription's mark-delete position and backlog; None if there is no such subscription.
    cursor: Place | None = None
    backlog: int = 0
    # Digest of the newest schema, equal for equal schemas; empty if there is none.
    schema_digest: bytes = b""
    # In ms; None if there is no deliverable message.
    published_ms: int | None = None
    # Whether `entries` has all entries up to `read_to`. False: read them with a reader. None: ask
    # again; but if it is None for every topic of the request, the broker returns no entries at all.
    is_read: bool | None = None
    entries: Sequence[StoredEntry] = ()
    # Why there is no answer about the topic; if set, ignore the other fields.
    error: PulsarError | None = None


@dataclass(frozen=True, slots=True)
class Asking:
    """The parameters of a request, which apply to all its topics."""

    subscription: str | None = None
    # Create a missing subscription at this position.
    initial_position: InitialPosition | None = None
    sample_messages: int = 0
    # Return only schema digests; the topics need not exist.
    schema_only: bool = False
    # Limit on the bytes of entries returned for all topics of a request.
    read_bytes: int = 0


async def can_ask(cluster: Cluster) -> bool:
    async def ask() -> bool:
        return (await cluster.service_connection()).answers_topic_questions

    return await cluster.patiently(ask, "What the broker can do")


class Questions:
    """Sends each question to the broker that serves its topic.

    The broker of the service URL is asked first: a single broker serves all topics, so it needs no
    lookup. The brokers of topics that it does not serve are looked up and remembered.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: dict[str, Connection] = {}

    async def ask(self, questions: Sequence[TopicQuestion], asking: Asking) -> list[TopicState]:
        """Returns one answer for each question, in order. Repeats questions about topics that are
        moving to another broker, up to the operation timeout. Raises NoSuchQuestions if the broker
        of the service URL does not support questions; if only a topic's broker does not, the
        topic's answer has this error.
        """
        open_yet = dict(enumerate(questions))
        states: dict[int, TopicState] = {}

        async def ask() -> None:
            refusals = await self._ask_each(open_yet, states, asking)
            if refusals:
                failures = await self._look_up(list(refusals))
                for at, each in list(open_yet.items()):
                    why = failures.get(each.topic)
                    if why is not None and not isinstance(why, PASSING):
                        states[at] = TopicState(open_yet.pop(at).topic, error=why)
                refusals = await self._ask_each(open_yet, states, asking)
            for refusal in refusals.values():
                raise refusal

        try:
            await self._cluster.patiently(ask, f"A question about {len(questions)} topics")
        except ServiceNotReady as error:  # about some topics; the others have been answered
            states |= {at: TopicState(each.topic, error=error) for at, each in open_yet.items()}
        return [states[at] for at in range(len(questions))]

    async def _ask_each(
        self, open_yet: dict[int, TopicQuestion], states: dict[int, TopicState], asking: Asking
    ) -> dict[str, PulsarError]:
        """Moves answered questions from `open_yet` to `states`. Returns, by topic, why the others
        were not answered.
        """
        refusals: dict[str, PulsarError] = {}
        nearest = await self._cluster.service_connection()

        async def ask(connection: Connection, part: Sequence[int]) -> None:
            some = [open_yet[at] for at in part]
            try:
                found = await self._ask(connection, some, asking)
            except NoSuchQuestions as error:
                if connection is nearest:
                    raise
                found = [TopicState(each.topic, error=error) for each in some]
            except PASSING as error:
                refusals.update((each.topic, error) for each in some)
                for each in some:
                    self._brokers.pop(each.topic, None)
                return
            for at, state in zip(part, found, strict=True):
                if isinstance(state.error, ServiceNotReady):
                    refusals[state.topic] = state.error
                    self._brokers.pop(state.topic, None)
                else:
                    states[at] = state
                    del open_yet[at]

        by_broker: dict[Connection, list[int]] = {}
        for at, question in open_yet.items():
            known = self._brokers.get(question.topic)
            broker = nearest if known is None or known.closed else known
            by_broker.setdefault(broker, []).append(at)
        parts = [
            (broker, of_it[at : at + _QUESTIONS_EACH])
            for broker, of_it in by_broker.items()
            for at in range(0, len(of_it), _QUESTIONS_EACH)
        ]
        for at in range(0, len(parts), _REQUESTS_AT_ONCE):
            await asyncio.gather(*(ask(*part) for part in parts[at : at + _REQUESTS_AT_ONCE]))
        return refusals

    async def _ask(
        self, connection: Connection, questions: Sequence[TopicQuestion], asking: Asking
    ) -> list[TopicState]:
        if not connection.answers_topic_questions:
            raise NoSuchQuestions(
                f"The broker {connection.address} does not answer questions about several topics "
                "at once"
            )
        answer: pb.CommandAskTopicsResponse = await connection.request(
            _request(questions, asking), self._cluster.timeout_s
        )
        return [
            _state(question.topic, each)
            for question, each in zip(questions, answer.answer, strict=True)
        ]

    async def _look_up(self, topics: Sequence[str]) -> dict[str, PulsarError]:
        """Looks up and remembers the topics' brokers. Returns, by topic, why a lookup failed."""
        if len(self._brokers) > _MOST_REMEMBERED:
            self._brokers.clear()
        failures: dict[str, PulsarError] = {}
        for at in range(0, len(topics), _LOOKUPS_AT_ONCE):
            some = topics[at : at + _LOOKUPS_AT_ONCE]
            lookups = (self._cluster.connection_for(topic) for topic in some)
            found = await asyncio.gather(*lookups, return_exceptions=True)
            for topic, broker in zip(some, found, strict=True):
                if isinstance(broker, Connection):
                    self._brokers[topic] = broker
                elif isinstance(broker, PulsarError):
                    failures[topic] = broker
                else:
                    raise broker
        return failures


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
