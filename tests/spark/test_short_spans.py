"""A task's reads of many partitions are the same, with one request for all or one reader each."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pybroker.base.errors import NotAllowed
from pybroker.client import (
    Client,
    CompressionType,
    CryptoError,
    CryptoKeyReader,
    InitialPosition,
    Outgoing,
    SchemaType,
    TopicSchema,
    encode_batch,
)
from pybroker.client.aio import Client as AioClient
from pybroker.client.consuming.entry_reader import EntryReader
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.endpoint import Endpoint
from pybroker.spark.offsets import Position, Span, Stretch
from pybroker.spark.reading.spans import Reading, read_spans
from pybroker.spark.reading.survey import AllAtOnce
from pybroker.spark.reading.work import Work
from pybroker.spark.replay import InputLost
from pybroker.spark.schemas import values as typed_values
from pybroker.spark.session import Session
from pybroker.testing import broker

COUNT = 9
TOPICS = [f"persistent://public/default/short-{number}" for number in range(COUNT)]
RECORD = '{"type": "record", "name": "r", "fields": [{"name": "f", "type": "int"}%s]}'
MORE = ', {"name": "g", "type": ["null", "string"], "default": null}'


@pytest.fixture
def running():
    with broker() as running:
        yield running


@pytest.fixture
def client(running):
    with Client(running.service_url) as client:
        yield client


def works_of(running, topics=TOPICS):
    session = Session(Client(running.service_url))
    try:
        ends = AllAtOnce(session).ends(topics)
    finally:
        session.close()
    return [Work(topic, Span(Position(-1, -1), end)) for topic, end in ends.items()]


def rows(running, works, shape=None, **options):
    reading = Reading(Endpoint(running.service_url), shape or Shape.of(default_schema()), **options)
    return [row for batch in read_spans(reading, works) for row in batch.to_pylist()]


def alone(running, works, shape=None, **options):
    return [row for work in works for row in rows(running, [work], shape, **options)]


@pytest.fixture
def no_reader(monkeypatch):
    async def refused(reader):
        raise AssertionError(f"a reader of {reader.topic}")

    monkeypatch.setattr(EntryReader, "open", refused)


def by_topic(found):
    return sorted(found, key=lambda row: (row["__topic"], row["__messageId"]))


def fill(client, topics=TOPICS):
    """Publish plain, batched and compressed messages with all kinds of metadata."""
    for number, topic in enumerate(topics):
        message = Outgoing(
            b"v%d" % number,
            partition_key=f"k{number}",
            properties={"n": str(number), "a": "b"} if number % 2 else None,
            event_timestamp=1000 + number,
        )
        with client.create_producer(topic, compression_type=CompressionType.LZ4) as producer:
            producer.send(b"compressed %d" % number)
            producer.send_batch(encode_batch([message, Outgoing(b"second")] * (number % 3 + 1)))
        with client.create_producer(topic) as producer:
            producer.send(b"plain %d" % number)


def test_rows_are_the_same_and_nobody_opens_a_reader(running, client, request):
    fill(client)
    works = works_of(running)
    wanted = alone(running, works)
    request.getfixturevalue("no_reader")
    assert rows(running, works) == wanted
    assert {row["__topic"] for row in wanted} == set(TOPICS)


def test_message_ids_name_the_partition():
    settings = {"allow_auto_topic_creation_type": "partitioned", "default_num_partitions": 3}
    with broker(**settings) as running, Client(running.service_url) as client:
        for topic in TOPICS[:2]:
            client.create_producer(topic).close()
        topics = [each for topic in TOPICS[:2] for each in client.get_topic_partitions(topic)]
        fill(client, topics)
        works = works_of(running, topics)
        assert len(works) == 6
        assert rows(running, works) == alone(running, works)


def test_a_broker_that_hands_nothing_over_is_read_by_readers(running, client, monkeypatch):
    fill(client)
    works = works_of(running)
    wanted = rows(running, works)
    ask = AioClient.ask_topics

    async def knows_no_reading(self, *arguments, read_bytes=0, **options):
        return await ask(self, *arguments, **options)

    async def knows_nothing(*_, **__):
        raise NotAllowed("This broker does not answer questions about several topics at once")

    for answer in (knows_no_reading, knows_nothing):
        monkeypatch.setattr(AioClient, "ask_topics", answer)
        assert rows(running, works) == wanted


@pytest.mark.slow
def test_a_task_asks_for_hundreds_of_topics_at_a_time(running, client, monkeypatch, no_reader):
    works = []
    for number in range(300):
        topic = f"persistent://public/default/counted-{number}"
        with client.create_producer(topic) as producer:
            sent = producer.send(b"%d" % number)
        to = Position(sent.ledger_id(), sent.entry_id())
        works.append(Work(topic, Span(to._replace(entry_id=-1), to)))
    asked = []
    ask = AioClient.ask_topics

    async def counted(self, questions, *arguments, **options):
        asked.append(len(questions))
        return await ask(self, questions, *arguments, **options)

    monkeypatch.setattr(AioClient, "ask_topics", counted)
    reading = Reading(Endpoint(running.service_url), Shape.of(default_schema()))
    [batch] = read_spans(reading, works)
    assert batch.num_rows == 300
    assert asked == [100, 200]


def test_what_does_not_fit_into_one_answer_comes_in_more(running, client, no_reader):
    for topic in TOPICS:
        with client.create_producer(topic) as producer:
            producer.send(bytes(300_000))
    works = works_of(running)
    assert [len(row["value"]) for row in rows(running, works)] == [300_000] * COUNT


def test_chunks_encryption_and_large_spans_go_by_readers(running, client, tmp_path):
    fill(client)
    with client.create_producer(TOPICS[1], chunking_enabled=True) as producer:
        producer.send(b"c" * 6_000_000)
    with client.create_producer(TOPICS[2]) as producer:
        for _ in range(400):
            producer.send_async(b"many", None)
        producer.flush()
    works = works_of(running)
    assert by_topic(rows(running, works)) == by_topic(alone(running, works))
    keys = key_reader(tmp_path)
    client.create_producer(TOPICS[3], encryption_key="k", crypto_key_reader=keys).send(b"secret")
    with pytest.raises(CryptoError, match="is encrypted"):
        rows(running, works_of(running))


def key_reader(folder):
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    (folder / "private.pem").write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = private.public_key()
    (folder / "public.pem").write_bytes(
        public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return CryptoKeyReader(str(folder / "public.pem"), str(folder / "private.pem"))


def test_a_task_leaves_out_what_was_acknowledged_and_what_its_range_cuts(running, client):
    fill(client)
    works = works_of(running)
    first = works[0].span.to._replace(entry_id=0)
    works[0] = Work(TOPICS[0], works[0].span, acknowledged=[Stretch(first, first)])
    works[1] = Work(TOPICS[1], works[1].span, last_index=0)
    assert by_topic(rows(running, works)) == by_topic(alone(running, works))
    assert not any(row["value"] == b"compressed 0" for row in rows(running, works))


def test_what_is_gone_is_missed(running, client):
    fill(client)
    works = works_of(running)
    client.close()
    with Client(running.service_url) as another:
        another.subscribe(TOPICS[4], "s", initial_position=InitialPosition.Earliest).unsubscribe()
    beyond = works[4].span.to._replace(entry_id=works[4].span.to.entry_id + 5)
    works[4] = Work(TOPICS[4], Span(works[4].span.after, beyond))
    works[5] = Work("persistent://public/default/short-gone", Span(Position(0, -1), Position(0, 0)))
    for work in (works[4], works[5]):
        with pytest.raises(InputLost, match="were deleted"):
            rows(running, [*works[:3], work])
    left = rows(running, works, fail_on_data_loss=False)
    assert {row["__topic"] for row in left} == set(TOPICS) - {TOPICS[5]}


def test_the_same_version_of_a_schema_means_what_it_means_in_its_own_topic(running, client):
    """Each topic counts its versions from 0."""
    old = TopicSchema(SchemaType.JSON, RECORD % "")
    new = TopicSchema(SchemaType.JSON, RECORD % MORE)
    for number, topic in enumerate(TOPICS):
        if number % 3:
            with client.create_producer(topic, schema=old) as producer:
                producer.send(b'{"f": %d}' % number)
        with client.create_producer(topic, schema=new) as producer:
            producer.send(b'{"f": %d, "g": "x"}' % number)
    schema = typed_values.TopicSchema.of(client.get_schema(TOPICS[0]))
    shape = Shape.of(default_schema(schema), schema)
    works = works_of(running)
    wanted = alone(running, works, shape)
    assert rows(running, works, shape) == wanted
    assert {(row["f"], row["g"]) for row in wanted} == {
        (number, g) for number in range(COUNT) for g in ("x", None) if g or number % 3
    }
