"""ACLs of Kafka's administration clients are permissions."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from credentials import TOKEN_SETTINGS, token
from raw_kafka import RawKafka

from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

TIMEOUT_S = 30
DESCRIBE_ACLS = 29
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
ANY = ResourcePatternType.ANY
NAMESPACE = "public/default"


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    settings = TOKEN_SETTINGS | {"authorization_enabled": True, "super_user_roles": ("admin",)}
    with broker(kafka=True, **settings) as started:
        yield started


@pytest.fixture
def admin(running: RunningBroker) -> AdminClient:
    return client(running, "admin")


def client(started: RunningBroker, role: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": started.kafka_bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "any",
            "sasl.password": token(role),
        }
    )


def binding(kind: Any, name: str, role: str, operation: str, **other: Any) -> AclBinding:
    values = {
        "resource_pattern_type": ResourcePatternType.LITERAL,
        "principal": f"User:{role}",
        "host": "*",
        "permission_type": AclPermissionType.ALLOW,
    } | other
    return AclBinding(
        kind,
        name,
        values["resource_pattern_type"],
        values["principal"],
        values["host"],
        AclOperation[operation],
        values["permission_type"],
    )


def add(admin: AdminClient, *bindings: AclBinding) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(TIMEOUT_S)


def wanted(kind: Any = ResourceType.ANY, name: str | None = None) -> AclBindingFilter:
    return AclBindingFilter(kind, name, ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)


def listed(admin: AdminClient, *given: Any) -> set[tuple[Any, str, str, str]]:
    found = admin.describe_acls(wanted(*given)).result(TIMEOUT_S)
    return {(each.restype, each.name, each.principal, each.operation.name) for each in found}


def permissions(running: RunningBroker) -> dict[str, Any]:
    async def look(started: Any) -> Any:
        return started.permissions.record(NAMESPACE)

    found: dict[str, Any] = running.call(look)
    return found


def test_what_kafka_acls_grants_a_producer_and_a_consumer(
    running: RunningBroker, admin: AdminClient
) -> None:
    add(
        admin,
        binding(TOPIC, "orders", "shop", "DESCRIBE"),
        binding(TOPIC, "orders", "shop", "CREATE"),
        binding(TOPIC, "orders", "shop", "WRITE"),
        binding(TOPIC, "orders", "bill", "READ"),
        binding(GROUP, "billing", "bill", "READ"),
        binding(TOPIC, "*", "audit", "READ"),
        binding(TOPIC, "audited", "audit", "ALL"),
    )
    assert permissions(running) == {
        "namespace_auth": {"audit": ["consume"]},
        "destination_auth": {
            "persistent://public/default/orders": {"shop": ["produce"], "bill": ["consume"]},
            "persistent://public/default/audited": {"audit": ["consume", "produce"]},
        },
        "subscription_auth_roles": {"billing": ["bill"]},
    }
    assert listed(admin) == {
        (TOPIC, "*", "User:audit", "READ"),
        (TOPIC, "orders", "User:shop", "WRITE"),
        (TOPIC, "orders", "User:bill", "READ"),
        (TOPIC, "audited", "User:audit", "READ"),
        (TOPIC, "audited", "User:audit", "WRITE"),
        (GROUP, "billing", "User:bill", "READ"),
    }
    assert listed(admin, TOPIC, "orders") == {
        (TOPIC, "orders", "User:shop", "WRITE"),
        (TOPIC, "orders", "User:bill", "READ"),
    }


def test_what_is_deleted_is_revoked(running: RunningBroker, admin: AdminClient) -> None:
    add(
        admin,
        binding(TOPIC, "orders", "shop", "ALL"),
        binding(TOPIC, "*", "shop", "READ"),
        binding(GROUP, "billing", "shop", "READ"),
    )
    only_read = AclBindingFilter(
        TOPIC, "orders", ANY, "User:shop", None, AclOperation.READ, AclPermissionType.ALLOW
    )
    (deleted,) = admin.delete_acls([only_read]).values()
    assert len(deleted.result(TIMEOUT_S)) == 1
    assert listed(admin, TOPIC, "orders") == {(TOPIC, "orders", "User:shop", "WRITE")}
    (deleted,) = admin.delete_acls([wanted()]).values()
    assert len(deleted.result(TIMEOUT_S)) == 3
    assert listed(admin) == set()


def test_all_revokes_what_all_has_granted(running: RunningBroker, admin: AdminClient) -> None:
    add(admin, binding(TOPIC, "orders", "shop", "ALL"))
    everything = AclBindingFilter(
        TOPIC, "orders", ANY, "User:shop", None, AclOperation.ALL, AclPermissionType.ALLOW
    )
    (deleted,) = admin.delete_acls([everything]).values()
    assert len(deleted.result(TIMEOUT_S)) == 2
    assert listed(admin) == set()


@pytest.mark.parametrize(
    "refused",
    [
        binding(TOPIC, "t", "r", "READ", permission_type=AclPermissionType.DENY),
        binding(TOPIC, "t", "r", "READ", host="10.0.0.1"),
        binding(TOPIC, "t", "r", "READ", resource_pattern_type=ResourcePatternType.PREFIXED),
        binding(TOPIC, "t", "r", "READ", principal="User:*"),
        binding(TOPIC, "t", "r", "READ", principal="Group:r"),
        binding(TOPIC, "t", "r", "DELETE"),
        binding(TOPIC, "t", "r", "DESCRIBE"),
        binding(GROUP, "g", "r", "WRITE"),
        binding(GROUP, "g", "r", "DESCRIBE"),
        binding(GROUP, "*", "r", "READ"),
        binding(ResourceType.BROKER, "kafka-cluster", "r", "CREATE"),
    ],
)
def test_what_permissions_cannot_say_is_refused(
    running: RunningBroker, admin: AdminClient, refused: AclBinding
) -> None:
    with pytest.raises(KafkaException) as failed:
        add(admin, refused)
    assert failed.value.args[0].code() == ErrorCode.INVALID_REQUEST
    assert listed(admin) == set()


def test_acls_are_for_the_tenants_admins(running: RunningBroker) -> None:
    nobody = client(running, "nobody")
    with pytest.raises(KafkaException) as failed:
        add(nobody, binding(TOPIC, "t", "nobody", "ALL"))
    assert failed.value.args[0].code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (deleted,) = nobody.delete_acls([wanted()]).values()
    with pytest.raises(KafkaException) as failed:
        deleted.result(TIMEOUT_S)
    assert failed.value.args[0].code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_without_authorization_there_are_no_acls() -> None:
    """On the wire: confluent-kafka does not tell this error."""
    everything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    with broker(kafka=True) as started, RawKafka(started.kafka_bootstrap) as raw:
        answer = raw.ask(DESCRIBE_ACLS, 3, everything)
    assert answer["error_code"] == ErrorCode.SECURITY_DISABLED
    assert "authorizationEnabled" in answer["error_message"]
