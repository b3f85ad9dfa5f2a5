"""Permissions granted to roles: a record per namespace, under Apache Pulsar's names.

A change is durable and effective when it returns.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.storage.backend import MetadataStore, Versioned
from pybroker.base.errors import NamingError
from pybroker.base.names import TopicName, any_topic, check_subscription_name
from pybroker.broker.namespaces.tenants import PERMISSIONS, Conflict, NotFound, Tenants
from pybroker.broker.policies.table import SUBSCRIPTION_AUTH_MODE
from pybroker.security.authorization import Grants

log = logging.getLogger(__name__)
_TENANTS: Final = "/tenants/"
_NAMESPACES: Final = "/namespaces/"
_NAMESPACE: Final = "namespace_auth"
_TOPICS: Final = "destination_auth"
_SUBSCRIPTIONS: Final = "subscription_auth_roles"
_NOTHING: Final[dict[str, Any]] = {_NAMESPACE: {}, _TOPICS: {}, _SUBSCRIPTIONS: {}}

MAX_ROLE_CHARS: Final = 1024
_NO_GRANTS: Final = Grants()
_KNOWN: Final = 1000
_ATTEMPTS: Final = 5  # while other brokers change the same record
MAX_BYTES: Final = 512 * 1024  # of a namespace's record: some thousand grants
_NO_LIMIT: Final = 2**31  # of what is inherited: otherwise the topic could never be used
assert SUBSCRIPTION_AUTH_MODE.namespace is not None
_AUTH_MODE: Final = SUBSCRIPTION_AUTH_MODE.namespace
Stored = tuple[Versioned | None, Versioned | None]
Change = Callable[[dict[str, Any]], None]


class OnTopic(NamedTuple):
    topic: TopicName
    role: str
    actions: Collection[str] | None  # None: revoke


class Permissions:
    def __init__(self, metadata: MetadataStore, tenants: Tenants) -> None:
        self._metadata = metadata
        self._tenants = tenants
        self._writing = asyncio.Lock()
        self._known: dict[str, tuple[Stored, Grants]] = {}  # with what they were parsed from
        self._known_admins: dict[str, tuple[Versioned, frozenset[str]]] = {}
        # The other name of a topic that was made scalable; what is granted on one is on both.
        self.namesake: Callable[[TopicName], TopicName | None] = lambda _: None
        # Called behind a change, before `namesake` is asked again.
        self.caught_up: Callable[[], Awaitable[None]] | None = None

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called whenever a permission may have been granted or revoked."""
        for prefix in (PERMISSIONS, _NAMESPACES, _TENANTS):
            self._metadata.watch(prefix, lambda _: changed())

    # -- GrantStore

    def has_tenant(self, tenant: str) -> bool:
        return tenant in self._tenants.tenants()

    def tenant_admins(self, tenant: str) -> Collection[str]:
        stored = self._readable(_TENANTS + tenant)
        if stored is None:
            return ()  # do not cache names that clients make up
        known = self._known_admins.get(tenant)
        if known is None or known[0] != stored:
            if len(self._known_admins) >= _KNOWN:
                self._known_admins.clear()
            admins = frozenset(_json(stored).get("adminRoles", ()))
            known = self._known_admins[tenant] = stored, admins
        return known[1]

    def grants(self, namespace: str) -> Grants:
        granted = self._readable(PERMISSIONS + namespace)
        policies = self._readable(_NAMESPACES + namespace)
        if granted is None and policies is None:
            return _NO_GRANTS
        known = self._known.get(namespace)
        if known is None or known[0] != (granted, policies):
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[namespace] = (granted, policies), _parsed(granted, policies)
        return known[1]

    def _readable(self, key: str) -> Versioned | None:
        """None if the record is missing or unreadable: then it grants nothing, and other namespaces
        are not affected.
        """
        try:
            return self._metadata.get(key)
        except CorruptStorage as error:
            _say_ignored(str(error))
            return None

    def record(self, namespace: str) -> dict[str, Any]:
        """Apache Pulsar's AuthPolicies of a namespace that may not exist."""
        return _NOTHING | _json(self._metadata.get(PERMISSIONS + namespace))

    # -- changes; NotFound is raised for a namespace that does not exist

    async def grant(self, namespace: str, role: str, actions: Collection[str]) -> None:
        await self._change(namespace, lambda all_: _set(all_, (_NAMESPACE, role), list(actions)))

    async def revoke(self, namespace: str, role: str) -> None:
        await self._change(namespace, lambda all_: _set(all_, (_NAMESPACE, role), None))

    async def grant_on_topic(self, topic: TopicName, role: str, actions: Collection[str]) -> None:
        await self.set_on_topics([OnTopic(topic, role, actions)])

    async def set_on_topics(self, wanted: Iterable[OnTopic]) -> None:
        """Changes all permissions of a namespace at once: its record is written as a whole."""
        wanted = list(wanted)
        both = self._on_both(wanted)
        await self._set_on_topics(wanted + both)
        if self.caught_up is not None:
            await self.caught_up()
        # `inherit` may have been before the change, and known to this broker only now.
        if late := [each for each in self._on_both(wanted) if each not in both]:
            await self._set_on_topics(late)

    def _on_both(self, wanted: Iterable[OnTopic]) -> list[OnTopic]:
        named = ((each, self.namesake(each.topic)) for each in wanted)
        return [each._replace(topic=name) for each, name in named if name is not None]

    async def _set_on_topics(self, wanted: Iterable[OnTopic]) -> None:
        by_namespace: dict[str, list[OnTopic]] = {}
        for each in wanted:
            by_namespace.setdefault(each.topic.namespace_name, []).append(each)
        for namespace, its in by_namespace.items():
            await self._change(namespace, partial(_set_on_topics, wanted=its))

    async def inherit(self, former: TopicName, name: TopicName) -> None:
        """What is granted on `former` is granted on `name`, too. May be repeated."""
        granted = self.grants(name.namespace_name).topics
        if not granted.get(str(former), {}).keys() <= granted.get(str(name), {}).keys():
            change = partial(_inherit, former=str(former), name=str(name))
            await self._change(name.namespace_name, change, most_bytes=_NO_LIMIT)

    async def forget_topic(self, topic: TopicName) -> None:
        """Also removes grants on single partitions."""
        granted, whole = self.grants(topic.namespace_name).topics, str(topic)
        # Runs for each deleted topic: avoid parsing records that do not mention it.
        for name in map(any_topic, [name for name in granted if name.startswith(whole)]):
            if topic in (name, name.partitioned_name):
                key = _TOPICS, str(name)
                with suppress(NotFound, Conflict):  # the namespace is being deleted with its grants
                    without = partial(_set, path=key, value=None)
                    await self._change(topic.namespace_name, without, makes_room=True)

    async def set_subscription_roles(
        self, namespace: str, subscription: str, roles: Collection[str]
    ) -> None:
        await self._change_subscription_roles(namespace, subscription, lambda _: set(roles))

    async def revoke_on_subscription(self, namespace: str, subscription: str, role: str) -> None:
        await self._change_subscription_roles(namespace, subscription, lambda had: had - {role})

    async def _change_subscription_roles(
        self, namespace: str, subscription: str, changed: Callable[[set[str]], set[str]]
    ) -> None:
        def change(record: dict[str, Any]) -> None:
            had = record.get(_SUBSCRIPTIONS, {}).get(subscription, ())
            _set(record, (_SUBSCRIPTIONS, subscription), sorted(changed(set(had))) or None)

        await self._change(namespace, change)

    async def _change(
        self,
        namespace: str,
        change: Change,
        makes_room: bool = False,
        most_bytes: int | None = None,
    ) -> None:
        async with self._writing:
            for _ in range(_ATTEMPTS):
                with suppress(BadVersion):  # another broker was faster
                    most = MAX_BYTES if most_bytes is None else most_bytes
                    return await self._try_to_change(namespace, change, makes_room, most)
                await self._metadata.refresh(PERMISSIONS + namespace)
        raise Conflict(f"The permissions of {namespace} are being changed", "try again")

    async def _try_to_change(
        self, namespace: str, change: Change, makes_room: bool, most_bytes: int
    ) -> None:
        """Raises BadVersion."""
        self._tenants.check_namespace(namespace)
        stored = self._metadata.get(PERMISSIONS + namespace)
        record = _json(stored)
        change(record)
        value, version = json.dumps(record).encode(), stored.version if stored else -1
        _check_size(namespace, value, max(most_bytes, len(stored.value) if stored else 0))
        version = await self._metadata.put(PERMISSIONS + namespace, value, version, makes_room)
        if not self._tenants.has_namespace(namespace):
            # A later namespace must not inherit the record, and may already have its own.
            with suppress(BadVersion):
                await self._metadata.delete(PERMISSIONS + namespace, version)
            self._tenants.check_namespace(namespace)


@lru_cache(maxsize=1000)  # each reason is logged only once
def _say_ignored(why: str) -> None:
    log.warning("an unreadable record grants no permissions: %s", why)


def check_role(role: str) -> str:
    """Raises NamingError if the role is blank or too long."""
    if not role.strip() or len(role) > MAX_ROLE_CHARS:
        raise NamingError(f"A role's name must not be blank or exceed {MAX_ROLE_CHARS} characters")
    return role


def record_of(namespace: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a namespace that is created with the AuthPolicies `said`, whose shape the
    caller has checked. Raises NamingError, InvalidTopicName, Conflict.
    """
    record: dict[str, Any] = {}
    for role, actions in (said.get(_NAMESPACE) or {}).items():
        _set(record, (_NAMESPACE, check_role(role)), list(dict.fromkeys(actions or ())))
    for name, roles in (said.get(_TOPICS) or {}).items():
        topic = any_topic(name)
        if topic.namespace_name != namespace:
            raise NamingError(f"destination_auth: {topic} is not a topic of {namespace}")
        for role, actions in (roles or {}).items():
            path = _TOPICS, str(topic), check_role(role)
            _set(record, path, list(dict.fromkeys(actions or ())))
    for subscription, names in (said.get(_SUBSCRIPTIONS) or {}).items():
        check_subscription_name(subscription)
        roles = sorted(set(map(check_role, names or ())))
        _set(record, (_SUBSCRIPTIONS, subscription), roles or None)
    _check_size(namespace, json.dumps(record).encode(), MAX_BYTES)
    return record


def _check_size(namespace: str, value: bytes, most: int) -> None:
    if len(value) > most:
        raise Conflict(
            f"The permissions of {namespace} would take {len(value)} bytes; at most {MAX_BYTES} "
            "are allowed: revoke some, or grant them on the namespace"
        )


def _parsed(granted: Versioned | None, policies: Versioned | None) -> Grants:
    record = _NOTHING | _json(granted)
    prefix_mode = _json(policies).get(_AUTH_MODE.field) == "Prefix"
    return Grants(record[_NAMESPACE], record[_TOPICS], record[_SUBSCRIPTIONS], prefix_mode)


def _json(stored: Versioned | None) -> dict[str, Any]:
    return dict(json.loads(stored.value)) if stored is not None else {}


def _set_on_topics(record: dict[str, Any], wanted: Iterable[OnTopic]) -> None:
    for topic, role, actions in wanted:
        _set(record, (_TOPICS, str(topic), role), None if actions is None else list(actions))


def _inherit(record: dict[str, Any], former: str, name: str) -> None:
    granted = record.get(_TOPICS, {})
    for role, actions in granted.get(former, {}).items():
        if role not in granted.get(name, {}):
            _set(record, (_TOPICS, name, role), actions)


def _set(record: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """None removes the value; emptied containers are removed, too."""
    first, *rest = path
    if rest:
        inner = record.get(first, {})
        _set(inner, tuple(rest), value)
        value = inner or None
    if value is None:
        record.pop(first, None)
    else:
        record[first] = value


def merged(namespace: Mapping[str, list[str]], *topics: Mapping[str, list[str]]) -> Any:
    """The actions of each role on a topic, whichever level grants them."""
    found: dict[str, list[str]] = {role: list(actions) for role, actions in namespace.items()}
    for roles in topics:
        for role, actions in roles.items():
            found[role] = list(dict.fromkeys([*found.get(role, []), *actions]))
    return found
