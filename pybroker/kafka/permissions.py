"""What a Kafka client may do: the same table of permissions that Pulsar's clients meet.

Write needs `produce`, Read needs `consume`, Describe one of the two; to create, alter and delete
topics and to see and alter their configuration one must be an admin of the tenant. A group counts
as a subscription of its name: roles may be granted single ones.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from pybroker.base.names import TopicName
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.services import KafkaServices
from pybroker.kafka.session import Session
from pybroker.logs import audit
from pybroker.security.authorization import Need, Target


class Operation(IntEnum):
    """Kafka's operations, by the bit that stands for them. Source: KIP-430."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


NEED_OF: Final = {
    Operation.READ: Need.CONSUME,
    Operation.WRITE: Need.PRODUCE,
    Operation.CREATE: Need.TENANT_ADMIN,
    Operation.DELETE: Need.TENANT_ADMIN,
    Operation.ALTER: Need.TENANT_ADMIN,
    Operation.DESCRIBE: Need.LOOKUP,
    Operation.DESCRIBE_CONFIGS: Need.LOOKUP,
    Operation.ALTER_CONFIGS: Need.TENANT_ADMIN,
}
_OF_TOPIC: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


def may(services: KafkaServices, session: Session, need: Need, target: Target) -> bool:
    if services.authorizer is None or session.identity is None:
        return True
    return services.authorizer.may(session.identity, need, target)


def _require(
    services: KafkaServices, session: Session, need: Need, target: Target, refusal: KafkaError
) -> None:
    if not may(services, session, need, target):
        audit.refused(actor_of(session), need.name, str(target), refusal.code.name, str(refusal))
        raise refusal


def require_topic(
    services: KafkaServices, session: Session, operation: Operation, name: TopicName
) -> None:
    """Raises KafkaError, TOPIC_AUTHORIZATION_FAILED."""
    need = NEED_OF[operation]
    refusal = KafkaError(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{operation.name} on a topic needs {need.value}"
    )
    _require(services, session, need, Target.of_topic(name), refusal)


def may_topic(
    services: KafkaServices, session: Session, operation: Operation, name: TopicName
) -> bool:
    return may(services, session, NEED_OF[operation], Target.of_topic(name))


def require_group(services: KafkaServices, session: Session, group: str) -> None:
    """To consume with the group. Raises KafkaError, GROUP_AUTHORIZATION_FAILED."""
    if may_group(services, session, group):
        return
    namespace = services.names.namespace_name
    why = f"the group {group[:200]!r} needs the permission consume in {namespace}"
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    audit.refused(actor_of(session), Need.CONSUME.name, group[:200], code.name, why)
    raise KafkaError(code, why)


def may_group(services: KafkaServices, session: Session, group: str) -> bool:
    if services.authorizer is None or session.identity is None:
        return True
    namespace = services.names.namespace_name
    return services.authorizer.may_use_group(session.identity, namespace, group)


def require_group_admin(services: KafkaServices, session: Session, group: str) -> None:
    """To change a group's configs. Raises KafkaError, GROUP_AUTHORIZATION_FAILED."""
    target = Target.of_namespace(services.names.namespace_name)
    why = f"the configs of the group {group[:200]!r} need {Need.TENANT_ADMIN.value}"
    refusal = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, why)
    _require(services, session, Need.TENANT_ADMIN, target, refusal)


def require_admin(services: KafkaServices, session: Session, operation: str) -> None:
    """For what concerns the whole cluster. Raises KafkaError, CLUSTER_AUTHORIZATION_FAILED."""
    refusal = KafkaError(
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        f"{operation} needs {Need.SUPER_USER.value}",
    )
    _require(services, session, Need.SUPER_USER, Target(), refusal)


def require_acls(services: KafkaServices, session: Session) -> None:
    """To see and change permissions. Raises KafkaError."""
    if services.authorizer is None:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED, "permissions have no effect: set authorizationEnabled=true"
        )
    target = Target.of_namespace(services.names.namespace_name)
    why = f"ACLs need {Need.TENANT_ADMIN.value}"
    refusal = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why)
    _require(services, session, Need.TENANT_ADMIN, target, refusal)


def topic_operations(services: KafkaServices, session: Session, name: TopicName) -> int:
    """The bitmap of what the client may do with a topic."""
    return _bits(each for each in _OF_TOPIC if may_topic(services, session, each, name))


def cluster_operations(services: KafkaServices, session: Session) -> int:
    """The bitmap of what the client may do with the cluster."""
    target = Target.of_namespace(services.names.namespace_name)
    found = [Operation.IDEMPOTENT_WRITE]
    if may(services, session, Need.TENANT_ADMIN, target):
        found.append(Operation.CREATE)
    if may(services, session, Need.SUPER_USER, Target()):
        found += [Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION]
        found += [Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
    return _bits(found)


def _bits(operations: Iterable[Operation]) -> int:
    return sum(1 << each for each in operations)


def actor_of(session: Session) -> audit.Actor:
    """For the audit log: who is responsible for what the session's requests change."""
    who = "" if session.identity is None else "/".join(session.identity.roles)
    return audit.Actor(who, session.peer)
