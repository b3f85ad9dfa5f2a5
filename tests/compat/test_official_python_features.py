"""More features of the official Python client; see also test_official_python_client.py."""

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema
from test_official_python_client import (
    SOON_MS,
    assert_nothing_more,
    contents_of,
    drain_in_turns,
    earliest,
    official,
    publish,
    receive_all,
)

import pybroker.testing
from pybroker.testing import RunningBroker

LONG_MS = 60_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    client = official(broker)
    yield client
    with suppress(pulsar.AlreadyClosed):  # the producer has just been fenced
        client.close()


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/features-{next(_numbers)}"


def ask(broker: RunningBroker, method: str, topic: str, path: str, body: Any = None) -> Any:
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/{path}"
    answer = httpx.request(method, url, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def send_together(producer: pulsar.Producer, messages: list[tuple[str, bytes]]) -> None:
    for key, content in messages:
        producer.send_async(content, lambda *_: None, partition_key=key)
    producer.flush()


# -- sending


@pytest.mark.feature("batches")
def test_a_batch_by_key_keeps_keys_apart(client: pulsar.Client, topic: str) -> None:
    consumer = earliest(client, topic, consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=LONG_MS,
    )
    send_together(producer, [("a", b"1"), ("b", b"2"), ("a", b"3")])
    entries = {
        (each.partition_key(), each.message_id().entry_id()) for each in receive_all(consumer, 3)
    }
    assert sorted(key for key, _ in entries) == ["a", "b"]


@pytest.mark.feature("chunks")
def test_a_large_message_travels_in_chunks(client: pulsar.Client, topic: str) -> None:
    large = bytes(range(256)) * 25_000  # an entry holds five megabytes
    consumer = earliest(client, topic)
    client.create_producer(topic, chunking_enabled=True).send(large)
    assert contents_of(receive_all(consumer, 1)) == [large]


@pytest.mark.feature("compression")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_every_compression_arrives_whole(client: pulsar.Client, topic: str, batched: bool) -> None:
    consumer = earliest(client, topic)
    content = b"pulsar " * 1000
    kinds = pulsar.CompressionType
    for kind in (kinds.NONE, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY):
        producer = client.create_producer(topic, compression_type=kind, batching_enabled=batched)
        producer.send(content)
        assert contents_of(receive_all(consumer, 1)) == [content]


@pytest.mark.feature("encryption")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_encrypted_messages_are_read_by_consumers_with_the_key(
    client: pulsar.Client, topic: str, tmp_path: Path, batched: bool
) -> None:
    keys = key_reader(tmp_path)
    consumer = earliest(client, topic, crypto_key_reader=keys)
    stranger = client.subscribe(
        topic, "stranger", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    producer = client.create_producer(
        topic, encryption_key="key", crypto_key_reader=keys, batching_enabled=batched
    )
    producer.send(b"secret")
    assert contents_of(receive_all(consumer, 1)) == [b"secret"]
    assert stranger.receive(SOON_MS).data() != b"secret"


def key_reader(directory: Path) -> pulsar.CryptoKeyReader:
    private = rsa.generate_private_key(65537, 2048)
    pem = serialization.Encoding.PEM
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    public = private.public_key().public_bytes(pem, kind)
    secret = private.private_bytes(
        pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    (directory / "public.pem").write_bytes(public)
    (directory / "private.pem").write_bytes(secret)
    return pulsar.CryptoKeyReader(str(directory / "public.pem"), str(directory / "private.pem"))


# -- subscriptions


@pytest.mark.feature("sticky hash ranges")
def test_sticky_ranges_choose_the_consumer(client: pulsar.Client, topic: str) -> None:
    def sticky(first: int, last: int) -> pulsar.Consumer:
        mode = pulsar.KeySharedMode.Sticky
        policy = pulsar.ConsumerKeySharedPolicy(mode, sticky_ranges=[(first, last)])
        kind = pulsar.ConsumerType.KeyShared
        return earliest(client, topic, consumer_type=kind, key_shared_policy=policy)

    consumers = [sticky(0, 32767), sticky(32768, 65535)]
    with pytest.raises(pulsar.ConsumerAssignError):
        sticky(30000, 40000)
    publish(client, topic, batched=False)
    assert all(drain_in_turns(consumers))


@pytest.mark.feature("several topics")
def test_several_topics_are_one_subscription(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-1", f"{topic}-2"]
    consumer = earliest(client, topics)
    for each in topics:
        client.create_producer(each).send(each.encode())
    assert set(contents_of(receive_all(consumer, 2))) == {each.encode() for each in topics}


@pytest.mark.feature("batch index acknowledgement")
def test_part_of_a_batch_may_be_acknowledged(client: pulsar.Client, topic: str) -> None:
    consumer = earliest(client, topic, batch_index_ack_enabled=True)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=LONG_MS
    )
    send_together(producer, [("k", b"%d" % number) for number in range(5)])
    for message in [consumer.receive(SOON_MS) for _ in range(5)][::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = earliest(client, topic, batch_index_ack_enabled=True)
    assert contents_of(receive_all(again, 2)) == [b"1", b"3"]
    assert_nothing_more(again)


@pytest.mark.feature("dead letter topic")
def test_what_fails_too_often_goes_to_the_dead_letter_topic(
    client: pulsar.Client, topic: str
) -> None:
    letters = earliest(client, f"{topic}-dead")
    consumer = earliest(
        client,
        topic,
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
    )
    client.create_producer(topic).send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON_MS))
    letter = letters.receive(SOON_MS)
    assert letter.data() == b"poison"
    assert letter.properties()["REAL_TOPIC"] == topic
    assert_nothing_more(consumer)


@pytest.mark.slow
@pytest.mark.feature("acknowledgement timeout")
def test_what_is_not_acknowledged_in_time_comes_again(client: pulsar.Client, topic: str) -> None:
    shared = pulsar.ConsumerType.Shared
    timeout = {"unacked_messages_timeout_ms": 10_000}  # the minimum
    consumer = earliest(client, topic, consumer_type=shared, **timeout)
    client.create_producer(topic).send(b"m")
    consumer.receive(SOON_MS)
    assert consumer.receive(SOON_MS).redelivery_count() == 1


@pytest.mark.feature("batch receive")
def test_messages_come_by_the_batch(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(5, 0, 0)
    consumer = earliest(client, topic, batch_receive_policy=policy)
    producer = client.create_producer(topic)
    for _ in range(5):
        producer.send(b"m")
    assert len(consumer.batch_receive()) == 5


# -- topics


@pytest.mark.feature("pattern subscription")
def test_a_pattern_finds_the_topics_that_are_there(client: pulsar.Client, topic: str) -> None:
    """This client checks for new topics once a minute, whatever its option says."""
    for end in ("1", "2", "other"):
        client.create_producer(f"{topic}-{end}").send(end.encode())
    consumer = earliest(client, re.compile(f"{topic}-[0-9]"))
    assert sorted(contents_of(receive_all(consumer, 2))) == [b"1", b"2"]
    assert_nothing_more(consumer)


@pytest.mark.feature("terminated topics")
def test_a_terminated_topic_takes_nothing_more(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    consumer = earliest(client, topic)
    client.create_producer(topic).send(b"last")
    ask(broker, "POST", topic, "terminate")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert contents_of(receive_all(consumer, 1)) == [b"last"]


@pytest.mark.feature("deduplication")
def test_a_sequence_id_that_was_seen_is_not_stored_again(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    consumer = earliest(client, topic)
    ask(broker, "POST", topic, "deduplicationEnabled", True)
    for numbers in [(0, 1, 2), (1, 2, 3)]:
        producer = client.create_producer(topic, producer_name="once")
        for number in numbers:
            producer.send(b"%d" % number, sequence_id=number)
        producer.close()
    assert contents_of(receive_all(consumer, 4)) == [b"0", b"1", b"2", b"3"]
    assert_nothing_more(consumer)
    assert client.create_producer(topic, producer_name="once").last_sequence_id() == 3


def send_as_a_batch(producer: pulsar.Producer, numbers: Iterable[int]) -> list[str]:
    results: list[str] = []
    for each in numbers:
        producer.send_async(
            b"%d" % each, lambda result, _: results.append(str(result)), sequence_id=each
        )
    producer.flush()
    return results


@pytest.mark.feature("deduplication")
@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZLib])
@pytest.mark.parametrize("buffer", ["logOrder", "commitOrder"])
def test_what_is_sent_again_in_other_batches_is_stored_once(
    buffer: str, compression: pulsar.CompressionType, topic: str
) -> None:
    settings = {"broker_deduplication_enabled": True, "transaction_buffer": buffer}
    with pybroker.testing.broker(**settings) as broker:
        batches = iter([range(0, 60, 10), range(20, 80, 10), range(40, 100, 10)])
        for restart in (broker.restart, broker.kill_and_restart, lambda: None):
            client = official(broker)
            options = {"batching_enabled": True, "batching_max_publish_delay_ms": LONG_MS}
            producer = client.create_producer(
                topic, producer_name="once", compression_type=compression, **options
            )
            assert send_as_a_batch(producer, next(batches)) == ["Result.Ok"] * 6
            client.close()
            restart()
        client = official(broker)
        assert client.create_producer(topic, producer_name="once").last_sequence_id() == 90
        consumer = earliest(client, topic)
        assert contents_of(receive_all(consumer, 10)) == [
            b"%d" % each for each in range(0, 100, 10)
        ]
        assert_nothing_more(consumer)
        client.close()


@pytest.mark.feature("producer and consumer properties")
def test_the_stats_show_connected_clients(
    broker: RunningBroker, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, producer_name="p", properties={"made": "by p"})
    earliest(client, topic, consumer_name="c", properties={"made": "by c"})
    stats = ask(broker, "GET", topic, "stats")
    (publisher,) = stats["publishers"]
    assert (publisher["producerName"], publisher["metadata"]) == ("p", {"made": "by p"})
    (consumer,) = stats["subscriptions"]["s"]["consumers"]
    assert (consumer["consumerName"], consumer["metadata"]) == ("c", {"made": "by c"})


@pytest.mark.feature("producer access modes")
class TestAccessModes:
    def test_an_exclusive_producer_keeps_others_out(
        self, client: pulsar.Client, topic: str
    ) -> None:
        exclusive = {"access_mode": pulsar.ProducerAccessMode.Exclusive}
        first = client.create_producer(topic, **exclusive)
        with pytest.raises(pulsar.ProducerFenced):
            client.create_producer(topic, **exclusive)
        with pytest.raises(pulsar.ProducerBusy):
            client.create_producer(topic)
        first.send(b"m")

    def test_one_that_fences_puts_the_other_out(self, client: pulsar.Client, topic: str) -> None:
        modes = pulsar.ProducerAccessMode
        first = client.create_producer(topic, access_mode=modes.Exclusive)
        second = client.create_producer(topic, access_mode=modes.ExclusiveWithFencing)
        second.send(b"m")
        with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
            first.send(b"n")


# -- records


class Person(Record):
    name = String()
    age = Integer()


class Renamed(Record):
    name = Integer()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(JsonSchema, marks=pytest.mark.feature("JSON schema")),
        pytest.param(AvroSchema, marks=pytest.mark.feature("Avro schema")),
    ],
)
@pytest.mark.feature("schema evolution")
def test_records_arrive_and_another_schema_is_refused(
    client: pulsar.Client, topic: str, kind: Any
) -> None:
    consumer = earliest(client, topic, schema=kind(Person))
    client.create_producer(topic, schema=kind(Person)).send(Person(name="Ada", age=36))
    found = consumer.receive(SOON_MS).value()
    assert (found.name, found.age) == ("Ada", 36)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=kind(Renamed))


@pytest.mark.feature("primitive schemas")
def test_single_values_arrive(client: pulsar.Client, topic: str) -> None:
    consumer = earliest(client, topic, schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("hello")
    assert consumer.receive(SOON_MS).value() == "hello"
