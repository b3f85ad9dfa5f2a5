"""Topics and their configs through the administration clients of librdkafka and kafka-python."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient
from raw_kafka import RawKafka

from pybroker.base.names import TopicName
from pybroker.broker.policies.table import (
    COMPACTION_THRESHOLD,
    INACTIVE_TOPICS,
    MAX_MESSAGE_SIZE,
    RETENTION,
)
from pybroker.client import Client
from pybroker.kafka.configs.topic_policies import COMPACTED_AFTER_BYTES
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

TIMEOUT_S = 30
DESCRIBE_TOPIC_PARTITIONS = 75
FIND_COORDINATOR = 10
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37
DESCRIBE_LOG_DIRS = 35
ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_CONFIGS = 33, 44, 32


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True) as started:
        yield started


@pytest.fixture(scope="module")
def admin(running: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": running.kafka_bootstrap})


@pytest.fixture
def raw(running: RunningBroker) -> Iterator[RawKafka]:
    with RawKafka(running.kafka_bootstrap) as connected:
        yield connected


def policies(running: RunningBroker, topic: str) -> Any:
    async def look(started: Any) -> Any:
        return started.topics.policies.of(TopicName.parse(topic))

    return running.call(look)


def done(futures: dict[Any, Any]) -> Any:
    """The result of the only future; raises its error."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def refusal(futures: dict[Any, Any]) -> Any:
    with pytest.raises(KafkaException) as refused:
        done(futures)
    return refused.value.args[0]


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    named = {key.replace("_", "."): value for key, value in config.items()}
    done(admin.create_topics([NewTopic(name, partitions, config=named)]))


def configs(admin: AdminClient, name: str) -> dict[str, ConfigEntry]:
    asked = ConfigResource(ConfigResource.Type.TOPIC, name)
    found: dict[str, ConfigEntry] = done(admin.describe_configs([asked]))
    return found


# -- topics


def test_a_topic_has_the_partitions_that_it_was_created_with(admin: AdminClient) -> None:
    create(admin, "of-three", 3)
    found = admin.list_topics("of-three", timeout=TIMEOUT_S).topics["of-three"]
    assert sorted(found.partitions) == [0, 1, 2]


def test_pulsars_client_sees_a_topic_of_kafkas(running: RunningBroker, admin: AdminClient) -> None:
    create(admin, "for-both", 2)
    with Client(running.service_url) as client:
        producer = client.create_producer("for-both")
        producer.send(b"hello")
        producer.close()

    async def partitions(started: Any) -> int:
        found: int = started.topics.tenants.partitions(TopicName.parse("for-both"))
        return found

    assert running.call(partitions) == 2


def test_a_topic_that_exists_is_not_created_again(admin: AdminClient) -> None:
    create(admin, "once")
    again = refusal(admin.create_topics([NewTopic("once", 1)]))
    assert again.code() == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("no space", 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("none", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("odd", 1, config={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("odd", 1, config={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("odd", 1, config={"retention.ms": "-2"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("odd", 1, config={"cleanup.policy": "shred"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("odd", 1, config={"cleanup.policy": ""}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_created(
    admin: AdminClient, topic: NewTopic, code: ErrorCode
) -> None:
    assert refusal(admin.create_topics([topic])).code() == code
    assert topic.topic not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_is_only_checked_is_not_created(admin: AdminClient) -> None:
    done(admin.create_topics([NewTopic("checked", 1)], validate_only=True))
    assert "checked" not in admin.list_topics(timeout=TIMEOUT_S).topics


@pytest.mark.parametrize(
    ("partitions", "replicas", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, ErrorCode.INVALID_PARTITIONS),
        (100_001, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, -2, ErrorCode.INVALID_REPLICATION_FACTOR),
        (100_000, 3, ErrorCode.NONE),
        (-1, -1, ErrorCode.NONE),
    ],
)
def test_numbers_are_checked_before_a_topic_is_created(
    raw: RawKafka, partitions: int, replicas: int, code: ErrorCode
) -> None:
    topic = {"name": "numbers", "num_partitions": partitions, "replication_factor": replicas}
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic], "validate_only": True})["topics"]
    assert answer["error_code"] == code


def test_a_topic_named_twice_in_a_request_is_refused(raw: RawKafka) -> None:
    topic = {"name": "twice", "num_partitions": 1, "replication_factor": 1}
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic, topic]})["topics"]
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


def test_the_default_number_of_partitions_is_the_brokers() -> None:
    with broker(
        kafka=True, default_num_partitions=4, allow_auto_topic_creation_type="partitioned"
    ) as started:
        admin = AdminClient({"bootstrap.servers": started.kafka_bootstrap})
        create(admin, "by-default", -1)
        found = admin.list_topics("by-default", timeout=TIMEOUT_S).topics["by-default"]
        assert len(found.partitions) == 4
        found = admin.list_topics("by-asking", timeout=TIMEOUT_S).topics["by-asking"]
        assert len(found.partitions) == 4


def test_partitions_may_be_assigned(raw: RawKafka) -> None:
    assigned = [{"partition_index": index, "broker_ids": [0]} for index in (1, 0)]
    topic = {"name": "assigned", "num_partitions": -1, "replication_factor": -1}
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic | {"assignments": assigned}]})["topics"]
    assert (answer["error_code"], answer["num_partitions"]) == (ErrorCode.NONE, 2)
    wrong = [{"partition_index": 1, "broker_ids": [0]}]
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic | {"assignments": wrong}]})["topics"]
    assert answer["error_code"] == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_deleted_topic_is_gone_although_it_was_in_use(
    running: RunningBroker, admin: AdminClient
) -> None:
    create(admin, "going")
    with Client(running.service_url) as client:
        client.create_producer("going")
        done(admin.delete_topics(["going"]))
    assert "going" not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert refusal(admin.delete_topics(["going"])).code() == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_without_partitions_can_be_deleted(
    running: RunningBroker, admin: AdminClient
) -> None:
    with Client(running.service_url) as client:
        client.create_producer("single").close()
    done(admin.delete_topics(["single"]))
    assert "single" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_can_be_deleted_by_its_id(raw: RawKafka) -> None:
    topic = {"name": "by-id", "num_partitions": 1, "replication_factor": 1}
    (created,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic]})["topics"]
    (described,) = raw.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": "by-id"}]})["topics"]
    assert created["topic_id"] == described["topic_id"] != bytes(16)
    asked = {"topics": [{"name": None, "topic_id": created["topic_id"]}]}
    (answer,) = raw.ask(DELETE_TOPICS, 6, asked)["responses"]
    assert (answer["name"], answer["error_code"]) == ("by-id", ErrorCode.NONE)
    asked = {"topics": [{"name": None, "topic_id": b"1" * 16}]}
    (answer,) = raw.ask(DELETE_TOPICS, 6, asked)["responses"]
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_grows(admin: AdminClient) -> None:
    create(admin, "growing", 2)
    done(admin.create_partitions([NewPartitions("growing", 5)]))
    found = admin.list_topics("growing", timeout=TIMEOUT_S).topics["growing"]
    assert len(found.partitions) == 5


def test_a_topic_neither_shrinks_nor_stays(admin: AdminClient) -> None:
    create(admin, "steady", 2)
    for count in (1, 2):
        refused = refusal(admin.create_partitions([NewPartitions("steady", count)]))
        assert refused.code() == ErrorCode.INVALID_PARTITIONS


def test_there_is_a_limit_of_partitions(raw: RawKafka) -> None:
    topic = {"name": "many", "num_partitions": 100_001, "replication_factor": 1}
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic]})["topics"]
    assert answer["error_code"] == ErrorCode.INVALID_PARTITIONS
    raw.ask(CREATE_TOPICS, 7, {"topics": [topic | {"num_partitions": 1}]})
    grown = {"name": "many", "count": 100_001, "assignments": None}
    (answer,) = raw.ask(CREATE_PARTITIONS, 3, {"topics": [grown]})["results"]
    assert answer["error_code"] == ErrorCode.INVALID_PARTITIONS


@pytest.mark.kafka_client("kafka-python", "administration")
def test_kafka_python_creates_describes_and_deletes(running: RunningBroker) -> None:
    client = KafkaAdminClient(bootstrap_servers=running.kafka_bootstrap)
    try:
        client.create_topics({"by-python": {"num_partitions": 2, "replication_factor": 1}})
        (described,) = client.describe_topics(["by-python"])
        assert len(described["partitions"]) == 2
        client.delete_topics(["by-python"])
        assert "by-python" not in client.list_topics()
    finally:
        client.close()


def test_topics_are_described_a_page_at_a_time(raw: RawKafka, admin: AdminClient) -> None:
    for name, count in (("page-a", 3), ("page-b", 2)):
        create(admin, name, count)
    named = {"topics": [{"name": "page-b"}, {"name": "page-a"}, {"name": "page-c"}]}
    pages, cursor = [], None
    for _ in range(3):
        asked = named | {"response_partition_limit": 2, "cursor": cursor}
        answer = raw.ask(DESCRIBE_TOPIC_PARTITIONS, 0, asked)
        pages.append(
            [
                (topic["name"], [each["partition_index"] for each in topic["partitions"]])
                for topic in answer["topics"]
            ]
        )
        cursor = answer["next_cursor"]
    assert pages == [
        [("page-a", [0, 1])],
        [("page-a", [2]), ("page-b", [0])],
        [("page-b", [1]), ("page-c", [])],
    ]
    assert cursor is None and answer["topics"][1]["error_code"] == ErrorCode(3)


# -- the cluster


def test_the_cluster_is_described(admin: AdminClient) -> None:
    found = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)
    assert (found.cluster_id, [node.id for node in found.nodes]) == ("standalone", [0])
    assert {each.name for each in found.authorized_operations} >= {"CREATE", "ALTER", "DESCRIBE"}


@pytest.mark.parametrize("version", range(7))
def test_this_broker_coordinates_everything(raw: RawKafka, version: int) -> None:
    asked = {"key": "group", "coordinator_keys": ["group"], "key_type": 0}
    answer = raw.ask(FIND_COORDINATOR, version, asked)
    found = answer["coordinators"][0] if version >= 4 else answer
    assert (found["error_code"], found["node_id"]) == (ErrorCode.NONE, 0)


def test_a_coordinator_of_nothing_is_not_found(raw: RawKafka) -> None:
    asked = {"coordinator_keys": ["", "group"], "key_type": 0}
    first, second = raw.ask(FIND_COORDINATOR, 4, asked)["coordinators"]
    assert (first["error_code"], second["error_code"]) == (ErrorCode.INVALID_GROUP_ID, 0)
    asked = {"coordinator_keys": ["group"], "key_type": 7}
    (found,) = raw.ask(FIND_COORDINATOR, 4, asked)["coordinators"]
    assert found["error_code"] == ErrorCode.INVALID_REQUEST


def test_the_size_of_a_partition_is_told(running: RunningBroker, raw: RawKafka) -> None:
    with Client(running.service_url) as client:
        producer = client.create_producer("measured")
        producer.send(b"x" * 1000)
        asked = {"topics": [{"topic": "measured", "partitions": [0]}]}
        (found,) = raw.ask(DESCRIBE_LOG_DIRS, 5, asked)["results"]
        everything = raw.ask(DESCRIBE_LOG_DIRS, 1, {"topics": None})["results"][0]["topics"]
    (topic,) = found["topics"]
    (partition,) = topic["partitions"]
    assert topic["name"] == "measured" and partition["partition_size"] > 1000
    assert "measured" in [each["name"] for each in everything]


# -- configs


def test_a_topic_of_kafkas_keeps_its_messages_a_week_and_stays(
    running: RunningBroker, admin: AdminClient
) -> None:
    create(admin, "of-a-week")
    admin.list_topics("of-a-week-too", timeout=TIMEOUT_S)
    for name in ("of-a-week", "of-a-week-too"):
        found = policies(running, name)
        week = {"retentionTimeInMinutes": 7 * 24 * 60, "retentionSizeInMB": -1}
        assert found[RETENTION] == week
        assert not found[INACTIVE_TOPICS]["deleteWhileInactive"]
    shown = configs(admin, "of-a-week")
    assert shown["retention.ms"].value == str(7 * 24 * 3600 * 1000)
    assert shown["retention.ms"].is_default


def test_configs_become_policies(running: RunningBroker, admin: AdminClient) -> None:
    create(
        admin,
        "with-configs",
        retention_ms="90000",
        retention_bytes="1500000",
        max_message_bytes="1000",
        cleanup_policy="compact,delete",
    )
    found = policies(running, "with-configs-partition-0")
    assert found[RETENTION] == {"retentionTimeInMinutes": 2, "retentionSizeInMB": 2}
    assert (found[MAX_MESSAGE_SIZE], found[COMPACTION_THRESHOLD]) == (1000, COMPACTED_AFTER_BYTES)
    shown = configs(admin, "with-configs")
    assert shown["retention.ms"].value == "90000" and not shown["retention.ms"].is_default
    assert shown["cleanup.policy"].value == "compact,delete"


def test_a_compacted_topic_keeps_the_last_of_each_key_for_ever(
    running: RunningBroker, admin: AdminClient
) -> None:
    create(admin, "compacted", cleanup_policy="compact")
    found = policies(running, "compacted")
    assert found[RETENTION] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def test_a_policy_that_was_changed_since_shows_as_config(
    running: RunningBroker, admin: AdminClient
) -> None:
    create(admin, "changed-since", retention_ms="90000")
    hour = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 5}

    async def change(started: Any) -> None:
        name = TopicName.parse("changed-since")
        await started.topics.policies.set_for_topic(name, RETENTION, hour)

    running.call(change)
    shown = configs(admin, "changed-since")
    assert shown["retention.ms"].value == "3600000"
    assert shown["retention.bytes"].value == str(5 * 1024**2)


def alter(admin: AdminClient, name: str, *changes: tuple[str, str | None, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=getattr(AlterConfigOpType, operation))
        for key, value, operation in changes
    ]
    asked = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    done(admin.incremental_alter_configs([asked]))


@pytest.mark.kafka_client("confluent-kafka", "administration")
def test_single_configs_are_set_removed_and_extended(
    running: RunningBroker, admin: AdminClient
) -> None:
    create(admin, "altered", retention_ms="90000")
    alter(admin, "altered", ("min.insync.replicas", "2", "SET"))
    alter(admin, "altered", ("cleanup.policy", "compact", "APPEND"))
    shown = configs(admin, "altered")
    assert shown["min.insync.replicas"].value == "2"
    assert shown["cleanup.policy"].value == "delete,compact"
    assert policies(running, "altered")[COMPACTION_THRESHOLD] == COMPACTED_AFTER_BYTES
    alter(admin, "altered", ("cleanup.policy", "compact", "SUBTRACT"))
    alter(admin, "altered", ("retention.ms", None, "DELETE"))
    shown = configs(admin, "altered")
    assert shown["cleanup.policy"].value == "delete"
    assert shown["retention.ms"].is_default
    assert policies(running, "altered")[COMPACTION_THRESHOLD] == 0
    assert policies(running, "altered")[RETENTION]["retentionTimeInMinutes"] == 7 * 24 * 60


@pytest.mark.parametrize(
    "change",
    [
        ("no.such", "1", "SET"),
        ("retention.ms", "x", "SET"),
        ("retention.ms", "1", "APPEND"),
        ("cleanup.policy", "delete", "SUBTRACT"),
    ],
)
def test_a_config_that_cannot_be_changes_nothing(
    admin: AdminClient, change: tuple[str, str, str]
) -> None:
    if "kept" not in admin.list_topics(timeout=TIMEOUT_S).topics:
        create(admin, "kept", retention_ms="90000")
    with pytest.raises(KafkaException) as refused:
        alter(admin, "kept", change)
    assert refused.value.args[0].code() == ErrorCode.INVALID_CONFIG
    assert configs(admin, "kept")["retention.ms"].value == "90000"


def test_the_older_request_replaces_all_configs(raw: RawKafka, admin: AdminClient) -> None:
    create(admin, "replaced", retention_ms="90000")
    asked = {"resource_type": 2, "resource_name": "replaced"}
    new = [{"name": "segment.bytes", "value": "1000000"}]
    for only_check, shown in ((True, "90000"), (False, "604800000")):
        body = {"resources": [asked | {"configs": new}], "validate_only": only_check}
        (answer,) = raw.ask(ALTER_CONFIGS, 2, body)["responses"]
        assert answer["error_code"] == ErrorCode.NONE
        assert configs(admin, "replaced")["retention.ms"].value == shown
    assert configs(admin, "replaced")["segment.bytes"].value == "1000000"


def test_the_configs_of_a_topic_without_partitions_are_its_policies(
    running: RunningBroker, admin: AdminClient, raw: RawKafka
) -> None:
    with Client(running.service_url) as client:
        client.create_producer("by-policies").close()
    assert configs(admin, "by-policies")["retention.ms"].value == "0"
    asked = {"resource_type": 2, "resource_name": "by-policies", "configs": []}
    (answer,) = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [asked]})["responses"]
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    assert "pybroker admin" in answer["error_message"]


def test_properties_that_others_have_set_stay(running: RunningBroker, admin: AdminClient) -> None:
    create(admin, "with-properties", retention_ms="90000")
    name = TopicName.parse("with-properties")

    async def add(started: Any) -> None:
        await started.topics.partitioned.change_properties(name, lambda now: {**now, "owner": "me"})

    async def properties(started: Any) -> Any:
        return started.topics.tenants.partitioned_properties(name)

    running.call(add)
    alter(admin, "with-properties", ("retention.ms", "1000", "SET"))
    assert running.call(properties) == {"owner": "me", "kafka.retention.ms": "1000"}


def test_a_broker_shows_its_configs_and_they_are_not_changed(
    admin: AdminClient, raw: RawKafka
) -> None:
    found = done(admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "0")]))
    assert found["auto.create.topics.enable"].value == "true"
    assert found["message.max.bytes"].value == str(5 * 1024**2)
    assert all(entry.is_read_only for entry in found.values())
    for kind, name, code in ((4, "7", ErrorCode.INVALID_REQUEST), (9, "x", ErrorCode(42))):
        asked = {"resources": [{"resource_type": kind, "resource_name": name}]}
        (answer,) = raw.ask(DESCRIBE_CONFIGS, 4, asked)["results"]
        assert answer["error_code"] == code
    changed = {"resource_type": 4, "resource_name": "0", "configs": []}
    (answer,) = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [changed]})["responses"]
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST


def test_the_configs_of_a_topic_that_does_not_exist(raw: RawKafka) -> None:
    asked = {"resources": [{"resource_type": 2, "resource_name": "nowhere"}]}
    (answer,) = raw.ask(DESCRIBE_CONFIGS, 4, asked)["results"]
    assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
