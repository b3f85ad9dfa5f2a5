"""Namespaces: `/admin/policies/<tenant>/<namespace>` has policies, permissions and bundles.

In pybroker, policies and permissions are separate keys; here they share one node. Where Apache
Pulsar has a value for each cluster, only this cluster's is used. Policies that Apache does not
have, such as limits of transactions, are additional fields: Apache's brokers ignore them, and drop
them when they change the policies.

Source: org.apache.pulsar.common.policies.data.Policies.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from managed_ledger.errors import CorruptStorage
from pybroker.broker.namespaces.tenants import NAMESPACES, PERMISSIONS
from pybroker.broker.policies.policies import NAMESPACE_LEVELS, with_new_names
from pybroker.broker.policies.policy import Level
from pybroker.formats.apache.json_nodes import Fields, compact, encoded, fields_of, is_plain

_AUTH: Final = "auth_policies"
_PARTS: Final = ("namespace_auth", "destination_auth", "subscription_auth_roles")
_CLUSTERS: Final = "replication_clusters"


class NamespaceNodes:
    """Implements JoinedFamily."""

    root = "/admin/policies"

    def __init__(self, cluster: str, bundles: Mapping[str, Any]) -> None:
        """`bundles`: the BundlesData of a new namespace."""
        self._cluster = cluster
        self._bundles = dict(bundles)

    def path_of(self, key: str) -> str | None:
        for prefix in (NAMESPACES, PERMISSIONS):
            if key.startswith(prefix):
                names = key.removeprefix(prefix).split("/")
                return f"{self.root}/{'/'.join(names)}" if _are_names(names) else None
        return None

    def keys_of(self, path: str) -> tuple[str, ...]:
        names = path[len(self.root) + 1 :].split("/")
        if not _are_names(names):
            return ()
        namespace = "/".join(names)
        return NAMESPACES + namespace, PERMISSIONS + namespace

    def has_children(self, path: str) -> bool:
        return path[len(self.root) :].count("/") < 2

    # --- values

    def split(self, path: str, node: bytes) -> Mapping[str, bytes]:
        policies, permissions = self.keys_of(path)
        if not node:
            return {}
        fields = fields_of(node, f"the node {path}")
        found = {policies: encoded(self._policies(fields))}
        if granted := _granted(fields.get(_AUTH), path):
            found[permissions] = encoded(granted)
        return found

    def join(self, path: str, values: Mapping[str, bytes], node: bytes) -> bytes | None:
        policies, permissions = self.keys_of(path)
        if node and policies not in values:
            return None  # the namespace is deleted, with all its grants
        if not values:
            return None
        stands = fields_of(node, f"the node {path}") if node else self._new()
        known = with_new_names(fields_of(values.get(policies, b"{}"), f"the value of {policies!r}"))
        granted = fields_of(values.get(permissions, b"{}"), f"the value of {permissions!r}")
        for field, level in NAMESPACE_LEVELS.items():
            self._put(stands, field, level, known.get(field))
        stands[_AUTH] = {**_object(stands.get(_AUTH)), **{part: {} for part in _PARTS}, **granted}
        return compact(stands)

    def _new(self) -> Fields:
        return {_CLUSTERS: [self._cluster], "bundles": self._bundles, "deleted": False}

    def _put(self, stands: Fields, field: str, level: Level, value: Any) -> None:
        if level.by_cluster:
            others = {k: v for k, v in _object(stands.get(field)).items() if k != self._cluster}
            stands[field] = others if value is None else {**others, self._cluster: value}
        elif value is not None:
            stands[field] = value
        elif field == _CLUSTERS:
            stands[field] = stands.get(field) or [self._cluster]
        elif level.unset is not None:
            stands[field] = level.unset
        else:
            stands.pop(field, None)

    def _policies(self, fields: Mapping[str, Any]) -> Fields:
        """The policies as pybroker stores them, unchecked: the code that uses a value checks it,
        and ignores an invalid one.
        """
        found: Fields = {}
        for field, level in NAMESPACE_LEVELS.items():
            value = fields.get(field)
            if level.by_cluster:
                value = _object(value).get(self._cluster)
            unset = [self._cluster] if field == _CLUSTERS else level.unset
            if value is not None and value != unset:
                found[field] = value
        return found


def _are_names(names: Sequence[str]) -> bool:
    return len(names) == 2 and all(map(is_plain, names))


def _object(value: Any) -> Fields:
    return value if isinstance(value, dict) else {}


def _granted(value: Any, path: str) -> Fields:
    """The permissions. Raises CorruptStorage: an unreadable part must neither grant nor deny
    access.
    """
    if value is None:
        return {}
    found = {part: value.get(part, {}) for part in _PARTS} if isinstance(value, dict) else None
    if found is None or not all(map(_is_of_names, _leaves(found))):
        raise CorruptStorage(
            f"the node {path}: {_AUTH} is not what Apache Pulsar writes; correct it in ZooKeeper"
        )
    return {part: each for part, each in found.items() if each}


def _leaves(found: Mapping[str, Any]) -> list[Any]:
    """The objects whose values must be lists of names."""
    topics = found["destination_auth"]
    by_topic = [*topics.values()] if isinstance(topics, dict) else [topics]
    return [found["namespace_auth"], found["subscription_auth_roles"], *by_topic]


def _is_of_names(each: Any) -> bool:
    return isinstance(each, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in each.values()
    )
