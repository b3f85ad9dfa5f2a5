"""Kafka's ACLs ↔ the permissions of the namespace that Kafka's clients use.

| ACL | permission |
|---|---|
| READ or WRITE on a topic | `consume` or `produce` on the topic; on `*`, on the namespace |
| READ on a group | the role is among those that may use the subscription of this name |

ALL on a topic is both. DESCRIBE and the like follow from READ and WRITE, so they are accepted where
the role has one of them. What permissions cannot say is refused: DENY, hosts, prefixes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pybroker.base.names import TopicName, check_subscription_name
from pybroker.broker.namespaces.permissions import OnTopic, check_role
from pybroker.kafka.errors import ErrorCode, KafkaError
from pybroker.kafka.services import KafkaServices

_USER: Final = "User:"
_ANY: Final = 1
_LITERAL, _MATCH = 3, 2
_ALLOW: Final = 3
_EVERYWHERE: Final = "*"
_ANY_HOST: Final = "*"


class ResourceType(IntEnum):
    TOPIC = 2
    GROUP = 3


class AclOperation(IntEnum):
    """Kafka's numbers."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10


_ACTION_OF: Final = {AclOperation.READ: "consume", AclOperation.WRITE: "produce"}
_OPERATION_OF: Final = {action: operation for operation, action in _ACTION_OF.items()}
_IMPLIED: Final = (AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)


@dataclass(frozen=True, slots=True)
class Acl:
    """One that permissions can say: a literal name, any host, allowed."""

    kind: ResourceType
    name: str
    role: str
    operation: AclOperation

    def shown(self) -> dict[str, Any]:
        """Its own fields; the resource's are in `resource`."""
        return {
            "principal": _USER + self.role,
            "host": _ANY_HOST,
            "operation": self.operation,
            "permission_type": _ALLOW,
        }

    def resource(self) -> dict[str, Any]:
        return {
            "resource_type": self.kind,
            "resource_name": self.name,
            "pattern_type": _LITERAL,
        }


def _refused(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"permissions cannot say this: {why}")


def acl_of(creation: Mapping[str, Any]) -> Acl:
    """Raises KafkaError for what permissions cannot express, NamingError for a bad role."""
    principal = creation["principal"]
    if creation["permission_type"] != _ALLOW:
        raise _refused("only ALLOW; what is not granted is denied")
    if creation["host"] != _ANY_HOST:
        raise _refused("the host is *")
    if creation["resource_pattern_type"] != _LITERAL:
        raise _refused("the resource is a literal name; the topic * stands for the namespace")
    if not principal.startswith(_USER) or principal == _USER + _EVERYWHERE:
        raise _refused("the principal is User: and a role")
    if creation["resource_type"] not in list(ResourceType):
        raise _refused("the resource is a topic or a group")
    if creation["operation"] not in list(AclOperation):
        raise _refused("the operation is READ, WRITE, or one that follows from them")
    kind = ResourceType(creation["resource_type"])
    role = check_role(principal.removeprefix(_USER))
    return Acl(kind, creation["resource_name"], role, AclOperation(creation["operation"]))


def all_acls(services: KafkaServices) -> Iterator[Acl]:
    """In the order of their resources."""
    namespace = services.names.namespace_name
    grants = services.topics.permissions.grants(namespace)
    yield from _of_topic(_EVERYWHERE, grants.namespace)
    for text, roles in sorted(grants.topics.items()):
        name = services.names.shown(TopicName.parse(text))
        if name is not None:
            yield from _of_topic(name, roles)
    for group, names in sorted(grants.subscriptions.items()):
        for role in sorted(names):
            yield Acl(ResourceType.GROUP, group, role, AclOperation.READ)


def _of_topic(name: str, roles: Mapping[str, Any]) -> Iterator[Acl]:
    for role, actions in sorted(roles.items()):
        for action, operation in _OPERATION_OF.items():
            if action in actions:
                yield Acl(ResourceType.TOPIC, name, role, operation)


def matches(acl: Acl, wanted: Mapping[str, Any]) -> bool:
    """`wanted` are the fields of a filter. Raises KafkaError."""
    if wanted["resource_type_filter"] not in (_ANY, acl.kind):
        return False
    # ALL was granted as READ and WRITE, so it stands for both.
    if wanted["operation"] not in (_ANY, AclOperation.ALL, acl.operation):
        return False
    if wanted["permission_type"] not in (_ANY, _ALLOW):
        return False
    if wanted["host_filter"] not in (None, _ANY_HOST):
        return False
    if wanted["principal_filter"] not in (None, _USER + acl.role):
        return False
    if wanted["pattern_type_filter"] not in (_ANY, _MATCH, _LITERAL):
        return False
    name, is_match = wanted["resource_name_filter"], wanted["pattern_type_filter"] == _MATCH
    return name in (None, acl.name) or (is_match and acl.name == _EVERYWHERE)


async def grant(services: KafkaServices, acl: Acl) -> None:
    """Durable and in force when this returns. Raises KafkaError, PulsarError."""
    if acl.kind is ResourceType.GROUP:
        await _grant_group(services, acl)
        return
    now = _actions(services, acl)
    if acl.operation in _IMPLIED:
        if not now and not _actions(services, Acl(acl.kind, _EVERYWHERE, acl.role, acl.operation)):
            raise _refused(f"{acl.operation.name} follows from READ and WRITE: grant one of them")
        return
    new = [_ACTION_OF[acl.operation]] if acl.operation in _ACTION_OF else [*_OPERATION_OF]
    await _set_actions(services, acl, [*dict.fromkeys([*now, *new])])


async def _grant_group(services: KafkaServices, acl: Acl) -> None:
    if acl.operation in _IMPLIED:
        if acl.role not in _roles(services, acl.name):
            raise _refused(f"{acl.operation.name} follows from READ: grant READ")
        return
    if acl.operation is AclOperation.WRITE or acl.name == _EVERYWHERE:
        raise _refused("the operation on a group is READ, and the group is named")
    check_subscription_name(acl.name)
    roles = {*_roles(services, acl.name), acl.role}
    namespace = services.names.namespace_name
    await services.topics.permissions.set_subscription_roles(namespace, acl.name, roles)


async def revoke(services: KafkaServices, acl: Acl) -> None:
    """Durable and in force when this returns. Raises KafkaError, PulsarError."""
    if acl.kind is ResourceType.GROUP:
        namespace, permissions = services.names.namespace_name, services.topics.permissions
        await permissions.revoke_on_subscription(namespace, acl.name, acl.role)
        return
    gone = _ACTION_OF[acl.operation]
    await _set_actions(services, acl, [each for each in _actions(services, acl) if each != gone])


def _roles(services: KafkaServices, group: str) -> set[str]:
    grants = services.topics.permissions.grants(services.names.namespace_name)
    return set(grants.subscriptions.get(group, ()))


def _actions(services: KafkaServices, acl: Acl) -> list[str]:
    grants = services.topics.permissions.grants(services.names.namespace_name)
    if acl.name == _EVERYWHERE:
        return list(grants.namespace.get(acl.role, ()))
    topic = services.names.topic(acl.name)
    return list(grants.topics.get(str(topic), {}).get(acl.role, ()))


async def _set_actions(services: KafkaServices, acl: Acl, actions: list[str]) -> None:
    permissions, namespace = services.topics.permissions, services.names.namespace_name
    if acl.name != _EVERYWHERE:
        topic = services.names.topic(acl.name)
        await permissions.set_on_topics([OnTopic(topic, acl.role, actions or None)])
    elif actions:
        await permissions.grant(namespace, acl.role, actions)
    else:
        await permissions.revoke(namespace, acl.role)
