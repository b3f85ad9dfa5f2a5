"""Metadata through Kafka's own clients: which topics there are, and their creation."""

import logging
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from raw_kafka import RawKafka

from pybroker.client import Client
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

METADATA, CREATE_TOPICS = 3, 19
TIMEOUT_S = 30


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture(scope="module")
def librdkafka(running: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": running.kafka_bootstrap})


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def test_librdkafka_sees_the_broker(running: RunningBroker, librdkafka: AdminClient) -> None:
    found = librdkafka.list_topics(timeout=TIMEOUT_S)
    (node,) = found.brokers.values()
    assert f"{node.host}:{node.port}" == running.kafka_bootstrap
    assert found.cluster_id == "standalone"


def test_a_topic_that_is_asked_for_is_created_with_partitions(librdkafka: AdminClient) -> None:
    found = librdkafka.list_topics("made-by-asking", timeout=TIMEOUT_S)
    assert list(found.topics["made-by-asking"].partitions) == [0]
    assert "made-by-asking" in librdkafka.list_topics(timeout=TIMEOUT_S).topics


def test_kafka_python_sees_the_topics_of_a_pulsar_client(running: RunningBroker) -> None:
    with Client(running.service_url) as client:
        client.create_producer("by-pulsar").close()
    admin = KafkaAdminClient(bootstrap_servers=running.kafka_bootstrap)
    try:
        assert "by-pulsar" in admin.list_topics()
        (described,) = admin.describe_topics(["by-pulsar"])
    finally:
        admin.close()
    (partition,) = described["partitions"]
    assert (partition["partition_index"], partition["leader_id"]) == (0, 0)


def test_a_name_that_is_not_legal_is_refused(raw: RawKafka) -> None:
    for name in ("a b", "", "..", "x" * 250, "t-partition-0", "__transaction_log_0"):
        (topic,) = raw.ask(METADATA, 9, {"topics": [{"name": name}]})["topics"]
        assert topic["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION, name


def test_nothing_is_created_unless_the_client_allows_it(raw: RawKafka) -> None:
    asked = {"topics": [{"name": "not-made"}], "allow_auto_topic_creation": False}
    for _ in range(2):
        (topic,) = raw.ask(METADATA, 9, asked)["topics"]
        assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_nothing_is_created_unless_the_broker_allows_it() -> None:
    with (
        broker(kafka=True, allow_auto_topic_creation=False) as started,
        RawKafka(started.kafka_bootstrap) as raw,
    ):
        (topic,) = raw.ask(METADATA, 9, {"topics": [{"name": "not-made"}]})["topics"]
        assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_by_id_is_not_known(raw: RawKafka) -> None:
    asked = {"topics": [{"name": None, "topic_id": b"1" * 16}]}
    (topic,) = raw.ask(METADATA, 12, asked)["topics"]
    assert topic["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(14))
def test_every_version_names_the_leader(raw: RawKafka, version: int) -> None:
    (topic,) = raw.ask(METADATA, version, {"topics": [{"name": "orders"}]})["topics"]
    (partition,) = topic["partitions"]
    assert (partition["partition_index"], partition["leader_id"]) == (0, 0)
    assert partition["replica_nodes"] == partition["isr_nodes"] == [0]


def test_an_empty_list_means_all_in_version_0_and_none_later(raw: RawKafka) -> None:
    raw.ask(METADATA, 4, {"topics": [{"name": "there"}]})
    assert raw.ask(METADATA, 0, {"topics": []})["topics"]
    assert not raw.ask(METADATA, 1, {"topics": []})["topics"]
    assert raw.ask(METADATA, 1, {"topics": None})["topics"]


def test_the_namespace_is_a_setting() -> None:
    with broker(kafka=True, kafka_namespace="other") as started:
        started.call(lambda b: b.topics.tenants.create_namespace("public/other", {}))
        with RawKafka(started.kafka_bootstrap) as raw:
            raw.ask(METADATA, 4, {"topics": [{"name": "there"}]})
        assert started.call(there)


async def there(running: object) -> bool:
    topics = running.topics  # type: ignore[attr-defined]
    namespace = (await topics.lists.get("public/other")).names
    return list(namespace) == ["persistent://public/other/there-partition-0"]


def test_a_topic_is_found_by_its_id_after_a_restart() -> None:
    with broker(kafka=True) as started:
        with RawKafka(started.kafka_bootstrap) as raw:
            (made,) = raw.ask(METADATA, 12, {"topics": [{"name": "there"}]})["topics"]
        started.restart()
        asked = [{"name": None, "topic_id": topic_id} for topic_id in (b"1" * 16, made["topic_id"])]
        with RawKafka(started.kafka_bootstrap) as raw:
            unknown, known = raw.ask(METADATA, 12, {"topics": asked})["topics"]
    assert unknown["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    assert (known["name"], known["error_code"]) == ("there", ErrorCode.NONE)


def test_a_config_that_has_no_effect_takes_any_value(raw: RawKafka) -> None:
    config = {"name": "leader.replication.throttled.replicas", "value": "*"}
    topic = {"name": "throttled", "num_partitions": 1, "replication_factor": 1}
    asked = {"topics": [topic | {"configs": [config]}]}
    (answer,) = raw.ask(CREATE_TOPICS, 7, asked)["topics"]
    assert answer["error_code"] == ErrorCode.NONE
    shown = {each["name"]: each["value"] for each in answer["configs"]}
    assert shown[config["name"]] == "*"


def test_the_audit_log_says_from_where_a_topic_was_created(
    raw: RawKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = {"name": "audited", "num_partitions": 1, "replication_factor": 1}
    with caplog.at_level(logging.INFO, "pybroker.audit"):
        raw.ask(CREATE_TOPICS, 7, {"topics": [topic]})
    said = [getattr(each, "fields", {}) for each in caplog.records]
    said = [each for each in said if "audited" in str(each.get("on"))]
    host, port = raw.socket.getsockname()
    assert {each["from"] for each in said} == {f"{host}:{port}"}
