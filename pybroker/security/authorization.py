"""What a role may do: superusers everything, a tenant's admins everything in the tenant, others
what was granted to them in a namespace, on a topic, and on subscriptions that name their roles.

Only names are checked, never whether something exists, so a refusal does not reveal that. The
exception is Apache Pulsar's: whoever asks over HTTP for what a tenant's admin may do hears that the
tenant does not exist.

Source: Apache Pulsar's PulsarAuthorizationProvider.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import AuthorizationError
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.security.identity import Identity

ACTIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_MOST_NAMED: Final = 2000  # characters of a name that a refusal repeats
Roles = Mapping[str, Collection[str]]  # actions by role


class Need(Enum):
    """What a command or route requires; the value appears in refusals."""

    NOTHING = "nothing: it is open to everyone"
    LOGIN = "to be logged in"
    OWN = "its own producer, consumer or transaction"
    SUPER_USER = "to be a superuser (superUserRoles)"
    TENANT_ADMIN = "to be an admin of the tenant"
    USE_NAMESPACE = "the permission produce or consume in the namespace"
    LOOKUP = "the permission produce or consume"
    PRODUCE = "the permission produce"
    CONSUME = "the permission consume"


@dataclass(frozen=True, slots=True)
class Grants:
    """What was granted in one namespace."""

    namespace: Roles = field(default_factory=dict)
    topics: Mapping[str, Roles] = field(default_factory=dict)  # by the topic's full name
    subscriptions: Mapping[str, Collection[str]] = field(default_factory=dict)  # roles by name
    prefix_mode: bool = False  # a subscription's name must begin with the role's


class GrantStore(Protocol):
    def has_tenant(self, tenant: str) -> bool: ...

    def tenant_admins(self, tenant: str) -> Collection[str]:
        """Empty if there is no such tenant."""
        ...

    def grants(self, namespace: str) -> Grants:
        """Empty Grants if there is no such namespace."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """The object of a request, by name; names irrelevant to its need are empty."""

    tenant: str = ""
    namespace: str = ""  # tenant/namespace
    topic: TopicName | None = None
    subscription: str | None = None

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str | None = None) -> "Target":
        return cls(topic.tenant, topic.namespace_name, topic, subscription)

    @classmethod
    def of_namespace(cls, namespace: str) -> "Target":
        return cls(namespace.partition("/")[0], namespace)

    def __str__(self) -> str:
        return str(self.topic or self.namespace or self.tenant or "this broker")[:_MOST_NAMED]


class Authorizer:
    def __init__(self, config: BrokerConfig, store: GrantStore) -> None:
        self._super_users = frozenset(config.super_user_roles)
        self._wildcards = config.authorization_allow_wildcards_matching
        self._store = store

    def require(self, identity: Identity, need: Need, target: Target, doing: str) -> None:
        """Raises AuthorizationError; `doing` completes "not authorized to …"."""
        for role in identity.roles:
            if not self._role_may(role, need, target):
                raise AuthorizationError(
                    f"Client is not authorized to {doing}",
                    f"on {target} role {role!r} needs {need.value}",
                )

    def may(self, identity: Identity, need: Need, target: Target) -> bool:
        return all(self._role_may(role, need, target) for role in identity.roles)

    def has_tenant(self, tenant: str) -> bool:
        return self._store.has_tenant(tenant)

    def may_use_any_of(self, identity: Identity, namespace: str) -> bool:
        """Whether the identity may produce or consume in the namespace, or on one of its topics."""
        target = Target.of_namespace(namespace)
        if self.may(identity, Need.USE_NAMESPACE, target):
            return True
        topics = self._store.grants(namespace).topics.values()
        granted = [set(self._of_role(role, each)) for role in identity.roles for each in topics]
        return any(not actions.isdisjoint(("produce", "consume")) for actions in granted)

    def may_use_group(self, identity: Identity, namespace: str, group: str) -> bool:
        """Whether the identity may consume with a group of Kafka's: like a subscription, but it
        belongs to no topic. So the permission on one topic of the namespace is enough.
        """
        target, grants = Target.of_namespace(namespace), self._store.grants(namespace)
        return all(
            self._role_may(role, Need.CONSUME, target)
            or any("consume" in self._of_role(role, each) for each in grants.topics.values())
            for role in identity.roles
        ) and all(
            self._role_may(role, Need.TENANT_ADMIN, target) or _may_subscribe(role, group, grants)
            for role in identity.roles
        )

    def is_super_user(self, identity: Identity) -> bool:
        return self._super_users.issuperset(identity.roles)

    def _role_may(self, role: str, need: Need, target: Target) -> bool:
        if need in (Need.NOTHING, Need.LOGIN, Need.OWN) or role in self._super_users:
            return True
        if need is Need.SUPER_USER:
            return False
        if need is Need.LOOKUP and _is_coordinators(target.topic):
            return True
        if role in self._store.tenant_admins(target.tenant):
            return True
        if need is Need.TENANT_ADMIN:
            return False
        return self._is_granted(role, need, target, self._store.grants(target.namespace))

    def _is_granted(self, role: str, need: Need, target: Target, grants: Grants) -> bool:
        actions = self._actions(role, target.topic, grants)
        if need in (Need.USE_NAMESPACE, Need.LOOKUP):
            return not actions.isdisjoint(("produce", "consume"))
        if need is Need.PRODUCE:
            return "produce" in actions
        if need is Need.CONSUME:
            return "consume" in actions and _may_subscribe(role, target.subscription, grants)
        raise AssertionError(need)

    def _actions(self, role: str, topic: TopicName | None, grants: Grants) -> set[str]:
        found = set(self._of_role(role, grants.namespace))
        if topic is not None:
            for name in dict.fromkeys((topic, topic.partitioned_name)):
                found.update(self._of_role(role, grants.topics.get(str(name), {})))
        return found

    def _of_role(self, role: str, roles: Roles) -> Iterable[str]:
        if not self._wildcards:
            return roles.get(role, ())
        matching = (actions for name, actions in roles.items() if _matches(name, role))
        return (action for actions in matching for action in actions)


def _is_coordinators(topic: TopicName | None) -> bool:
    """Its partitions tell clients where the coordinators are, so every logged-in client may look up
    this topic.
    """
    return topic is not None and topic.partitioned_name == COORDINATOR_ASSIGN


def _may_subscribe(role: str, subscription: str | None, grants: Grants) -> bool:
    if subscription is None:
        return True
    roles = grants.subscriptions.get(subscription)
    if roles and role not in roles:
        return False
    return not grants.prefix_mode or subscription.startswith(role)


def _matches(pattern: str, role: str) -> bool:
    """`pattern` is a role's name, or has `*` at its beginning or its end."""
    if pattern.endswith("*"):
        return role.startswith(pattern[:-1])
    return role.endswith(pattern[1:]) if pattern.startswith("*") else role == pattern
