"""A planner's questions about many topics: the answers are the same, all at once or one by one."""

import pytest

from pybroker.client import Client, InitialPosition, TopicNotFound
from pybroker.client.topic_questions import NoSuchQuestions, TopicState
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.compat import ReadAllAvailable
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading import batch
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.sharing import shared_out
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.stream import PulsarStreamReader
from pybroker.spark.reading.survey import AllAtOnce, OneByOne
from pybroker.spark.reading.topics import Topics
from pybroker.spark.reading.work import Work
from pybroker.spark.session import Session
from pybroker.testing import broker

TOPICS = [f"persistent://public/default/many-{number:02}" for number in range(20)]
PATTERN = "persistent://public/default/many-.*"
EARLIEST = Position(-1, -1)


@pytest.fixture(scope="module")
def running():
    """Topic n has n messages, one of them aborted; later topics end with an open transaction."""
    with broker() as running, Client(running.service_url) as client:
        aborted, still_open = client.new_transaction(), client.new_transaction()
        for number, topic in enumerate(TOPICS):
            with client.create_producer(topic) as producer:
                for at in range(number):
                    producer.send(b"%d" % at, txn=aborted if at == 2 else None)
        aborted.abort()
        for topic in TOPICS[10:]:
            client.create_producer(topic).send(b"open", txn=still_open)
        yield running
        still_open.abort()


@pytest.fixture
def session(running):
    session = Session(Client(running.service_url))
    yield session
    session.close()


@pytest.fixture
def both(session):
    return AllAtOnce(session), OneByOne(session)


@pytest.mark.slow
def test_ends_and_what_is_behind_a_place_are_the_same(both):
    ends, same = (survey.ends(TOPICS) for survey in both)
    messages = {topic: end for topic, end in ends.items() if end.entry_id >= 0}
    assert messages == {topic: end for topic, end in same.items() if end.entry_id >= 0}
    assert list(messages) == TOPICS[1:]
    for at in (0, 1, 2):
        after = {topic: end._replace(entry_id=at) for topic, end in messages.items()}
        behind, same = (survey.behind(after) for survey in both)
        assert behind == same
        firsts, same = (survey.firsts(after) for survey in both)
        assert firsts == same


def test_samples_of_messages_that_come_alone_are_the_same(both):
    ends = both[0].ends(TOPICS)
    samples, same = (survey.samples(dict.fromkeys(ends, EARLIEST)) for survey in both)
    assert samples.keys() == same.keys() == set(TOPICS[1:])
    assert all(
        each.rows == 1 and abs(each.size_bytes - same[topic].size_bytes) < 0.5
        for topic, each in samples.items()
    )


@pytest.mark.parametrize("where", [InitialPosition.Earliest, InitialPosition.Latest])
def test_cursors_are_made_at_the_same_place_and_moved_alike(both, session, where):
    ends = both[0].ends(TOPICS)
    places = {topic: end._replace(entry_id=0) for topic, end in ends.items() if end.entry_id >= 0}
    cursors = [
        survey.cursors(TOPICS, f"{type(survey).__name__}-{where.name}", where) for survey in both
    ]
    assert cursors[0] == cursors[1]
    for survey in both:
        name = f"{type(survey).__name__}-{where.name}"
        survey.acknowledge_up_to(places, name)
        moved = survey.cursors(TOPICS, name, where)
        assert moved == {t: max(c, places.get(t, c)) for t, c in cursors[0].items()}


@pytest.mark.slow
def test_topics_whose_broker_cannot_be_asked_are_asked_about_one_by_one(session, monkeypatch):
    """Brokers of Apache Pulsar serve every other topic here."""
    of_apache = set(TOPICS[::2])
    ask_topics = session.client.ask_topics

    def asked(questions, *arguments, **options):
        states = ask_topics(
            [each for each in questions if each.topic not in of_apache], *arguments, **options
        )
        answered = iter(states)
        refused = NoSuchQuestions("not here")
        return [
            TopicState(each.topic, error=refused) if each.topic in of_apache else next(answered)
            for each in questions
        ]

    alone = OneByOne(session)
    ends = {topic: end for topic, end in alone.ends(TOPICS).items() if end.entry_id >= 0}
    after = {topic: end._replace(entry_id=0) for topic, end in ends.items()}
    earliest = InitialPosition.Earliest
    wanted = [
        alone.ends(list(ends)),
        alone.cursors(TOPICS, "mixed", earliest),
        alone.behind(after),
        alone.firsts(after),
        alone.published(ends),
        alone.schemas(TOPICS),
    ]
    monkeypatch.setattr(session.client, "ask_topics", asked)
    mixed = AllAtOnce(session)
    assert wanted == [
        mixed.ends(list(ends)),
        mixed.cursors(TOPICS, "mixed", earliest),
        mixed.behind(after),
        mixed.firsts(after),
        mixed.published(ends),
        mixed.schemas(TOPICS),
    ]
    assert mixed.samples(after).keys() == alone.samples(after).keys()
    assert set(mixed.holed(after, "mixed")) == of_apache & set(after)
    mixed.acknowledge_up_to(ends, "mixed")
    moved = mixed.cursors(TOPICS, "mixed", earliest)
    assert all(moved[topic] >= end for topic, end in ends.items())  # past markers, too


def test_topics_with_holes_behind_their_cursor_are_found(both, running):
    cursors = both[0].cursors(TOPICS, "holed", InitialPosition.Earliest)
    assert both[0].holed(cursors, "holed") == []
    with Client(running.service_url) as client:
        consumer = client.subscribe(TOPICS[7], "holed")
        [_, second] = consumer.receive(5000), consumer.receive(5000)
        consumer.acknowledge(second)
    assert both[0].holed(cursors, "holed") == [TOPICS[7]]


def test_a_topic_that_is_gone_has_no_end_and_is_not_made_again(both, session):
    gone = "persistent://public/default/gone"
    assert both[0].ends([gone, TOPICS[3]]).keys() == {TOPICS[3]}
    both[0].acknowledge_up_to({gone: Position(0, 0)}, "s")
    assert gone not in session.client.get_topics_of_namespace("public/default")


def stream(running, **options):
    given = {"service.url": running.service_url, "topicsPattern": PATTERN} | options
    return PulsarStreamReader(chosen(given, Mode.READ_STREAM), Shape.of(default_schema()))


def plan(reader):
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    works = [work for task in reader.partitions(start, end) for work in task.works]
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    backlogs = reader.reportLatestOffset()
    reader.commit(end)
    reader.stop()
    return sorted((work.topic, work.span) for work in works), backlogs


def test_a_stream_over_a_pattern_plans_the_same_batch_at_a_broker_that_cannot_be_asked(
    running, monkeypatch
):
    planned = plan(stream(running, startingOffsets="earliest"))
    monkeypatch.setattr(Session, "asks_about_many", False)
    assert plan(stream(running, startingOffsets="earliest")) == planned
    assert len(planned[0]) == len(TOPICS) - 1


def test_a_poll_without_news_asks_for_no_topic_by_itself(running, monkeypatch):
    reader = stream(running, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    def alone(*_, **__):
        raise AssertionError("a request for one topic")

    for name in ("create_reader", "subscribe", "get_topic_partitions", "get_schema"):
        monkeypatch.setattr(Client, name, alone)
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    reader.commit(end)
    reader.stop()


def test_a_commit_names_only_cursors_that_move(running, monkeypatch):
    reader = stream(running, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    asked = []
    ask = Client.ask_topics

    def counted(client, questions, *arguments, **options):
        asked.append(len(questions))
        return ask(client, questions, *arguments, **options)

    monkeypatch.setattr(Client, "ask_topics", counted)
    reader.commit(end)
    reader.commit(end)
    reader.stop()
    assert asked == [len(TOPICS) - 1]


# --- tasks of several partitions ------------------------------------------------------------------


def works_of(session):
    ends = AllAtOnce(session).ends(TOPICS)
    return [
        Work(topic, Span(end._replace(entry_id=-1), end))
        for topic, end in ends.items()
        if end.entry_id >= 0
    ]


def rows(reading, works):
    return [
        (row["__topic"], row["value"])
        for batch in read_spans(reading, works)
        for row in batch.to_pylist()
    ]


def test_a_task_of_many_partitions_reads_what_a_task_for_each_would(running, session):
    works = works_of(session)
    reading = Reading(Endpoint(running.service_url), Shape.of(default_schema()))
    alone = [row for work in works for row in rows(reading, [work])]
    assert rows(reading, works) == alone
    assert len(alone) == sum(number - (number > 2) for number in range(len(TOPICS)))


def test_what_little_each_of_many_partitions_holds_is_one_batch(running, session):
    reading = Reading(Endpoint(running.service_url), Shape.of(default_schema()))
    [batch] = read_spans(reading, works_of(session))
    assert batch.num_rows == sum(number - (number > 2) for number in range(len(TOPICS)))


@pytest.mark.parametrize(("count", "most"), [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 64)])
def test_works_are_shared_out_whole_and_evenly(count, most):
    works = [Work(f"t{number}", Span(EARLIEST, Position(0, number))) for number in range(count)]
    shares = shared_out(works, most)
    assert sorted(work.span.to for share in shares for work in share) == [
        work.span.to for work in works
    ]
    assert len(shares) == min(count, most)
    assert all(count // most <= len(share) <= count // most + 1 for share in shares)


# --- spark.read -----------------------------------------------------------------------------------


def frame_tasks(running, **options):
    given = {"service.url": running.service_url, "topicsPattern": PATTERN} | options
    given = {name: value for name, value in given.items() if value is not None}
    reader = PulsarBatchReader(chosen(given, Mode.READ), Shape.of(default_schema()))
    return [task.works for task in reader.partitions()]


def test_a_frame_over_a_pattern_is_planned_without_a_request_for_one_topic(running, monkeypatch):
    def alone(*_, **__):
        raise AssertionError("a request for one topic")

    for name in ("create_reader", "subscribe", "get_topic_partitions", "get_schema"):
        monkeypatch.setattr(Client, name, alone)
    monkeypatch.setattr(batch, "MOST_TASKS", 4)
    tasks = frame_tasks(running)
    assert [len(works) for works in tasks] == [5, 5, 5, 4]
    assert {work.topic for works in tasks for work in works} == set(TOPICS[1:])
    assert all(work.is_plain for works in tasks for work in works)


def test_a_frame_is_planned_the_same_at_a_broker_that_cannot_be_asked(running, monkeypatch):
    planned = frame_tasks(running)
    monkeypatch.setattr(Session, "asks_about_many", False)
    assert sorted(map(str, frame_tasks(running))) == sorted(map(str, planned))


def test_tasks_of_a_frame_hold_no_more_than_one_is_to_read(running, monkeypatch):
    monkeypatch.setattr(batch, "MOST_TASKS", 1)
    assert len(frame_tasks(running)) == 1
    monkeypatch.setattr(batch, "TASK_BYTES", 20)
    assert 5 < len(frame_tasks(running)) <= len(TOPICS)


def test_a_topic_that_is_named_and_gone_when_a_frame_is_planned_is_missed(running, monkeypatch):
    gone = "persistent://public/default/gone-since"
    monkeypatch.setattr(Topics, "partitions", lambda *_: [gone])
    with pytest.raises(TopicNotFound, match="gone-since does not exist"):
        frame_tasks(running, topics=gone, topicsPattern=None)
