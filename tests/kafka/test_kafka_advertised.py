"""Addresses that Kafka's clients are told, where the port is mapped."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from kafka_produce import METADATA
from raw_kafka import RawKafka

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.listeners import BadListeners
from pybroker.broker.brokers.ownership import KafkaAddress
from pybroker.kafka.advertised import advertised_urls
from pybroker.kafka.session import Session
from pybroker.kafka.shared_nodes import SharedNodes
from pybroker.process.kafka import told_address
from pybroker.testing import RunningBroker, broker

BOTH = "PLAINTEXT://example.org:19092, SASL_SSL://example.org:19093"


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, kafka_advertised_listeners=BOTH) as started:
        yield started


def test_clients_are_told_the_advertised_address(running: RunningBroker) -> None:
    with RawKafka(running.kafka_bootstrap) as raw:
        (node,) = raw.ask(METADATA, 12, {"topics": []})["brokers"]
    assert (node["host"], node["port"]) == ("example.org", 19092)


def test_an_address_is_for_clients_with_tls_or_for_those_without() -> None:
    assert advertised_urls(BOTH) == {
        False: "kafka://example.org:19092",
        True: "kafka+ssl://example.org:19093",
    }
    assert advertised_urls("SSL://[::1]:9") == {True: "kafka+ssl://[::1]:9"}
    assert advertised_urls("") == {}


def test_a_broker_tells_the_others_of_what_it_serves_only() -> None:
    config = BrokerConfig(kafka_advertised_listeners=BOTH)
    own = "kafka://localhost:9092"
    assert told_address(config, own, "") == KafkaAddress("kafka://example.org:19092", "")
    assert told_address(BrokerConfig(), own, "") == KafkaAddress(own, "")


def test_brokers_with_one_address_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A copied configuration file: a client would reach one broker and ask it for all."""
    shared, own = "kafka://example.org:19092", "kafka://example.org:19093"

    class Members:
        def kafka_addresses(self) -> dict[str, KafkaAddress]:
            return {
                "a:1": KafkaAddress(shared),
                "b:1": KafkaAddress(shared),
                "c:1": KafkaAddress(own),
            }

    nodes = SharedNodes(cast(Any, Members()))
    for _ in range(2):
        assert [node.port for node in nodes.seen_by(Session(1))] == [19092, 19092, 19093]
    (record,) = caplog.records
    assert shared in record.message and "kafkaAdvertisedListeners" in record.message


@pytest.mark.parametrize(
    "text",
    [
        "example.org:19092",
        "HTTP://example.org:19092",
        "PLAINTEXT://:19092",
        "PLAINTEXT://example.org",
        "PLAINTEXT://example.org:0",
        "PLAINTEXT://example.org:99999",
        "PLAINTEXT://example.org:x",
        "PLAINTEXT://example.org:1/path",
        "PLAINTEXT://[::1:9092",
        "PLAINTEXT://[example.org]:9092",
        "PLAINTEXT://ann@example.org:9092",
        "PLAINTEXT://example org:9092",
        "PLAINTEXT://a:1,SASL_PLAINTEXT://b:2",
    ],
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(BadListeners, match="kafkaAdvertisedListeners"):
        advertised_urls(text)
