"""Questions about many topics at once: the answers agree with those of readers and consumers."""

import itertools

import pytest

import pybroker.testing
from pybroker.base.errors import ConsumerBusy, NotAllowed, SubscriptionNotFound
from pybroker.client import (
    Client,
    ConsumerType,
    InitialPosition,
    SchemaType,
    TopicNotFound,
    TopicSchema,
)
from pybroker.client.topic_questions import TopicQuestion
from pybroker.wire import pulsar_api_pb2 as pb

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def client():
    with pybroker.testing.broker() as running, Client(running.service_url) as client:
        yield client


@pytest.fixture
def topic():
    return f"persistent://public/default/asked-{next(_NUMBERS)}"


def fill(client, topic, count):
    with client.create_producer(topic) as producer:
        return [producer.send(b"%d" % number) for number in range(count)]


def place(message_id):
    return message_id.ledger_id(), message_id.entry_id()


def one(client, question, *arguments, **options):
    [state] = client.ask_topics([question], *arguments, **options)
    return state


def test_answers_come_in_the_order_of_the_questions_however_many_they_are(client, topic):
    last = place(fill(client, topic, 3)[-1])
    questions = [TopicQuestion(topic if at % 7 == 0 else f"{topic}-{at}") for at in range(1203)]
    states = client.ask_topics(questions)
    assert [each.topic for each in states] == [each.topic for each in questions]
    assert [each.last == last for each in states] == [at % 7 == 0 for at in range(1203)]


def test_asking_creates_neither_topics_nor_subscriptions(client, topic):
    state = one(client, TopicQuestion(topic), "s")
    assert isinstance(state.error, TopicNotFound)
    assert topic not in client.get_topics_of_namespace("public/default")
    fill(client, topic, 1)
    assert one(client, TopicQuestion(topic), "s").cursor is None


def test_an_empty_topic_has_no_last_message(client, topic):
    client.create_producer(topic).close()
    assert one(client, TopicQuestion(topic, after=(-1, -1))).last == (-1, -1)


@pytest.mark.parametrize("where", [InitialPosition.Earliest, InitialPosition.Latest])
def test_a_subscription_that_is_missing_is_created_where_it_is_wanted(client, topic, where):
    ids = fill(client, topic, 3)
    state = one(client, TopicQuestion(topic), "s", where)
    with client.subscribe(topic, "s") as consumer:
        assert state.cursor == place(consumer.get_mark_delete_position())
    assert state.backlog == (3 if where is InitialPosition.Earliest else 0)
    assert state.last == place(ids[-1])


def test_a_cursor_moves_forward_only(client, topic):
    ids = fill(client, topic, 3)
    moved = TopicQuestion(topic, acknowledge=place(ids[1]))
    assert one(client, moved, "s", InitialPosition.Earliest).cursor == place(ids[1])
    back = TopicQuestion(topic, acknowledge=place(ids[0]))
    assert one(client, back, "s").cursor == place(ids[1])
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(5000).data() == b"2"


def test_a_cursor_does_not_move_over_messages_of_open_transactions(client, topic):
    [first, *_] = fill(client, topic, 1)
    with client.create_producer(topic) as producer:
        still_open = client.new_transaction()
        beyond = producer.send(b"open", txn=still_open)
        question = TopicQuestion(topic, acknowledge=place(beyond))
        assert one(client, question, "s", InitialPosition.Earliest).cursor == place(first)
        still_open.commit()
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(5000).data() == b"open"


def test_a_cursor_does_not_move_under_consumers_of_another_type(client, topic):
    ids = fill(client, topic, 3)
    question = TopicQuestion(topic, acknowledge=place(ids[1]))
    earliest = InitialPosition.Earliest
    with client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, initial_position=earliest):
        assert isinstance(one(client, question, "s").error, ConsumerBusy)
    with client.subscribe(topic, "s") as consumer:
        assert place(consumer.get_mark_delete_position()) < place(ids[0])


def test_an_acknowledgement_without_a_subscription_is_refused(client, topic):
    [first, *_] = fill(client, topic, 2)
    question = TopicQuestion(topic, acknowledge=place(first))
    assert isinstance(one(client, question).error, SubscriptionNotFound)
    assert isinstance(one(client, question, "nobody").error, SubscriptionNotFound)


def test_what_is_open_or_aborted_is_neither_last_nor_first_nor_sampled(client, topic):
    [first, *_] = fill(client, topic, 1)
    with client.create_producer(topic) as producer:
        aborted = client.new_transaction()
        producer.send(b"aborted" * 100, txn=aborted)
        aborted.abort()
        third = producer.send(b"abc")
        still_open = client.new_transaction()
        producer.send(b"open", txn=still_open)
        state = one(
            client,
            TopicQuestion(topic, after=place(first), first_from=(first.ledger_id(), 1)),
            sample_messages=100,
        )
        still_open.abort()
    assert (state.last, state.first) == (place(third), place(third))
    assert state.sample == (1, 1, 3)


def test_entries_behind_a_place_are_those_of_a_readers_backlog(client, topic):
    ids = fill(client, topic, 5)
    for at, message_id in enumerate(ids):
        reader = client.create_reader(topic, message_id, start_message_id_inclusive=True)
        behind = one(client, TopicQuestion(topic, after=place(message_id))).entries_behind
        assert behind == reader.get_backlog() - 1 == 4 - at
        reader.close()
    assert one(client, TopicQuestion(topic, after=(-1, -1))).entries_behind == 5


def test_a_sample_counts_the_messages_of_batches_unpacked(client, topic):
    with client.create_producer(topic, batching_enabled=True, batching_max_messages=10) as batches:
        for _ in range(30):
            batches.send_async(b"x" * 50, None)
    state = one(client, TopicQuestion(topic, after=(-1, -1)), sample_messages=15)
    entries, messages, size_bytes = state.sample
    assert messages >= 15 and messages < 30
    assert entries == state.entries_behind - 1 or entries == state.entries_behind
    assert size_bytes == 50 * messages


def test_topics_of_one_schema_have_one_digest(client, topic):
    record = '{"type": "record", "name": "r", "fields": [{"name": "f", "type": "int"}]}'
    schemas = {
        "a": TopicSchema(SchemaType.STRING),
        "b": TopicSchema(SchemaType.STRING),
        "c": TopicSchema(SchemaType.JSON, record),
    }
    for name, schema in schemas.items():
        client.create_producer(topic + name, schema=schema).close()
    questions = [TopicQuestion(topic + name) for name in (*schemas, "nowhere")]
    a, b, c, nowhere = (
        each.schema_digest for each in client.ask_topics(questions, schema_only=True)
    )
    assert a == b != c
    assert nowhere == b"" not in (a, c)


def test_a_broker_that_does_not_say_that_it_answers_is_not_asked(monkeypatch, topic):
    flags = pb.FeatureFlags

    def fewer(**given):
        return flags(**{k: v for k, v in given.items() if k != "supports_asking_topics"})

    monkeypatch.setattr(pb, "FeatureFlags", fewer)
    with pybroker.testing.broker() as running, Client(running.service_url) as client:
        assert not client.answers_topic_questions()
        with pytest.raises(NotAllowed, match="does not answer questions about several topics"):
            client.ask_topics([TopicQuestion(topic)])


def test_a_list_of_topics_that_did_not_change_is_not_sent_again(client, topic):
    fill(client, topic, 1)
    before = client.get_topics_of_namespace("public/default")
    assert client.get_topics_of_namespace("public/default") == before
    other = topic + "-other"
    fill(client, other, 1)
    after = client.get_topics_of_namespace("public/default")
    assert sorted(after) == sorted([*before, other])
