"""The plan of `spark.read`, and the reads of its tasks, with a broker in this process; no Spark."""

import json
from unittest.mock import MagicMock

import pytest

from pybroker.base.errors import NotAllowed, TopicNotFound
from pybroker.client import Client, CompressionType, InitialPosition, encode_batch
from pybroker.spark.columns.shape import Shape, default_schema
from pybroker.spark.options import Mode, chosen
from pybroker.spark.reading import splitting
from pybroker.spark.reading.batch import PulsarBatchReader
from pybroker.spark.reading.topics import Topics
from pybroker.spark.session import position_of

TOPIC = "persistent://public/default/in"


@pytest.fixture
def client(pulsar_broker):
    with Client(pulsar_broker.service_url) as client:
        client.subscribe(TOPIC, "keep", initial_position=InitialPosition.Earliest).close()
        yield client


@pytest.fixture
def reader(pulsar_broker):
    def reader(**options):
        given = {"service.url": pulsar_broker.service_url}
        given |= {"topic": TOPIC} if not {"topics", "topicsPattern"} & options.keys() else {}
        return PulsarBatchReader(chosen(given | options, Mode.READ), Shape.of(default_schema()))

    return reader


def tasks(reader):
    return [
        [row["value"] for batch in reader.read(task) for row in batch.to_pylist()]
        for task in reader.partitions()
    ]


def values(reader):
    return [value for task in tasks(reader) for value in task]


def publish(client, count, per_entry=1, topic=TOPIC):
    """Publish numbers; returns the id of each number's entry."""
    producer = client.create_producer(topic)
    numbers = [b"%d" % number for number in range(count)]
    entries = [numbers[first : first + per_entry] for first in range(0, count, per_entry)]
    return [
        place
        for entry in entries
        for place in [producer.send_batch(encode_batch(entry))] * len(entry)
    ]


def numbers(*spans):
    return [b"%d" % number for first, end in spans for number in range(first, end)]


def test_everything_is_read_from_the_first_message_to_the_last(client, reader):
    publish(client, 250, per_entry=7)
    assert values(reader()) == numbers((0, 250))


def test_a_topic_without_messages_is_an_empty_frame(client, reader):
    assert values(reader()) == []


def test_what_comes_after_the_plan_is_not_read(client, reader):
    publish(client, 3)
    planned = reader()
    plan = planned.partitions()
    publish(client, 3)
    assert sum(batch.num_rows for task in plan for batch in planned.read(task)) == 3


def test_ids_are_the_first_and_the_last_message_read(client, reader):
    places = publish(client, 20)
    given = {
        "startingOffsets": json.dumps({TOPIC: list(places[4].serialize())}),
        "endingOffsets": json.dumps({TOPIC: str(position_of(places[9]))}),
    }
    assert values(reader(**given)) == numbers((4, 10))


def test_ids_within_a_batch_cut_it(client, reader):
    publish(client, 30, per_entry=10)
    ids = client.create_reader(TOPIC, client_id()).batch_read(30, 5000)
    given = {
        "startingOffsets": json.dumps(
            {TOPIC: [b - 256 if b > 127 else b for b in ids[3].message_id().serialize()]}
        ),
        "endingOffsets": json.dumps({TOPIC: list(ids[25].message_id().serialize())}),
    }
    assert values(reader(**given)) == numbers((3, 26))


def client_id():
    from pybroker.client import MessageId

    return MessageId.earliest


def test_times_are_where_reading_begins_and_ends(client, reader, pulsar_broker):
    publish(client, 5)
    read = client.create_reader(TOPIC, client_id())
    times = [message.publish_timestamp() for message in read.batch_read(5, 5000)]
    assert values(reader(startingTime=str(times[0]))) == numbers((0, 5))
    assert values(reader(startingTime=str(times[-1] + 1))) == []
    assert values(reader(endingTime=str(times[0]))) == []
    assert values(reader(endingTime=json.dumps({TOPIC: times[-1] + 1}))) == numbers((0, 5))


def test_several_topics_and_patterns(client, reader):
    for name in ("orders-eu", "orders-us", "other"):
        client.subscribe(name, "keep", initial_position=InitialPosition.Earliest)
        publish(client, 3, topic=name)
    assert len(values(reader(topics="orders-eu, other"))) == 6
    assert len(values(reader(topicsPattern="orders-.*"))) == 6
    assert len(values(reader(topicsPattern="persistent://public/default/o.*"))) == 9


QUERY = "0f3c9a4e-51c2-4bb0-8b7e-6d8f1c3a2b10"


def test_no_pattern_means_the_topics_on_which_the_sink_keeps_its_notes(client, reader):
    """Neither those of earlier versions, unless it names them."""
    own = f"__spark-query-{QUERY}", "__spark-jobs"
    former = f"spark-query-{QUERY}", "spark-jobs"
    users = "spark-query-of-mine", "sparks"
    for name in (*own, *former, *users):
        client.subscribe(name, "keep", initial_position=InitialPosition.Earliest)
        publish(client, 1, topic=name)
    assert len(values(reader(topicsPattern="persistent://public/default/.*"))) == 2
    assert len(values(reader(topicsPattern="persistent://public/default/spark-.*"))) == 3
    assert len(values(reader(topic=own[0]))) == 1


def test_a_topic_that_is_named_with_one_of_its_partitions_is_read_once():
    session = MagicMock(partitions=lambda topic, create=True: ["a-partition-0"])
    assert Topics(("a", "a-partition-0")).partitions(session) == ["a-partition-0"]


@pytest.mark.parametrize("topics", ["gone", "in, gone"])
def test_a_topic_that_does_not_exist_is_an_error_and_is_not_made(client, reader, topics):
    publish(client, 3)
    with pytest.raises(TopicNotFound, match=r"public/default/gone does not exist: "):
        values(reader(topics=topics))
    assert client.get_topics_of_namespace("public/default") == [TOPIC]
    wanted = 3 if "in" in topics.split(", ") else 0
    assert len(values(reader(topics=topics, waitingForNonExistedTopic="true"))) == wanted


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_place_in_a_topic_that_is_not_read_is_refused(reader, option):
    place = json.dumps({"orders-ue": "0:1"})
    for topics in ({"topics": "orders-eu, orders-us"}, {"topicsPattern": "orders-.s"}):
        with pytest.raises(NotAllowed, match=f"{option} mentions orders-ue.*orders-"):
            reader(**topics, **{option: place})
    with pytest.raises(NotAllowed, match="endingTime mentions out"):
        reader(endingTime=json.dumps({"in": 5, "out": 5}))


@pytest.mark.parametrize("name", ["in", TOPIC, "in-partition-3"])
def test_a_place_is_that_of_a_topic_or_of_one_of_its_partitions(reader, name):
    reader(startingOffsets=json.dumps({name: "0:1"}))
    reader(startingOffsets=json.dumps({name: "0:1"}), topicsPattern="i.")
    reader(startingTime=json.dumps({name: 5}), topics="in-partition-3, in")


def test_uncommitted_and_aborted_messages_are_never_read(client, reader):
    publish(client, 2)
    producer = client.create_producer(TOPIC)
    aborted = client.new_transaction()
    producer.send(b"aborted", txn=aborted)
    aborted.abort()
    publish(client, 2)
    still_open = client.new_transaction()
    producer.send(b"open", txn=still_open)
    assert values(reader()) == numbers((0, 2), (0, 2))
    assert values(reader(minPartitions="3")) == numbers((0, 2), (0, 2))
    still_open.abort()


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZLib])
def test_a_chunked_message_is_one_row_where_its_last_chunk_is(client, reader, codec):
    publish(client, 3)
    producer = client.create_producer(TOPIC, chunking_enabled=True, compression_type=codec)
    large = bytes(range(256)) * 50_000
    place = producer.send(large)
    publish(client, 3)
    assert values(reader()) == [*numbers((0, 3)), large, *numbers((0, 3))]
    if codec is CompressionType.NONE:  # compressed, it is not chunked
        behind = json.dumps({TOPIC: f"{place.ledger_id()}:{place.entry_id()}"})
        assert values(reader(startingOffsets=behind)) == [large, *numbers((0, 3))]


# --- several tasks -------------------------------------------------------------------------------


def test_a_partition_is_split_into_ranges_of_entries(client, reader, monkeypatch):
    monkeypatch.setattr(splitting, "_LEAST_ENTRIES", 2)
    publish(client, 100)
    parts = tasks(reader(minPartitions="4"))
    assert len(parts) == 4
    assert [value for part in parts for value in part] == numbers((0, 100))
    assert max(map(len, parts)) <= 26


def test_a_split_falls_on_aborted_messages_without_loss(client, reader, monkeypatch):
    monkeypatch.setattr(splitting, "_LEAST_ENTRIES", 2)
    producer = client.create_producer(TOPIC)
    for _ in range(5):
        publish(client, 10)
        with client.new_transaction() as txn:
            producer.send(b"x", txn=txn)
        aborted = client.new_transaction()
        for _ in range(8):
            producer.send(b"never", txn=aborted)
        aborted.abort()
    parts = tasks(reader(minPartitions="7"))
    assert len(parts) > 3
    assert sorted(v for part in parts for v in part) == sorted(numbers((0, 10)) * 5 + [b"x"] * 5)


@pytest.mark.parametrize(("per_entry", "most"), [(1, 5), (7, 50), (50, 20)])
def test_no_task_reads_more_records_than_it_may(client, reader, per_entry, most):
    """An entry is not divided."""
    publish(client, 350, per_entry=per_entry)
    found = tasks(reader(maxRecordsPerPartition=str(most)))
    assert sorted(value for task in found for value in task) == sorted(numbers((0, 350)))
    assert max(map(len, found)) <= max(most, per_entry)
    assert len(found) <= 350 / max(most // per_entry, 1) / per_entry + 1


def test_little_is_not_split(client, reader):
    publish(client, 10)
    assert len(reader(minPartitions="8").partitions()) == 1


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "account"),
    [
        ({"startingOffsets": "latest"}, "cannot begin at 'latest'"),
        ({"endingOffsets": "earliest"}, "no messages before"),
        ({"startingOffsets": "earliest", "startingTime": "5"}, "both set the beginning"),
        ({"endingOffsets": "latest", "endingTime": "5"}, "both set the end"),
        ({"topics": "a", "topicsPattern": "b"}, "topic, topics and topicsPattern, not"),
        ({"topicsPattern": "(("}, "not a regular expression"),
    ],
)
def test_options_that_make_no_sense_are_refused(reader, options, account):
    with pytest.raises(NotAllowed, match=account):
        reader(**options)


@pytest.mark.parametrize("given", ["[1, 2]", '"x"', "7", '"1"', "[]"])
def test_what_is_no_message_id_is_refused(client, reader, given):
    publish(client, 1)
    with pytest.raises(NotAllowed, match=r"not a message id|a message id must be"):
        reader(startingOffsets=f'{{"{TOPIC}": {given}}}').partitions()


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(NotAllowed, match="There is no column price"):
        Shape.of(default_schema().add("price", "integer"))
