"""Permissions of Kafka's clients: the same table as for Pulsar's."""

from collections.abc import Iterator
from typing import Any

import pytest
from credentials import TOKEN_SETTINGS, token
from kafka_produce import batch, fetched, produce
from raw_kafka import RawKafka
from share_words import ShareMember, set_config, share_beat, topic_id

from pybroker.base.names import TopicName
from pybroker.broker.namespaces.permissions import OnTopic
from pybroker.kafka.errors import ErrorCode
from pybroker.kafka.permissions import Operation
from pybroker.testing import RunningBroker, broker

METADATA, FIND_COORDINATOR, HANDSHAKE, AUTHENTICATE = 3, 10, 17, 36
CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DELETE_GROUPS = 19, 20, 37, 42
DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 32, 44, 35
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75
NAMESPACE = "public/default"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningBroker]:
    settings = TOKEN_SETTINGS | {"authorization_enabled": True, "super_user_roles": ("admin",)}
    with broker(kafka=True, **settings) as started:
        with client(started, "admin") as admin:
            for name in ("open", "shut"):
                create(admin, name)
        started.call(_grant)
        yield started


async def _grant(started: Any) -> None:
    opened = TopicName.parse("open")
    await started.permissions.grant_on_topic(opened, "writer", ["produce"])
    await started.permissions.grant_on_topic(opened, "reader", ["consume"])
    await started.permissions.grant(NAMESPACE, "anywhere", ["consume"])
    await started.permissions.set_subscription_roles(NAMESPACE, "private", ["anywhere"])
    await started.topics.tenants.update_tenant(
        "public", {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    )


def client(started: RunningBroker, role: str) -> RawKafka:
    raw = RawKafka(started.kafka_bootstrap)
    raw.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"})
    login = b"\0any\0" + token(role).encode()
    assert raw.ask(AUTHENTICATE, 2, {"auth_bytes": login})["error_code"] == ErrorCode.NONE
    return raw


def create(raw: RawKafka, name: str) -> int:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    (answer,) = raw.ask(CREATE_TOPICS, 7, {"topics": [topic]})["topics"]
    code: int = answer["error_code"]
    return code


def listed(raw: RawKafka) -> list[str]:
    return [topic["name"] for topic in raw.ask(METADATA, 12, {"topics": None})["topics"]]


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("admin", ["open", "shut"]),
        ("boss", ["open", "shut"]),
        ("anywhere", ["open", "shut"]),
        ("writer", ["open"]),
        ("reader", ["open"]),
        ("nobody", []),
    ],
)
def test_a_role_sees_the_topics_that_it_may_use(
    running: RunningBroker, role: str, names: list[str]
) -> None:
    with client(running, role) as raw:
        assert listed(raw) == names
        described = raw.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []})["topics"]
        assert [topic["name"] for topic in described] == names


@pytest.mark.parametrize("name", ["shut", "missing"])
def test_a_refusal_does_not_say_whether_the_topic_exists(running: RunningBroker, name: str) -> None:
    with client(running, "writer") as raw:
        (topic,) = raw.ask(METADATA, 12, {"topics": [{"name": name}]})["topics"]
        assert topic["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        (topic,) = raw.ask(DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [{"name": name}]})["topics"]
        assert topic["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        asked = {"resources": [{"resource_type": 2, "resource_name": name}]}
        (result,) = raw.ask(DESCRIBE_CONFIGS, 4, asked)["results"]
        assert result["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with client(running, "admin") as raw:
        assert "missing" not in listed(raw)


def test_only_admins_change_topics(running: RunningBroker) -> None:
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with client(running, "writer") as raw:
        assert create(raw, "new") == refused
        (answer,) = raw.ask(DELETE_TOPICS, 5, {"topic_names": ["open"]})["responses"]
        assert answer["error_code"] == refused
        grown = {"name": "open", "count": 3, "assignments": None}
        (answer,) = raw.ask(CREATE_PARTITIONS, 3, {"topics": [grown]})["results"]
        assert answer["error_code"] == refused
        changed = {"resource_type": 2, "resource_name": "open", "configs": []}
        (answer,) = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [changed]})["responses"]
        assert answer["error_code"] == refused
    with client(running, "boss") as raw:
        assert create(raw, "of-the-boss") == ErrorCode.NONE
        (answer,) = raw.ask(DELETE_TOPICS, 5, {"topic_names": ["of-the-boss"]})["responses"]
        assert answer["error_code"] == ErrorCode.NONE


def test_what_concerns_the_cluster_is_for_superusers(running: RunningBroker) -> None:
    for role, code in (("boss", ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ("admin", ErrorCode.NONE)):
        with client(running, role) as raw:
            answer = raw.ask(LIST_CONFIG_RESOURCES, 1, {"resource_types": []})
            assert answer["error_code"] == code
            assert raw.ask(DESCRIBE_LOG_DIRS, 3, {"topics": None})["error_code"] == code
            asked = {"resources": [{"resource_type": 4, "resource_name": "0"}]}
            (result,) = raw.ask(DESCRIBE_CONFIGS, 4, asked)["results"]
            assert result["error_code"] == code


@pytest.mark.parametrize(
    ("role", "group", "code"),
    [
        ("reader", "any", ErrorCode.NONE),
        ("reader", "private", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("anywhere", "private", ErrorCode.NONE),
        ("boss", "private", ErrorCode.NONE),
        ("writer", "any", ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ("nobody", "any", ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_a_group_is_for_those_who_may_consume_with_it(
    running: RunningBroker, role: str, group: str, code: ErrorCode
) -> None:
    with client(running, role) as raw:
        asked = {"coordinator_keys": [group], "key_type": 0}
        (found,) = raw.ask(FIND_COORDINATOR, 4, asked)["coordinators"]
        assert found["error_code"] == code


@pytest.mark.parametrize(
    ("role", "operations"),
    [
        ("writer", {Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}),
        ("reader", {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS}),
    ],
)
def test_a_client_learns_what_it_may_do(
    running: RunningBroker, role: str, operations: set[Operation]
) -> None:
    with client(running, role) as raw:
        asked = {"topics": [{"name": "open"}], "include_topic_authorized_operations": True}
        (topic,) = raw.ask(METADATA, 12, asked)["topics"]
        bits = topic["topic_authorized_operations"]
        assert {each for each in Operation if bits & 1 << each} == operations


def test_a_permission_that_is_revoked_is_gone_at_once(running: RunningBroker) -> None:
    async def grant(started: Any) -> None:
        await started.permissions.grant_on_topic(TopicName.parse("open"), "guest", ["consume"])

    async def revoke(started: Any) -> None:
        gone = OnTopic(TopicName.parse("open"), "guest", None)
        await started.permissions.set_on_topics([gone])

    running.call(grant)
    with client(running, "guest") as raw:
        assert listed(raw) == ["open"]
        running.call(revoke)
        assert listed(raw) == []


def test_records_need_the_permission_of_their_topic(running: RunningBroker) -> None:
    for role, may_write, may_read in (("writer", True, False), ("reader", False, True)):
        with client(running, role) as raw:
            code, _ = produce(raw, "open", batch(b"a"))
            assert code == (ErrorCode.NONE if may_write else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            code = fetched(raw, "open", 0)["error_code"]
            assert code == (ErrorCode.NONE if may_read else ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            assert produce(raw, "shut", batch(b"a"))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_permission_that_is_revoked_ends_writing(running: RunningBroker) -> None:
    shut = TopicName.parse("shut")
    running.call(lambda started: started.permissions.grant_on_topic(shut, "brief", ["produce"]))
    with client(running, "brief") as raw:
        assert produce(raw, "shut", batch(b"a"))[0] == ErrorCode.NONE
        running.call(lambda started: started.permissions.forget_topic(shut))
        assert produce(raw, "shut", batch(b"a"))[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("role", "group", "topic", "code"),
    [
        ("reader", "own", "open", ErrorCode.NONE),
        ("reader", "own", "shut", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ("anywhere", "private", "shut", ErrorCode.NONE),
    ],
)
def test_a_share_group_reads_what_the_role_may_consume(
    running: RunningBroker, role: str, group: str, topic: str, code: ErrorCode
) -> None:
    with client(running, "admin") as raw:
        named = topic_id(raw, topic)
    with client(running, role) as raw:
        member = ShareMember(raw, group, role, "open" if role == "reader" else topic)
        member.topic_id = named
        assert member.fetch(wait_ms=0).error == code


def test_a_share_group_and_its_configs_need_permission(running: RunningBroker) -> None:
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with client(running, "writer") as raw:
        assert ShareMember(raw, "own", "m", "open").ask_fetch(wait_ms=0)["error_code"] == refused
        assert share_beat(raw, "own", "m", 0, ["open"])["error_code"] == refused
    with client(running, "reader") as raw:
        member = ShareMember(raw, "private", "m", "open")
        assert member.ask_fetch(wait_ms=0)["error_code"] == refused
        assert set_config(raw, "own", "share.delivery.count.limit", "3") == refused
    with client(running, "boss") as raw:
        assert set_config(raw, "own", "share.delivery.count.limit", "3") == ErrorCode.NONE


def test_a_share_group_is_deleted_by_who_may_read_all_of_its_topics(
    running: RunningBroker,
) -> None:
    """A permission on one topic is enough for every group, but must not end others' positions."""
    with client(running, "anywhere") as raw, client(running, "reader") as reader:
        assert not share_beat(raw, "both", "m", 0, ["open", "shut"])["error_code"]
        assert not share_beat(raw, "both", "m", -1)["error_code"]
        codes = []
        for each in (reader, raw, raw):
            (found,) = each.ask(DELETE_GROUPS, 2, {"groups_names": ["both"]})["results"]
            codes.append(found["error_code"])
    assert codes == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.NONE,
        ErrorCode.GROUP_ID_NOT_FOUND,
    ]
