"""Sending and acknowledging with the official Java client."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from official_java import NOTHING_S, OfficialClient, official_client
from test_official_go_client import SETTINGS

import pybroker.testing

pytestmark = pytest.mark.java

_numbers = itertools.count(1)
COMPRESSIONS = ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]
LONG_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker(http=True, **SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def official(broker: Any) -> Iterator[OfficialClient]:
    with official_client(broker.service_url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"persistent://public/default/java-messages-{next(_numbers)}"


def assert_nothing_more(official: OfficialClient, consumer: Any) -> None:
    assert official.receive(consumer, NOTHING_S) is None


# -- sending


@pytest.mark.feature("batches")
def test_a_batch_is_one_entry_of_many_messages(official: OfficialClient, name: str) -> None:
    consumer = official.consumer(name, "s")
    producer = official.producer(name, batchingMaxPublishDelay=official.ms(LONG_MS))
    for number in range(10):
        producer.sendAsync(b"%d" % number)
    producer.flush()
    ids = [official.receive(consumer).getMessageId() for _ in range(10)]
    assert len({each.getEntryId() for each in ids}) == 1
    assert [each.getBatchIndex() for each in ids] == list(range(10))


@pytest.mark.feature("batches")
def test_a_batch_by_key_keeps_keys_apart(official: OfficialClient, name: str) -> None:
    consumer = official.consumer(name, "s", "Key_Shared")
    producer = official.producer(
        name,
        batcherBuilder=official.api.BatcherBuilder.KEY_BASED,
        batchingMaxPublishDelay=official.ms(LONG_MS),
    )
    for key in "aba":
        producer.newMessage().key(key).value(b"m").sendAsync()
    producer.flush()
    messages = [official.receive(consumer) for _ in range(3)]
    entries = {(each.getKey(), each.getMessageId().getEntryId()) for each in messages}
    assert sorted(key for key, _ in entries) == ["a", "b"]


@pytest.mark.feature("chunks")
def test_a_large_message_travels_in_chunks(official: OfficialClient, name: str) -> None:
    large = bytes(range(256)) * 4000
    consumer = official.consumer(name, "s")
    producer = official.producer(
        name, enableBatching=False, enableChunking=True, chunkMaxMessageSize=100_000
    )
    producer.send(large)
    producer.send(b"after")
    first, second = official.receive(consumer), official.receive(consumer)
    assert (bytes(first.getData()), bytes(second.getData())) == (large, b"after")
    assert second.getMessageId().getEntryId() > 10


@pytest.mark.feature("compression")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_every_compression_arrives_whole(
    official: OfficialClient, name: str, batched: bool
) -> None:
    consumer = official.consumer(name, "s")
    content = b"pulsar " * 1000
    for each in COMPRESSIONS:
        kind = getattr(official.api.CompressionType, each)
        producer = official.producer(name, compressionType=kind, enableBatching=batched)
        producer.send(content)
    assert official.take(consumer, len(COMPRESSIONS)) == [content] * len(COMPRESSIONS)


@pytest.mark.feature("keys and properties")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_keys_properties_and_times_arrive(
    official: OfficialClient, name: str, batched: bool
) -> None:
    consumer = official.consumer(name, "s")
    message = official.producer(name, enableBatching=batched).newMessage()
    message = message.key("k").orderingKey(b"o").property("p", "q").eventTime(1234)
    message.sequenceId(7).value(b"m").send()
    found = official.receive(consumer)
    assert (found.getKey(), bytes(found.getOrderingKey())) == ("k", b"o")
    assert (found.getProperty("p"), found.getEventTime()) == ("q", 1234)
    assert found.getSequenceId() == 7


@pytest.mark.feature("broker entry metadata")
def test_the_brokers_index_and_time_come_with_a_message(
    official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s")
    producer = official.producer(name, enableBatching=False)
    for _ in range(2):
        producer.send(b"m")
    messages = [official.receive(consumer) for _ in range(2)]
    assert [each.getIndex().get() for each in messages] == [0, 1]
    assert all(each.getBrokerPublishTime().isPresent() for each in messages)


@pytest.mark.feature("delayed delivery")
@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_delayed_messages_come_in_the_order_of_their_times(
    official: OfficialClient, name: str, kind: str
) -> None:
    consumer = official.consumer(name, "s", kind)
    producer = official.producer(name)
    at = time.time_ns() // 1_000_000 + 4000
    producer.newMessage().value(b"after").deliverAfter(*official.ms(7000)).sendAsync()
    producer.newMessage().value(b"at").deliverAt(at).sendAsync()
    producer.send(b"now")
    assert official.take(consumer, 3) == [b"now", b"at", b"after"]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """The files of a public and a private key."""
    private = rsa.generate_private_key(65537, 2048)
    pem = serialization.Encoding.PEM
    public, secret = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(
        private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    secret.write_bytes(
        private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return f"file://{public}", f"file://{secret}"


@pytest.mark.feature("encryption")
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_encrypted_messages_are_read_by_consumers_with_the_key(
    official: OfficialClient, name: str, keys: tuple[str, str], batched: bool
) -> None:
    public, private = keys
    consumer = official.consumer(name, "s", defaultCryptoKeyReader=private)
    consume = official.api.ConsumerCryptoFailureAction.CONSUME
    stranger = official.consumer(name, "stranger", cryptoFailureAction=consume)
    producer = official.producer(
        name, enableBatching=batched, addEncryptionKey="key", defaultCryptoKeyReader=public
    )
    producer.send(b"secret")
    assert official.take(consumer, 1) == [b"secret"]
    unread = official.receive(stranger)
    assert bytes(unread.getData()) != b"secret"
    assert unread.getEncryptionCtx().isPresent()


# -- acknowledging


@pytest.mark.feature("negative acknowledgement")
def test_a_negative_acknowledgement_brings_a_message_again(
    official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s", "Shared", negativeAckRedeliveryDelay=official.ms(100))
    official.producer(name).send(b"m")
    consumer.negativeAcknowledge(official.receive(consumer))
    again = official.receive(consumer)
    assert (bytes(again.getData()), again.getRedeliveryCount()) == (b"m", 1)


@pytest.mark.feature("cumulative acknowledgement", "acknowledgement receipts")
def test_a_cumulative_acknowledgement_covers_all_before(
    official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s", isAckReceiptEnabled=True)
    producer = official.producer(name, enableBatching=False)  # a whole batch would be redelivered
    for number in range(10):
        producer.sendAsync(b"%d" % number)
    producer.flush()
    middle = [official.receive(consumer) for _ in range(6)][-1]
    consumer.acknowledgeCumulative(middle)
    consumer.close()
    again = official.consumer(name, "s")
    assert official.take(again, 4) == [b"6", b"7", b"8", b"9"]


@pytest.mark.feature("batch index acknowledgement", "acknowledgement receipts")
def test_part_of_a_batch_may_be_acknowledged(official: OfficialClient, name: str) -> None:
    settings = {"enableBatchIndexAcknowledgment": True, "isAckReceiptEnabled": True}
    consumer = official.consumer(name, "s", **settings)
    producer = official.producer(name, batchingMaxPublishDelay=official.ms(LONG_MS))
    for number in range(5):
        producer.sendAsync(b"%d" % number)
    producer.flush()
    for message in [official.receive(consumer) for _ in range(5)][::2]:
        consumer.acknowledge(message.getMessageId())
    consumer.close()
    again = official.consumer(name, "s", **settings)
    assert official.take(again, 2) == [b"1", b"3"]
    assert_nothing_more(official, again)


@pytest.mark.feature("dead letter topic")
def test_what_fails_too_often_goes_to_the_dead_letter_topic(
    official: OfficialClient, name: str
) -> None:
    letters = official.consumer(f"{name}-dead", "s")
    policy = official.api.DeadLetterPolicy.builder().maxRedeliverCount(1)
    consumer = official.consumer(
        name,
        "s",
        "Shared",
        negativeAckRedeliveryDelay=official.ms(100),
        deadLetterPolicy=policy.deadLetterTopic(f"{name}-dead").build(),
    )
    official.producer(name).send(b"poison")
    for _ in range(2):
        consumer.negativeAcknowledge(official.receive(consumer))
    letter = official.receive(letters)
    assert bytes(letter.getData()) == b"poison"
    assert letter.getProperty("REAL_TOPIC") == name
    assert_nothing_more(official, consumer)


@pytest.mark.feature("retry topic", "delayed delivery")
def test_what_is_reconsumed_later_comes_again_from_the_retry_topic(
    official: OfficialClient, name: str
) -> None:
    consumer = official.consumer(name, "s", "Shared", enableRetry=True)
    official.producer(name).send(b"later")
    consumer.reconsumeLater(official.receive(consumer), *official.ms(500))
    again = official.receive(consumer)
    assert bytes(again.getData()) == b"later"
    assert again.getTopicName().endswith("-s-RETRY")
    assert again.getProperty("RECONSUMETIMES") == "1"


@pytest.mark.feature("acknowledgement timeout")
def test_what_is_not_acknowledged_in_time_comes_again(official: OfficialClient, name: str) -> None:
    consumer = official.consumer(name, "s", "Shared", ackTimeout=official.ms(1000))
    official.producer(name).send(b"m")
    official.receive(consumer)
    again = official.receive(consumer)
    assert (bytes(again.getData()), again.getRedeliveryCount()) == (b"m", 1)


@pytest.mark.feature("batch receive")
def test_messages_come_by_the_batch(official: OfficialClient, name: str) -> None:
    policy = official.api.BatchReceivePolicy.builder().maxNumMessages(5)
    consumer = official.consumer(name, "s", batchReceivePolicy=policy.build())
    producer = official.producer(name)
    for _ in range(5):
        producer.sendAsync(b"m")
    producer.flush()
    messages = consumer.batchReceive()
    assert messages.size() == 5
    consumer.acknowledge(messages)
