"""The official Java client's subscriptions, positions, topics, producers and records."""

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from official_java import NOTHING_S, OfficialClient, official_client
from py4j.protocol import Py4JJavaError

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = pytest.mark.java

_numbers = itertools.count(1)
COUNT = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def official(broker: RunningBroker) -> Iterator[OfficialClient]:
    with official_client(broker.service_url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"persistent://public/default/java-topics-{next(_numbers)}"


def ask(broker: RunningBroker, method: str, name: str, path: str, body: Any = None) -> Any:
    url = f"{broker.admin_url}/admin/v2/{name.replace('://', '/')}/{path}"
    answer = httpx.request(method, url, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def publish(
    official: OfficialClient, name: str, count: int = COUNT, **settings: Any
) -> list[bytes]:
    producer = official.producer(name, **settings)
    contents = [b"%d" % number for number in range(count)]
    for number, content in enumerate(contents):
        producer.newMessage().key(f"key-{number % 7}").value(content).sendAsync()
    producer.flush()
    producer.close()
    return contents


def take(official: OfficialClient, consumer: Any, count: int) -> list[Any]:
    messages = []
    for _ in range(count):
        messages.append(official.receive(consumer))
        assert messages[-1] is not None, f"only {len(messages) - 1} of {count} came"
        consumer.acknowledge(messages[-1].getMessageId())
    return messages


def contents(messages: list[Any]) -> list[bytes]:
    return [bytes(message.getData()) for message in messages]


def take_in_turns(official: OfficialClient, consumers: list[Any]) -> list[list[Any]]:
    """Receive in turns: consumers without a message come first."""
    taken: list[list[Any]] = [[] for _ in consumers]
    for _ in range(1000):
        for consumer, messages in zip(consumers, taken, strict=True):
            if message := consumer.receive(*official.ms(5)):
                consumer.acknowledge(message.getMessageId())
                messages.append(message)
        if sum(map(len, taken)) == COUNT:
            return taken
    raise AssertionError("messages are missing")


# -- subscriptions


@pytest.mark.feature("exclusive")
def test_an_exclusive_consumer_gets_all_in_order_and_keeps_others_out(
    official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s")
    with pytest.raises(Py4JJavaError, match="ConsumerBusy"):
        official.consumer(name, "s")
    sent = publish(official, name)
    assert contents(take(official, consumer, COUNT)) == sent


@pytest.mark.feature("failover")
def test_a_failover_takes_over_where_the_active_one_stopped(
    official: OfficialClient, name: str
) -> None:
    first = official.consumer(name, "s", "Failover", consumerName="a")
    second = official.consumer(name, "s", "Failover", consumerName="b")
    sent = publish(official, name, enableBatching=False)  # a whole batch would be redelivered
    head = contents(take(official, first, 5))
    assert official.receive(second, NOTHING_S) is None
    first.close()
    assert head + contents(take(official, second, COUNT - 5)) == sent


@pytest.mark.feature("shared")
def test_shared_consumers_divide_the_messages(official: OfficialClient, name: str) -> None:
    consumers = [official.consumer(name, "s", "Shared", receiverQueueSize=3) for _ in range(2)]
    sent = publish(official, name, enableBatching=False)
    taken = take_in_turns(official, consumers)
    assert all(taken)
    assert sorted(contents([*taken[0], *taken[1]]), key=int) == sent


@pytest.mark.feature("key_shared")
def test_a_key_stays_with_its_consumer_and_in_order(official: OfficialClient, name: str) -> None:
    consumers = [official.consumer(name, "s", "Key_Shared") for _ in range(3)]
    publish(official, name, enableBatching=False)
    owners: dict[str, int] = {}
    last: dict[str, int] = {}
    for owner, messages in enumerate(take_in_turns(official, consumers)):
        for message in messages:
            key, number = message.getKey(), int(bytes(message.getData()))
            assert owners.setdefault(key, owner) == owner
            assert number > last.get(key, -1)
            last[key] = number
    assert len(owners) == 7


@pytest.mark.feature("sticky hash ranges")
def test_sticky_ranges_choose_the_consumer(official: OfficialClient, name: str) -> None:
    consumers = [
        official.consumer(name, "s", "Key_Shared", keySharedPolicy=official.sticky(*ends))
        for ends in [(0, 32767), (32768, 65535)]
    ]
    with pytest.raises(Py4JJavaError, match="ConsumerAssign"):
        policy = official.sticky(30000, 40000)
        official.consumer(name, "s", "Key_Shared", keySharedPolicy=policy)
    publish(official, name, enableBatching=False)
    assert all(take_in_turns(official, consumers))


@pytest.mark.feature("sticky hash ranges")
def test_readers_get_the_messages_of_their_hash_ranges(official: OfficialClient, name: str) -> None:
    sent = publish(official, name, enableBatching=False)
    read: list[list[bytes]] = []
    for ends in [(0, 32767), (32768, 65535)]:
        reader = official.reader(name, keyHashRange=official.hash_range(*ends))
        read.append([])
        while message := reader.readNext(*official.ms(1000 * NOTHING_S)):
            read[-1] += contents([message])
    assert all(read)
    assert sorted(read[0] + read[1], key=int) == sent


@pytest.mark.feature("several topics")
def test_several_topics_are_one_subscription(official: OfficialClient, name: str) -> None:
    topics = [f"{name}-1", f"{name}-2"]
    consumer = official.consumer(topics, "s")
    for topic in topics:
        official.producer(topic).send(topic.encode())
    assert set(contents(take(official, consumer, 2))) == {topic.encode() for topic in topics}


@pytest.mark.feature("unsubscribing")
def test_unsubscribing_forgets_the_position(official: OfficialClient, name: str) -> None:
    sent = publish(official, name)
    consumer = official.consumer(name, "s")
    take(official, consumer, COUNT)
    consumer.unsubscribe()
    assert contents(take(official, official.consumer(name, "s"), COUNT)) == sent


# -- positions


@pytest.mark.feature("readers")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_a_reader_reads_to_the_end_and_from_a_message_on(
    official: OfficialClient, name: str, batched: bool
) -> None:
    sent = publish(official, name, enableBatching=batched)
    reader, messages = official.reader(name), []
    while reader.hasMessageAvailable():
        messages.append(reader.readNext())
    assert contents(messages) == sent
    middle = messages[7].getMessageId()
    assert bytes(official.reader(name, middle).readNext().getData()) == sent[8]
    inclusive = official.reader(name, middle, startMessageIdInclusive=())
    assert bytes(inclusive.readNext().getData()) == sent[7]


@pytest.mark.feature("seek to a message", "seek to a time", "last message id")
def test_seeking_goes_back_to_a_message_and_to_a_time(official: OfficialClient, name: str) -> None:
    consumer = official.consumer(name, "s")
    sent = publish(official, name, enableBatching=False)
    last = official.producer(name).newMessage().value(b"last").send()
    messages = take(official, consumer, COUNT + 1)
    consumer.seek(messages[9].getMessageId())
    assert contents(take(official, consumer, COUNT - 9)) == [*sent[10:], b"last"]
    consumer.seek(messages[0].getPublishTime())
    assert contents(take(official, consumer, 1)) == sent[:1]
    ids = consumer.getLastMessageIds()
    assert [each.getEntryId() for each in ids] == [last.getEntryId()]


# -- topics


@pytest.mark.feature("partitioned topics")
def test_every_partition_is_used_and_a_key_stays_in_its_partition(
    broker: RunningBroker, official: OfficialClient, name: str
) -> None:
    ask(broker, "PUT", name, "partitions", 4)
    assert official.client.getPartitionsForTopic(name).get().size() == 4
    consumer = official.consumer(name, "s")
    producer = official.producer(name, enableBatching=False)
    used = {producer.send(b"m").getPartitionIndex() for _ in range(8)}
    assert used == {0, 1, 2, 3}
    keyed = [producer.newMessage().key("k").value(b"m").send() for _ in range(3)]
    assert len({each.getPartitionIndex() for each in keyed}) == 1
    take(official, consumer, 11)


@pytest.mark.feature("terminated topics")
def test_a_terminated_topic_takes_nothing_more_and_consumers_hear_of_its_end(
    broker: RunningBroker, official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s")
    producer = official.producer(name)
    producer.send(b"last")
    ask(broker, "POST", name, "terminate")
    with pytest.raises(Py4JJavaError, match="TopicTerminated"):
        producer.send(b"more")
    with pytest.raises(Py4JJavaError, match="TopicTerminated"):
        official.producer(name)
    assert contents(take(official, consumer, 1)) == [b"last"]
    broker.wait_until(consumer.hasReachedEndOfTopic)


@pytest.mark.feature("deduplication")
def test_a_sequence_id_that_was_seen_is_not_stored_again(
    broker: RunningBroker, official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s")
    ask(broker, "POST", name, "deduplicationEnabled", True)
    for numbers in [(0, 1, 2), (1, 2, 3)]:
        producer = official.producer(name, producerName="once", enableBatching=False)
        for number in numbers:
            producer.newMessage().sequenceId(number).value(b"%d" % number).send()
        producer.close()
    assert contents(take(official, consumer, 4)) == [b"0", b"1", b"2", b"3"]
    assert official.receive(consumer, NOTHING_S) is None
    assert official.producer(name, producerName="once").getLastSequenceId() == 3


@pytest.mark.feature("producer and consumer properties")
def test_the_stats_show_connected_clients(
    broker: RunningBroker, official: OfficialClient, name: str
) -> None:
    official.producer(name, producerName="p", property=("made", "by p"))
    of_subscription = {"subscriptionProperties": {"made": "by s"}}
    official.consumer(name, "s", consumerName="c", property=("made", "by c"), **of_subscription)
    stats = ask(broker, "GET", name, "stats")
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["metadata"]) == ("p", {"made": "by p"})
    subscription = stats["subscriptions"]["s"]
    assert subscription["subscriptionProperties"] == {"made": "by s"}
    (consumer,) = subscription["consumers"]
    assert (consumer["consumerName"], consumer["metadata"]) == ("c", {"made": "by c"})
    assert "Java" in consumer["clientVersion"]


@pytest.mark.feature("priority levels")
def test_a_consumer_of_lower_priority_waits_until_others_have_no_room(
    official: OfficialClient, name: str
) -> None:
    first, second = (
        official.consumer(name, "s", "Shared", priorityLevel=level, receiverQueueSize=5)
        for level in (0, 1)
    )
    publish(official, name, 8, enableBatching=False)
    last = [official.receive(second) for _ in range(3)]
    assert contents(last) == [b"5", b"6", b"7"]
    assert contents(take(official, first, 5)) == [b"%d" % number for number in range(5)]


# -- producers


class TestAccessModes:
    pytestmark = pytest.mark.feature("producer access modes")

    def producer(self, official: OfficialClient, name: str, mode: str) -> Any:
        modes = official.api.ProducerAccessMode
        return official.producer(name, accessMode=getattr(modes, mode))

    def test_an_exclusive_producer_keeps_others_out(
        self, official: OfficialClient, name: str
    ) -> None:
        first = self.producer(official, name, "Exclusive")
        with pytest.raises(Py4JJavaError, match="ProducerFenced"):
            self.producer(official, name, "Exclusive")
        with pytest.raises(Py4JJavaError, match="ProducerBusy"):
            official.producer(name)
        first.send(b"m")

    def test_one_that_waits_follows_the_one_that_leaves(
        self, official: OfficialClient, name: str
    ) -> None:
        first = self.producer(official, name, "WaitForExclusive")
        waiting = official.client.newProducer().topic(name)
        mode = official.api.ProducerAccessMode.WaitForExclusive
        second = waiting.accessMode(mode).createAsync()
        first.send(b"first")
        assert not second.isDone()
        first.close()
        second.get().send(b"second")

    def test_one_that_fences_puts_the_other_out(self, official: OfficialClient, name: str) -> None:
        first = self.producer(official, name, "Exclusive")
        self.producer(official, name, "ExclusiveWithFencing").send(b"m")
        with pytest.raises(Py4JJavaError, match=r"ProducerFenced|AlreadyClosed"):
            first.send(b"n")


# -- compaction


def compact(broker: RunningBroker, name: str) -> None:
    ask(broker, "PUT", name, "compaction")
    broker.wait_until(lambda: ask(broker, "GET", name, "compaction")["status"] == "SUCCESS")


@pytest.mark.feature("compaction", "table view")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_readers_consumers_and_table_views_get_the_last_of_each_key(
    broker: RunningBroker, official: OfficialClient, name: str, batched: bool
) -> None:
    producer = official.producer(name, enableBatching=batched)
    for key, value in [("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4"), ("b", None)]:
        producer.newMessage().key(key).value(value).sendAsync()
    producer.flush()
    compact(broker, name)
    producer.newMessage().key("d").value(b"5").send()
    reader, found = official.reader(name, readCompacted=True), []
    while reader.hasMessageAvailable():
        found.append(reader.readNext())
    consumer = official.consumer(name, "s", readCompacted=True)
    for messages in (found, take(official, consumer, 4)):  # what deletes b is kept for a time
        assert [each.getKey() for each in messages] == ["c", "a", "b", "d"]
        left = [each for each in messages if each.getData() is not None]
        assert contents(left) == [b"3", b"4", b"5"]
    view = official.client.newTableView(official.schemas.BYTES).topic(name).create()
    assert {key: view.get(key) for key in "abcd"} == {"a": b"4", "b": None, "c": b"3", "d": b"5"}
    view.close()


# -- records


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("JSON", marks=pytest.mark.feature("JSON schema")),
        pytest.param("AVRO", marks=pytest.mark.feature("Avro schema")),
    ],
)
def test_records_arrive(official: OfficialClient, name: str, kind: str) -> None:
    schema = official.record_schema(kind, name="STRING", age="INT32")
    consumer = official.consumer(name, "s", schema=schema)
    record = schema.newRecordBuilder().set("name", "Ada").set("age", 36).build()
    official.producer(name, schema).send(record)
    found = official.receive(consumer).getValue()
    assert (found.getField("name"), found.getField("age")) == ("Ada", 36)


@pytest.mark.feature("schema evolution")
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_compatible_schema_is_the_next_version_and_another_is_refused(
    official: OfficialClient, name: str, kind: str
) -> None:
    consumer = official.consumer(name, "s", schema=official.schemas.AUTO_CONSUME())
    for fields in [{"name": "STRING"}, {"name": "STRING", "age": "INT32?"}]:
        schema = official.record_schema(kind, **fields)
        record = schema.newRecordBuilder().set("name", "Ada").build()
        official.producer(name, schema).send(record)
    versions = [bytes(each.getSchemaVersion())[-1] for each in take(official, consumer, 2)]
    assert versions == [0, 1]
    with pytest.raises(Py4JJavaError, match="IncompatibleSchema"):
        official.producer(name, official.record_schema(kind, name="INT32"))


@pytest.mark.feature("primitive schemas")
def test_single_values_arrive(official: OfficialClient, name: str) -> None:
    schemas = official.schemas
    for number, (schema, value) in enumerate(
        [(schemas.STRING, "hello"), (schemas.INT64, 1 << 40), (schemas.DOUBLE, 2.5)]
    ):
        consumer = official.consumer(f"{name}-{number}", "s", schema=schema)
        official.producer(f"{name}-{number}", schema).send(value)
        assert official.receive(consumer).getValue() == value
