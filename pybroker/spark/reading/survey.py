"""A planner's questions about all of a query's topics: their ends and cursors.

If the broker answers about many topics at once (see pybroker.client.topic_questions), a poll of ten
thousand topics takes some twenty commands and no open consumers. Other brokers, such as Apache
Pulsar, are asked about each topic through its own reader or consumer, several at a time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from pybroker.base.errors import TopicNotFound
from pybroker.client import InitialPosition
from pybroker.client.topic_questions import NoSuchQuestions, TopicQuestion, TopicState
from pybroker.spark.offsets import CursorName, Position
from pybroker.spark.reading.limits import Sample
from pybroker.spark.schemas.values import TopicSchema
from pybroker.spark.session import Session, each_of

_SAMPLE_MESSAGES: Final = 100

Result = TypeVar("Result")


class Behind(NamedTuple):
    """What a topic contains after a position."""

    last: Position  # its last message; entry -1 if there is none
    entries: int


class Survey(Protocol):
    """Answers omit topics that are gone."""

    def ends(self, topics: Sequence[str], new: Sequence[str] = ()) -> dict[str, Position]:
        """The last deliverable entry of each; entry -1 if there is none. A topic that is `new` is
        created if it is missing and the broker allows that."""
        ...

    def cursors(
        self, topics: Sequence[str], subscription: str, initial_position: InitialPosition
    ) -> dict[str, Position]:
        """The subscription's position on each topic. A missing subscription is created."""
        ...

    def holed(self, cursors: Mapping[str, Position], subscription: str) -> Sequence[str]:
        """The topics that may have individual acknowledgements after the cursor."""
        ...

    def acknowledge_up_to(self, places: Mapping[str, Position], subscription: str) -> None:
        """Moves the subscription's cursors without a transaction, forward only."""
        ...

    def samples(self, after: Mapping[str, Position]) -> dict[str, Sample]:
        """A sample of the entries after each position, if there are any."""
        ...

    def behind(self, after: Mapping[str, Position]) -> dict[str, Behind]: ...

    def firsts(self, after: Mapping[str, Position]) -> dict[str, Position]:
        """The first message after each position, if there is one."""
        ...

    def published(self, places: Mapping[str, Position]) -> dict[str, int]:
        """The publish times of the messages at these positions, in ms, if they exist."""
        ...

    def schemas(self, topics: Sequence[str]) -> dict[str, TopicSchema | None]:
        """The newest schema of each topic with typed values."""
        ...


def survey_of(session: Session) -> Survey:
    return AllAtOnce(session) if session.asks_about_many else OneByOne(session)


class OneByOne:
    """For brokers that answer about one topic at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ends(self, topics: Sequence[str], new: Sequence[str] = ()) -> dict[str, Position]:
        created = frozenset(new)

        def end(topic: str) -> Position | None:
            try:
                return self._session.last_position(topic, create=topic in created)
            except TopicNotFound:
                self._session.forget(topic)
                if topic in created:
                    raise
                return None

        return _found(topics, each_of(topics, end))

    def cursors(
        self, topics: Sequence[str], subscription: str, initial_position: InitialPosition
    ) -> dict[str, Position]:
        def cursor(topic: str) -> Position:
            name = CursorName(topic, subscription)
            return self._session.cursor(name, initial_position, create=True)

        return _found(topics, each_of(topics, cursor))

    def holed(self, cursors: Mapping[str, Position], subscription: str) -> Sequence[str]:
        return list(cursors)

    def acknowledge_up_to(self, places: Mapping[str, Position], subscription: str) -> None:
        def acknowledge_up_to(topic: str) -> None:
            self._session.acknowledge_up_to(CursorName(topic, subscription), places[topic])

        each_of(list(places), acknowledge_up_to)

    def samples(self, after: Mapping[str, Position]) -> dict[str, Sample]:
        topics = list(after)
        sampled = each_of(topics, lambda topic: self._session.sample(topic, after[topic]))
        return _found(topics, sampled)

    def behind(self, after: Mapping[str, Position]) -> dict[str, Behind]:
        def look(topic: str) -> Behind:
            last = self._session.last_position(topic, create=False)
            if last.entry_id < 0 or last <= after[topic]:
                return Behind(last, 0)
            return Behind(last, self._session.entries_behind(topic, after[topic]))

        topics = list(after)
        return _found(topics, each_of(topics, look))

    def firsts(self, after: Mapping[str, Position]) -> dict[str, Position]:
        def first(topic: str) -> Position | None:
            return self._session.first_position_after(topic, after[topic])

        topics = list(after)
        return _found(topics, each_of(topics, first))

    def published(self, places: Mapping[str, Position]) -> dict[str, int]:
        def published(topic: str) -> int | None:
            found = self._session.message_from(topic, places[topic])
            return found[1] if found is not None and found[0] == places[topic] else None

        topics = list(places)
        return _found(topics, each_of(topics, published))

    def schemas(self, topics: Sequence[str]) -> dict[str, TopicSchema | None]:
        schemas = each_of(topics, lambda topic: _schema(self._session, topic))
        return dict(zip(topics, schemas, strict=True))


class AllAtOnce:
    """For brokers that answer about many topics. Topics whose own brokers do not are asked about
    one by one.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._client = session.client
        self._one_by_one = OneByOne(session)

    def ends(self, topics: Sequence[str], new: Sequence[str] = ()) -> dict[str, Position]:
        states = self._client.ask_topics([TopicQuestion(topic) for topic in topics])
        found = {each.topic: Position(*each.last) for each in _there(states)}
        missing = [topic for topic in new if topic not in found]
        others = [topic for topic in _of_other_brokers(states) if topic not in missing]
        return found | self._one_by_one.ends([*others, *missing], missing)

    def cursors(
        self, topics: Sequence[str], subscription: str, initial_position: InitialPosition
    ) -> dict[str, Position]:
        """Subscribing creates a missing topic if the broker allows that."""
        questions = [TopicQuestion(topic) for topic in topics]
        states = self._client.ask_topics(questions, subscription, initial_position)
        missing = [each.topic for each in states if isinstance(each.error, TopicNotFound)]
        missing += _of_other_brokers(states)
        found = {
            each.topic: Position(*each.cursor) for each in _there(states) if each.cursor is not None
        }
        return found | self._one_by_one.cursors(missing, subscription, initial_position)

    def holed(self, cursors: Mapping[str, Position], subscription: str) -> Sequence[str]:
        questions = [TopicQuestion(topic, after=place) for topic, place in cursors.items()]
        states = self._client.ask_topics(questions, subscription)
        found = [each.topic for each in _there(states) if each.entries_behind > each.backlog]
        return [*found, *self._one_by_one.holed(_of(cursors, states), subscription)]

    def acknowledge_up_to(self, places: Mapping[str, Position], subscription: str) -> None:
        questions = [
            TopicQuestion(topic, acknowledge=place)
            for topic, place in places.items()
            if place.entry_id >= 0
        ]
        states = self._client.ask_topics(questions, subscription, InitialPosition.Earliest)
        _there(states)
        self._one_by_one.acknowledge_up_to(_of(places, states), subscription)

    def samples(self, after: Mapping[str, Position]) -> dict[str, Sample]:
        questions = [TopicQuestion(topic, after=place) for topic, place in after.items()]
        states = self._client.ask_topics(questions, sample_messages=_SAMPLE_MESSAGES)
        samples = {}
        for each in _there(states):
            if each.sample is not None:
                entries, messages, size_bytes = each.sample
                samples[each.topic] = Sample(messages / entries, size_bytes / entries)
        return samples | self._one_by_one.samples(_of(after, states))

    def behind(self, after: Mapping[str, Position]) -> dict[str, Behind]:
        questions = [TopicQuestion(topic, after=place) for topic, place in after.items()]
        states = self._client.ask_topics(questions)
        found = {
            each.topic: Behind(
                Position(*each.last),
                each.entries_behind if each.last > after[each.topic] else 0,
            )
            for each in _there(states)
        }
        return found | self._one_by_one.behind(_of(after, states))

    def firsts(self, after: Mapping[str, Position]) -> dict[str, Position]:
        questions = [
            TopicQuestion(topic, first_from=(place.ledger_id, place.entry_id + 1))
            for topic, place in after.items()
        ]
        states = self._client.ask_topics(questions)
        found = {
            each.topic: Position(*each.first) for each in _there(states) if each.first is not None
        }
        return found | self._one_by_one.firsts(_of(after, states))

    def published(self, places: Mapping[str, Position]) -> dict[str, int]:
        questions = [TopicQuestion(topic, published=place) for topic, place in places.items()]
        states = self._client.ask_topics(questions)
        found = {
            each.topic: each.published_ms
            for each in _there(states)
            if each.published_ms is not None
        }
        return found | self._one_by_one.published(_of(places, states))

    def schemas(self, topics: Sequence[str]) -> dict[str, TopicSchema | None]:
        """Reads one schema for topics with the same digest."""
        questions = [TopicQuestion(topic) for topic in topics]
        known: dict[bytes, TopicSchema | None] = {b"": None}
        states = self._client.ask_topics(questions, schema_only=True)
        found: dict[str, TopicSchema | None] = {}
        for each in _there(states):
            if each.schema_digest not in known:
                known[each.schema_digest] = _schema(self._session, each.topic)
            found[each.topic] = known[each.schema_digest]
        return found | self._one_by_one.schemas(_of_other_brokers(states))


def _schema(session: Session, topic: str) -> TopicSchema | None:
    schema = session.client.get_schema(topic)
    typed = None if schema is None else TopicSchema.of(schema)
    return typed if typed is not None and typed.is_typed else None


def _there(states: Iterable[TopicState]) -> list[TopicState]:
    """Omits topics that are gone or that another broker does not answer for; raises any other
    refusal.
    """
    there = []
    for state in states:
        if state.error is None:
            there.append(state)
        elif not isinstance(state.error, TopicNotFound | NoSuchQuestions):
            raise state.error
    return there


def _of_other_brokers(states: Iterable[TopicState]) -> list[str]:
    """The topics whose brokers do not answer about many topics."""
    return [each.topic for each in states if isinstance(each.error, NoSuchQuestions)]


def _of(places: Mapping[str, Position], states: Iterable[TopicState]) -> dict[str, Position]:
    return {topic: places[topic] for topic in _of_other_brokers(states)}


def _found(topics: Sequence[str], answers: Iterable[Result | None]) -> dict[str, Result]:
    pairs = zip(topics, answers, strict=True)
    return {topic: answer for topic, answer in pairs if answer is not None}
