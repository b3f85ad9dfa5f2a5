"""Features of the official Java client besides transactions."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from official_java import OfficialClient, official_client
from py4j.protocol import Py4JJavaError

import pybroker.testing

pytestmark = pytest.mark.java

_numbers = itertools.count(1)
KINDS = ["Exclusive", "Failover", "Shared", "Key_Shared"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with pybroker.testing.broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def official(broker: Any) -> Iterator[OfficialClient]:
    with official_client(broker.service_url) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"public/default/java-{next(_numbers)}"


@pytest.mark.feature("non-persistent topics")
@pytest.mark.parametrize("kind", KINDS)
def test_topics_that_keep_nothing(official: OfficialClient, name: str, kind: str) -> None:
    topic = f"non-persistent://{name}"
    consumer = official.consumer(topic, "s", kind)
    producer = official.producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
    assert official.take(consumer, 5) == [b"%d" % number for number in range(5)]


@pytest.mark.feature("pattern subscription")
def test_a_pattern_hears_of_a_new_topic_without_asking(official: OfficialClient, name: str) -> None:
    """Otherwise it would check again only after a minute."""
    consumer = official.pattern_consumer(f"persistent://{name}-.*", "s")
    producer = official.producer(f"persistent://{name}-late")
    producer.send(b"m")
    assert official.take(consumer, 1) == [b"m"]


class TestSchemas:
    @pytest.mark.feature("schema read from the topic")
    def test_what_takes_any_schema_reads_what_was_written_with_one(
        self, official: OfficialClient, name: str
    ) -> None:
        schemas = official.schemas
        producer = official.client.newProducer(schemas.STRING).topic(name).create()
        consumer = official.consumer(name, "s", schema=schemas.AUTO_CONSUME())
        producer.send("hello")
        message = official.receive(consumer)
        assert message.getValue().getNativeObject() == "hello"

    @pytest.mark.feature("schema read from the topic")
    def test_what_produces_any_schema_takes_the_topics(
        self, official: OfficialClient, name: str
    ) -> None:
        schemas = official.schemas
        consumer = official.consumer(name, "s", schema=schemas.STRING)
        official.client.newProducer(schemas.STRING).topic(name).create().close()
        anything = official.client.newProducer(schemas.AUTO_PRODUCE_BYTES()).topic(name).create()
        anything.send(b"bytes")
        assert official.receive(consumer).getValue() == "bytes"

    @pytest.mark.feature("key and value")
    @pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
    def test_key_and_value(self, official: OfficialClient, name: str, encoding: str) -> None:
        schema = official.key_value_schema(encoding)
        consumer = official.consumer(name, "s", schema=schema)
        producer = official.client.newProducer(schema).topic(name).create()
        producer.send(official.key_value("k", "v"))
        value = official.receive(consumer).getValue()
        assert (value.getKey(), value.getValue()) == ("k", "v")

    @pytest.mark.feature("schema evolution")
    def test_another_type_is_refused(self, official: OfficialClient, name: str) -> None:
        schemas = official.schemas
        official.client.newProducer(schemas.STRING).topic(name).create()
        with pytest.raises(Py4JJavaError, match="IncompatibleSchema"):
            official.client.newProducer(schemas.INT32).topic(name).create()
        with pytest.raises(Py4JJavaError, match="IncompatibleSchema"):
            official.consumer(name, "s", schema=schemas.INT32)
