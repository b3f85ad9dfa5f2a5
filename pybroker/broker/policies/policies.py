"""The policies of namespaces and topics: stored, resolved, with notification of changes.

A namespace's policies are its record in the metadata store, a topic's a separate record, which is
deleted with the topic: JSON with Apache Pulsar's field names. All partitions of a topic share its
policies. Actors are notified through the metadata store, wherever a change comes from.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from managed_ledger.errors import BadVersion, CorruptStorage
from managed_ledger.storage.backend import MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import NAMESPACES, Conflict, Tenants
from pybroker.broker.policies.effective import Effective, Values
from pybroker.broker.policies.kinds import BadPolicy
from pybroker.broker.policies.policy import Level, Policy
from pybroker.broker.policies.table import POLICIES, check_together

log = logging.getLogger(__name__)

T = TypeVar("T")
TOPIC_POLICIES: Final = "/topic-policies/"
ABSENT: Final = -1
NOTHING: Final[Values] = {}
# Field names in namespaces' records from before the table.
_OLD_FIELDS: Final = {"autoTopicCreation": "autoTopicCreationOverride"}
_OF_NAMESPACES: Final = {p.namespace.field: p for p in POLICIES if p.namespace is not None}
NAMESPACE_LEVELS: Final = {field: p.namespace for field, p in _OF_NAMESPACES.items() if p.namespace}
_OF_TOPICS: Final = {p.topic.field: p for p in POLICIES if p.topic is not None}
# Called with the namespace (None: all), and with the topic if only one is concerned (for
# partitions: the partitioned topic).
Heard = Callable[[str | None, TopicName | None], None]
Change = Callable[[T | None], T | None]  # from the previous value to the new one


def topic_key(topic: TopicName) -> str:
    return TOPIC_POLICIES + quote(topic.partitioned_name.ledger_name, safe="")


class Policies:
    def __init__(
        self,
        metadata: MetadataStore,
        tenants: Tenants,
        config: BrokerConfig,
        check_topic: Callable[[TopicName], None],
    ) -> None:
        """`check_topic` raises TopicNotFound unless the topic exists and is not being deleted."""
        self._check_topic = check_topic
        self._metadata = metadata
        self._tenants = tenants
        self.config = config  # with what has changed while the broker runs
        self._of_namespaces: dict[str, Effective] = {}
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._heard: list[Heard] = []
        metadata.watch(NAMESPACES, self._namespace_changed)
        metadata.watch(TOPIC_POLICIES, self._topic_changed)

    # -- effective values

    def of(self, topic: TopicName) -> Effective:
        """The effective policies of the topic, or of the partitioned topic that it belongs to."""
        local, every = self._of_topic(topic, False), self._of_topic(topic, True)
        if not local and not every:
            return self.of_namespace(topic.namespace_name)
        namespace = self.namespace_values(topic.namespace_name)
        return Effective(self.config, (local, every, namespace))

    def of_namespace(self, namespace: str) -> Effective:
        found = self._of_namespaces.get(namespace)
        if found is None:
            found = Effective(self.config, (self.namespace_values(namespace),))
            if self._tenants.has_namespace(namespace):
                self._of_namespaces[namespace] = found
        return found

    # -- values that were set

    def namespace_values(self, namespace: str) -> Values:
        """The values set for the namespace; if its record is unreadable, the last ones known.
        Raises CorruptStorage if none are known.
        """
        key = NAMESPACES + namespace
        try:
            return _by_policy(self._record(key), _OF_NAMESPACES, key)
        except CorruptStorage:
            if (last := self._of_namespaces.get(namespace)) is None:
                raise
            return last.least_specific

    def _of_topic(self, topic: TopicName, everywhere: bool) -> Values:
        record = self._record(topic_key(topic)).get(_part(everywhere), {})
        return _by_policy(record, _OF_TOPICS, topic_key(topic))

    def set_of_namespace(self, namespace: str, policy: Policy[T]) -> T | None:
        """The value that was set, or None. Raises NotFound."""
        self._tenants.check_namespace(namespace)
        return self.namespace_values(namespace).get(policy.name)

    def set_of_topic(
        self, topic: TopicName, policy: Policy[T], everywhere: bool = False
    ) -> T | None:
        """The value that was set, or None; `everywhere`: for all clusters, which has lower
        priority.
        """
        return self._of_topic(topic, everywhere).get(policy.name)

    # -- setting

    async def set_for_namespace(self, namespace: str, policy: Policy[T], value: T | None) -> None:
        """None removes it. Raises NotFound, BadPolicy, Conflict."""
        await self.change_for_namespace(namespace, policy, lambda now: value)

    async def change_for_namespace(
        self, namespace: str, policy: Policy[T], change_value: Change[T]
    ) -> None:
        def change(record: dict[str, Any]) -> dict[str, Any]:
            return _changed(record, policy, policy.namespace, change_value, _OF_NAMESPACES)

        self._tenants.check_namespace(namespace)
        async with self._locked(NAMESPACES + namespace):
            self._tenants.check_namespace(namespace)
            await self._change(NAMESPACES + namespace, change)

    async def set_for_topic(
        self, topic: TopicName, policy: Policy[T], value: T | None, everywhere: bool = False
    ) -> None:
        """None removes it. Raises TopicNotFound, BadPolicy, Conflict."""
        await self.change_for_topic(topic, policy, lambda now: value, everywhere)

    async def change_for_topic(
        self,
        topic: TopicName,
        policy: Policy[T],
        change_value: Change[T],
        everywhere: bool = False,
    ) -> None:
        part = _part(everywhere)

        def change(record: dict[str, Any]) -> dict[str, Any]:
            changed = _changed(record.get(part, {}), policy, policy.topic, change_value, _OF_TOPICS)
            return record | {part: changed}

        async with self._locked(topic_key(topic)):
            self._check_topic(topic.partitioned_name)  # a change must not outlive the topic
            await self._change(topic_key(topic), change)

    def topics_with_own(self) -> list[TopicName]:
        """The topics that have policies of their own."""
        return [
            TopicName.of_ledger(unquote(key.removeprefix(TOPIC_POLICIES)))
            for key in self._metadata.keys(TOPIC_POLICIES)
            if any(self._record(key).values())
        ]

    async def forget_topic(self, topic: TopicName) -> None:
        """Delete the topic's own policies."""
        await self._metadata.delete(topic_key(topic))

    def _locked(self, key: str) -> asyncio.Lock:
        return self._writing.setdefault(key, asyncio.Lock())

    async def _change(self, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        stored = self._metadata.get(key)
        record = change(self._record(key))
        version = ABSENT if stored is None else stored.version
        try:
            await self._metadata.put(key, json.dumps(record).encode(), version)
        except BadVersion as error:
            raise Conflict(
                f"The policies were changed or deleted in the meantime: {error}"
            ) from error

    def _record(self, key: str) -> dict[str, Any]:
        stored = self._metadata.get(key)
        return with_new_names({} if stored is None else json.loads(stored.value))

    def configure(self, config: BrokerConfig) -> None:
        """Take the defaults from `config` from now on."""
        self.config = config
        self._of_namespaces.clear()
        for heard in self._heard:
            heard(None, None)

    # -- notification

    def tell(self, heard: Heard) -> None:
        """Call `heard` for every change, once it is durable."""
        self._heard.append(heard)

    def _namespace_changed(self, key: str) -> None:
        namespace = key.removeprefix(NAMESPACES)
        try:
            self._record(key)
        except CorruptStorage as error:
            log.warning("the policies of %s stay as they were: %s", namespace, error)
            return
        self._of_namespaces.pop(namespace, None)
        for heard in self._heard:
            heard(namespace, None)

    def _topic_changed(self, key: str) -> None:
        topic = TopicName.of_ledger(unquote(key.removeprefix(TOPIC_POLICIES)))
        for heard in self._heard:
            heard(topic.namespace_name, topic)


def with_new_names(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_OLD_FIELDS.get(field, field): value for field, value in record.items()}


def _part(everywhere: bool) -> str:
    return "global" if everywhere else "local"


def _by_policy(
    record: Mapping[str, Any], table: Mapping[str, Policy[Any]], key: str = ""
) -> Values:
    known = {field: value for field, value in record.items() if field in table}
    read = {table[field].name: _readable(table[field], v, key) for field, v in known.items()}
    return {name: value for name, value in read.items() if value is not None} or NOTHING


def _readable(policy: Policy[T], value: Any, key: str = "") -> T | None:
    """The stored value, possibly older than its check; None if it is invalid."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        checked: T = policy.check(value)
    except (BadPolicy, ValueError) as error:
        _say_ignored(key, policy.name, str(error))
        return None
    return checked


@lru_cache(maxsize=1000)  # each is logged only once
def _say_ignored(key: str, name: str, why: str) -> None:
    log.warning("%s: the policy %s is invalid and ignored: %s", key, name, why)


def _changed(
    record: Mapping[str, Any],
    policy: Policy[Any],
    level: Level | None,
    change: Change[Any],
    table: Mapping[str, Policy[Any]],
) -> dict[str, Any]:
    """The record with another value. Raises BadPolicy."""
    assert level is not None, f"{policy.name} has no such level"
    now = record.get(level.field)
    value = change(None if now is None else _readable(policy, now))
    changed = {field: kept for field, kept in record.items() if field != level.field}
    if value is not None:
        changed[level.field] = policy.check(value)
        check_together(dict(_by_policy(changed, table)))
    return changed


def checked_namespace(body: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """The policies in the body that creates a namespace, as in its record. Raises BadPolicy.

    Fields of the body that are not policies are dropped.
    """
    record: dict[str, Any] = {}
    for field, value in body.items():
        policy = _OF_NAMESPACES.get(_OLD_FIELDS.get(field, field))
        if policy is None or policy.namespace is None or value is None:
            continue
        if policy.namespace.by_cluster:
            value = value.get(cluster) if isinstance(value, dict) else value
        if value is not None and value != policy.namespace.unset:
            record[policy.namespace.field] = policy.check(value)
    check_together(dict(_by_policy(record, _OF_NAMESPACES)))
    return record


def shown_namespace(values: Values, cluster: str) -> dict[str, Any]:
    """The values under the field names of Apache Pulsar's Policies, including fields that are
    always present.
    """
    shown: dict[str, Any] = {}
    for policy in _OF_NAMESPACES.values():
        level = policy.namespace
        assert level is not None
        value = values.get(policy.name, level.unset)
        if level.by_cluster:
            value = {} if value is None else {cluster: value}
        if value is not None:
            shown[level.field] = value
    return shown
