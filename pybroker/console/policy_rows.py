"""The policies in effect, and the level that sets each: the topic, its namespace or the broker."""

from dataclasses import dataclass
from typing import Any, Final

from pybroker.broker.policies.policy import Level, Policy
from pybroker.broker.policies.table import POLICIES
from pybroker.console.api import Api, Refused

TOPIC: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
NAMESPACE: Final = "/admin/v2/namespaces/{tenant}/{namespace}"
Names = dict[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: Any
    source: str  # topic, namespace or broker
    off: str  # the reason why the policy has no effect here
    may_set: bool  # whether the role may set it
    may_remove: bool


async def of_topic(api: Api, names: Names) -> list[Row]:
    """The policies of a topic. Raises Refused."""
    return [
        await _of_topic(api, names, policy, policy.topic)
        for policy in POLICIES
        if policy.topic is not None and not policy.topic.by_hand
    ]


async def of_namespace(api: Api, names: Names) -> list[Row]:
    """The policies of a namespace. Raises Refused."""
    return [
        await _of_namespace(api, names, policy, policy.namespace)
        for policy in POLICIES
        if policy.namespace is not None and not policy.namespace.by_hand
    ]


async def _of_topic(api: Api, names: Names, policy: Policy[Any], level: Level) -> Row:
    path = f"{TOPIC}/{level.path}"
    value = await api.get(path, {"applied": "true"}, **names)
    source = "broker"
    if _is_set(level, await api.get(path, **names)):
        source = "topic"
    elif await _is_set_in_namespace(api, names, policy.namespace):
        source = "namespace"
    may_set = api.may(level.verb, path, **names)
    may_remove = source == "topic" and level.removable and api.may("DELETE", path, **names)
    return Row(policy.name, value, source, policy.off, may_set, may_remove)


async def _of_namespace(api: Api, names: Names, policy: Policy[Any], level: Level) -> Row:
    path = f"{NAMESPACE}/{level.path}"
    value = await api.get(path, {"applied": "true"}, **names)
    is_set = await _is_set_in_namespace(api, names, level)
    may_set = api.may(level.verb, path, **names)
    may_remove = is_set and level.removable and api.may("DELETE", path, **names)
    source = "namespace" if is_set else "broker"
    return Row(policy.name, value, source, policy.off, may_set, may_remove)


async def _is_set_in_namespace(api: Api, names: Names, level: Level | None) -> bool:
    if level is None or level.by_hand:
        return False
    where = {name: names[name] for name in ("tenant", "namespace")}
    try:
        return _is_set(level, await api.get(f"{NAMESPACE}/{level.path}", **where))
    except Refused:  # the role may see only the topic's policies
        return False


def _is_set(level: Level, found: Any) -> bool:
    return found is not None and found != level.unset
