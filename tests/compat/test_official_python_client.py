"""The official Python client (its C++ core) against a broker of pybroker.testing."""

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pybroker.client
import pybroker.testing
from pybroker.base.names import TopicName

SOON_MS = 30_000
NOTHING_MS = 300
COUNT = 60
KEYS = [f"key-{number}" for number in range(7)]
KINDS = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


def official(broker: Any) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.service_url, operation_timeout_seconds=20, logger=quiet)


@pytest.fixture
def client(broker: Any) -> Iterator[pulsar.Client]:
    client = official(broker)
    yield client
    client.close()


@pytest.fixture
def ours(broker: Any) -> Iterator[pybroker.client.Client]:
    with pybroker.client.Client(broker.service_url) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/official-{next(_numbers)}"


@pytest.fixture
def partitioned(broker: Any, topic: str) -> str:
    broker.call(lambda running: running.topics.create_partitioned(TopicName.parse(topic), 4))
    return topic


def earliest(client: pulsar.Client, topic: str, **options: Any) -> pulsar.Consumer:
    options.setdefault("initial_position", pulsar.InitialPosition.Earliest)
    return client.subscribe(topic, "s", **options)


def publish(client: pulsar.Client, topic: str, batched: bool, count: int = COUNT) -> list[bytes]:
    producer = client.create_producer(
        topic, batching_enabled=batched, batching_max_publish_delay_ms=5, block_if_queue_full=True
    )
    contents = [b"%d" % number for number in range(count)]
    for number, content in enumerate(contents):
        producer.send_async(content, lambda *_: None, partition_key=KEYS[number % len(KEYS)])
    producer.flush()
    producer.close()
    return contents


def receive_all(consumer: Any, count: int = COUNT) -> list[Any]:
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(timeout_millis=SOON_MS))
        consumer.acknowledge(messages[-1])
    return messages


def contents_of(messages: list[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def assert_nothing_more(*consumers: Any) -> None:
    for consumer in consumers:
        with pytest.raises((pulsar.Timeout, pybroker.client.Timeout)):
            consumer.receive(timeout_millis=NOTHING_MS)


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.feature("exclusive", "failover", "shared", "key_shared", "batches")
class TestSubscriptionTypes:
    def test_each_message_arrives_once(
        self, client: pulsar.Client, topic: str, kind: Any, batched: bool
    ):
        consumer = earliest(client, topic, consumer_type=kind)
        sent = publish(client, topic, batched)
        received = contents_of(receive_all(consumer))
        assert sorted(received, key=int) == sent
        if kind != pulsar.ConsumerType.KeyShared:
            assert received == sent
        assert_nothing_more(consumer)

    def test_what_is_not_acknowledged_comes_again_after_a_reconnection(
        self, client: pulsar.Client, topic: str, kind: Any, batched: bool
    ):
        consumer = earliest(client, topic, consumer_type=kind)
        sent = publish(client, topic, batched)
        assert contents_of([consumer.receive(SOON_MS) for _ in range(COUNT)])
        consumer.close()
        again = earliest(client, topic, consumer_type=kind)
        assert sorted(contents_of(receive_all(again)), key=int) == sent
        again.close()
        assert_nothing_more(earliest(client, topic, consumer_type=kind))

    def test_two_subscriptions_each_get_everything(
        self, client: pulsar.Client, topic: str, kind: Any, batched: bool
    ):
        consumers = [
            client.subscribe(
                topic, name, consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest
            )
            for name in ("one", "two")
        ]
        sent = publish(client, topic, batched)
        for consumer in consumers:
            assert sorted(contents_of(receive_all(consumer)), key=int) == sent


def drain_in_turns(consumers: list[pulsar.Consumer], count: int = COUNT) -> list[list[Any]]:
    received: list[list[Any]] = [[] for _ in consumers]
    idle_turns = 0
    while sum(map(len, received)) < count:
        before = sum(map(len, received))
        for consumer, messages in zip(consumers, received, strict=True):
            with contextlib.suppress(pulsar.Timeout):
                messages.append(consumer.receive(timeout_millis=5))
                consumer.acknowledge(messages[-1])
        idle_turns = 0 if sum(map(len, received)) > before else idle_turns + 1
        assert idle_turns < 500, "messages are missing"
    return received


class TestSeveralConsumers:
    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    def test_shared_ones_divide_the_messages(
        self, client: pulsar.Client, topic: str, batched: bool
    ):
        shared = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 5}
        consumers = [earliest(client, topic, **shared) for _ in range(2)]
        sent = publish(client, topic, batched)
        received = drain_in_turns(consumers)
        together = [content for messages in received for content in contents_of(messages)]
        assert sorted(together, key=int) == sent
        if not batched:
            assert all(received)

    def test_a_key_stays_with_its_consumer_and_in_order(self, client: pulsar.Client, topic: str):
        by_key = {"consumer_type": pulsar.ConsumerType.KeyShared}
        consumers = [earliest(client, topic, **by_key) for _ in range(3)]
        publish(client, topic, batched=False)
        owners = defaultdict(set)
        for owner, messages in enumerate(drain_in_turns(consumers)):
            numbers = defaultdict(list)
            for message in messages:
                owners[message.partition_key()].add(owner)
                numbers[message.partition_key()].append(int(message.data()))
            assert all(each == sorted(each) for each in numbers.values())
        assert set(owners) == set(KEYS)
        assert all(len(each) == 1 for each in owners.values())

    def test_a_failover_takes_over_where_the_active_one_stopped(
        self, client: pulsar.Client, topic: str
    ):
        failover = {"consumer_type": pulsar.ConsumerType.Failover}
        first = earliest(client, topic, consumer_name="a", **failover)
        second = earliest(client, topic, consumer_name="b", **failover)
        sent = publish(client, topic, batched=False)
        head = contents_of(receive_all(first, 20))
        assert_nothing_more(second)
        first.close()
        assert head + contents_of(receive_all(second, COUNT - 20)) == sent

    def test_an_exclusive_one_keeps_others_out(self, client: pulsar.Client, topic: str):
        earliest(client, topic)
        with pytest.raises(pulsar.ConsumerBusy):
            earliest(client, topic)


class TestPositions:
    @pytest.mark.feature("cumulative acknowledgement")
    def test_a_cumulative_acknowledgement_covers_all_before(
        self, client: pulsar.Client, topic: str
    ):
        consumer = earliest(client, topic)
        sent = publish(client, topic, batched=False)
        messages = [consumer.receive(SOON_MS) for _ in range(COUNT)]
        consumer.acknowledge_cumulative(messages[29])
        consumer.close()
        assert contents_of(receive_all(earliest(client, topic), COUNT - 30)) == sent[30:]

    @pytest.mark.feature("negative acknowledgement")
    def test_a_negative_acknowledgement_brings_a_message_again(
        self, client: pulsar.Client, topic: str
    ):
        consumer = earliest(
            client,
            topic,
            consumer_type=pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=100,
        )
        publish(client, topic, batched=False, count=3)
        first, *others = [consumer.receive(SOON_MS) for _ in range(3)]
        consumer.negative_acknowledge(first)
        for message in others:
            consumer.acknowledge(message)
        again = consumer.receive(SOON_MS)
        assert (again.data(), again.redelivery_count()) == (first.data(), 1)
        consumer.acknowledge(again)
        assert_nothing_more(consumer)

    @pytest.mark.feature("readers")
    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    def test_a_reader_reads_to_the_end_and_goes_on(
        self, client: pulsar.Client, topic: str, batched: bool
    ):
        sent = publish(client, topic, batched)
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            messages.append(reader.read_next(SOON_MS))
        assert contents_of(messages) == sent
        middle = client.create_reader(topic, messages[30].message_id())
        assert middle.read_next(SOON_MS).data() == sent[31]
        inclusive = client.create_reader(
            topic, messages[30].message_id(), start_message_id_inclusive=True
        )
        assert inclusive.read_next(SOON_MS).data() == sent[30]

    @pytest.mark.feature("seek to a message", "seek to a time")
    def test_seeking_goes_back_to_a_message_and_to_a_time(self, client: pulsar.Client, topic: str):
        consumer = earliest(client, topic)
        sent = publish(client, topic, batched=False)
        messages = receive_all(consumer)
        consumer.seek(messages[9].message_id())
        assert consumer.receive(SOON_MS).data() == sent[10]
        consumer.seek(messages[0].publish_timestamp())
        assert consumer.receive(SOON_MS).data() == sent[0]

    @pytest.mark.feature("unsubscribing")
    def test_unsubscribing_forgets_the_position(self, client: pulsar.Client, topic: str):
        consumer = earliest(client, topic)
        sent = publish(client, topic, batched=False)
        receive_all(consumer)
        consumer.unsubscribe()
        assert contents_of(receive_all(earliest(client, topic))) == sent

    @pytest.mark.feature("last message id")
    def test_the_last_message_id_is_the_last_messages(self, client: pulsar.Client, topic: str):
        producer, consumer = client.create_producer(topic), earliest(client, topic)
        for _ in range(3):
            last = producer.send(b"x")
        assert consumer.get_last_message_id() == last


@pytest.mark.feature("partitioned topics")
class TestPartitions:
    def test_every_partition_is_used_and_consumed(self, client: pulsar.Client, partitioned: str):
        consumer = earliest(client, partitioned)
        producer = client.create_producer(partitioned)
        partitions = {producer.send(b"%d" % number).partition() for number in range(20)}
        assert partitions == {0, 1, 2, 3}
        assert sorted(int(each.data()) for each in receive_all(consumer, 20)) == list(range(20))

    def test_a_key_stays_in_its_partition(
        self, client: pulsar.Client, ours: pybroker.client.Client, partitioned: str
    ):
        for producer in (client.create_producer(partitioned), ours.create_producer(partitioned)):
            chosen = defaultdict(set)
            for key in KEYS * 3:
                chosen[key].add(producer.send(b"x", partition_key=key).partition())
            assert all(len(partitions) == 1 for partitions in chosen.values())


@pytest.mark.feature("keys and properties")
class TestWithOurClient:
    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    @pytest.mark.parametrize("compression", ["NONE", "ZLib"])
    def test_we_read_what_they_write(
        self,
        client: pulsar.Client,
        ours: pybroker.client.Client,
        topic: str,
        batched: bool,
        compression: str,
    ):
        consumer = ours.subscribe(topic, "s")
        producer = client.create_producer(
            topic,
            batching_enabled=batched,
            compression_type=getattr(pulsar.CompressionType, compression),
        )
        for number in range(20):
            producer.send_async(
                b"%d" % number,
                lambda *_: None,
                properties={"number": str(number)},
                partition_key="key",
                event_timestamp=1234,
            )
        producer.flush()
        messages = receive_all(consumer, 20)
        assert contents_of(messages) == [b"%d" % number for number in range(20)]
        assert messages[7].properties() == {"number": "7"}
        assert (messages[7].partition_key(), messages[7].event_timestamp()) == ("key", 1234)

    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    @pytest.mark.parametrize("compression", ["NONE", "ZLib"])
    def test_they_read_what_we_write(
        self,
        client: pulsar.Client,
        ours: pybroker.client.Client,
        topic: str,
        batched: bool,
        compression: str,
    ):
        consumer = client.subscribe(topic, "s")
        producer = ours.create_producer(
            topic,
            batching_enabled=batched,
            compression_type=pybroker.client.CompressionType[compression],
        )
        ids = {}
        for number in range(20):
            content = b"%d" % number
            producer.send_async(
                content,
                lambda _, message_id, content=content: ids.__setitem__(content, message_id),
                properties={"number": str(number)},
                partition_key="key",
                event_timestamp=1234,
            )
        producer.flush()
        messages = receive_all(consumer, 20)
        assert contents_of(messages) == [b"%d" % number for number in range(20)]
        assert messages[7].properties() == {"number": "7"}
        assert (messages[7].partition_key(), messages[7].event_timestamp()) == ("key", 1234)
        theirs, own = messages[7].message_id(), ids[b"7"]
        assert (theirs.ledger_id(), theirs.entry_id()) == (own.ledger_id(), own.entry_id())
        assert theirs.batch_index() == own.batch_index()

    def test_they_see_our_transactions_when_they_commit(
        self, client: pulsar.Client, ours: pybroker.client.Client, topic: str
    ):
        consumer = earliest(client, topic)
        producer = ours.create_producer(topic)
        with ours.new_transaction() as aborted:
            producer.send(b"aborted", txn=aborted)
            aborted.abort()
        with ours.new_transaction() as txn:
            producer.send(b"committed", txn=txn)
            client.create_producer(topic).send(b"plain")
            assert_nothing_more(consumer)
        assert contents_of(receive_all(consumer, 2)) == [b"committed", b"plain"]
        assert_nothing_more(consumer)

    def test_they_see_open_transactions_where_they_ask_for_it(
        self, client: pulsar.Client, ours: pybroker.client.Client, topic: str
    ):
        consumer = earliest(client, topic, properties={"isolation.level": "read_uncommitted"})
        producer = ours.create_producer(topic)
        with ours.new_transaction() as txn:
            producer.send(b"open", txn=txn)
            assert contents_of([consumer.receive(SOON_MS)]) == [b"open"]
            txn.abort()
        producer.send(b"plain")
        # Receive first: a delivery in flight during the request for redelivery would come in
        # addition.
        assert contents_of([consumer.receive(SOON_MS)]) == [b"plain"]
        consumer.redeliver_unacknowledged_messages()
        assert contents_of(receive_all(consumer, 1)) == [b"plain"]
        assert_nothing_more(consumer)


@pytest.mark.feature("broker restarts")
class TestRestart:
    """The same producer and consumer before and after a restart."""

    def receive_up_to(self, consumer: pulsar.Consumer, last: bytes) -> list[bytes]:
        received: list[bytes] = []
        while last not in received:
            received += contents_of(receive_all(consumer, 1))
        return received

    @pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
    @pytest.mark.parametrize("how", ["restart", "kill_and_restart"])
    def test_nothing_is_lost(self, tmp_path: Path, how: str, batched: bool):
        sent = [b"%d" % number for number in range(20)]
        with pybroker.testing.broker(data_dir=tmp_path / "data") as broker:
            client = official(broker)
            producer = client.create_producer("restarted", batching_enabled=batched)
            consumer = earliest(client, "restarted")
            for content in sent[:10]:
                producer.send(content)
            assert contents_of(receive_all(consumer, 5)) == sent[:5]
            getattr(broker, how)()
            for content in sent[10:]:
                producer.send(content)
            received = self.receive_up_to(consumer, sent[-1])
            # Acknowledged messages may be redelivered if the broker had no time to record that.
            assert [content for content in received if content not in sent[:5]] == sent[5:]
            client.close()

    def test_positions_are_kept(self, tmp_path: Path):
        with pybroker.testing.broker(data_dir=tmp_path / "data") as broker:
            client = official(broker)
            sent = publish(client, "kept", batched=False)
            consumer = earliest(client, "kept")
            receive_all(consumer, 30)
            consumer.close()
            broker.restart()
            assert contents_of(receive_all(earliest(client, "kept"), COUNT - 30)) == sent[30:]
            client.close()


@pytest.mark.feature("non-persistent topics")
class TestTopicsThatKeepNothing:
    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
    def test_who_is_there_gets_what_is_published(
        self, client: pulsar.Client, topic: str, kind: Any
    ):
        fleeting = topic.replace("persistent://", "non-persistent://")
        consumer = client.subscribe(fleeting, "s", consumer_type=kind)
        sent = publish(client, fleeting, batched=False)
        received = contents_of(receive_all(consumer))
        assert sorted(received, key=int) == sent
        assert_nothing_more(consumer)

    def test_partitions_and_readers(self, broker: Any, client: pulsar.Client, topic: str):
        fleeting = topic.replace("persistent://", "non-persistent://")
        name = TopicName.parse(fleeting)
        broker.call(lambda running: running.topics.create_partitioned(name, 3))
        consumer = client.subscribe(fleeting, "s")
        reader = client.create_reader(f"{fleeting}-partition-0", pulsar.MessageId.earliest)
        assert not reader.has_message_available()
        sent = publish(client, fleeting, batched=True)
        assert sorted(contents_of(receive_all(consumer)), key=int) == sent
        assert reader.read_next(SOON_MS).data() in sent

    def test_a_pattern_finds_them(self, client: pulsar.Client, topic: str):
        fleeting = topic.replace("persistent://", "non-persistent://") + "-p"
        producer = client.create_producer(fleeting)
        consumer = client.subscribe(
            re.compile(f"{fleeting}.*"),
            "s",
            regex_subscription_mode=pulsar.RegexSubscriptionMode.NonPersistentOnly,
        )
        producer.send(b"m")
        assert consumer.receive(SOON_MS).data() == b"m"
