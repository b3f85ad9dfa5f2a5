"""Tenants, clusters and partitioned topics: each has a node with a JSON object.

/admin/policies/<tenant>                        TenantInfo
/admin/clusters/<cluster>                       ClusterData
/admin/partitioned-topics/<t>/<ns>/<domain>/<topic>   PartitionedTopicMetadata
"""

from typing import Final

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.family import NO_LEDGER, Kept, Stored
from pybroker.formats.apache.json_nodes import (
    Fields,
    JsonFamily,
    TopicFamily,
    compact,
    encoded,
    fields_of,
)

_MAX_PARTITIONS: Final = 1 << 20
_DATA: Final = "data"
_BESIDE: Final = ("failureDomains", "namespaceIsolationPolicies")


class TenantNodes(JsonFamily):
    def __init__(self) -> None:
        super().__init__("/tenants/", "/admin/policies", 1, ("adminRoles", "allowedClusters"))

    def has_children(self, path: str) -> bool:
        return path == self.root  # namespaces have a family of their own

    def new(self, key: str) -> Fields:
        return {"adminRoles": [], "allowedClusters": []}

    def said(self, value: Fields) -> Fields:
        return {"adminRoles": [], "allowedClusters": [], **value}

    def read(self, fields: Fields, key: str) -> Fields:
        for name, found in fields.items():
            if not _are_texts(found):
                raise CorruptStorage(
                    f"the node of {key!r}: {name} is not a list of names; correct it in ZooKeeper"
                )
        return fields


class ClusterNodes(JsonFamily):
    """The nodes of clusters. Failure domains and isolation policies are additional fields, which
    Apache ignores.
    """

    def __init__(self) -> None:
        super().__init__("/clusters/", "/admin/clusters", 1, ())

    def has_children(self, path: str) -> bool:
        return path == self.root

    def encode(self, key: str, value: bytes, kept: Kept, ledger_id: int = NO_LEDGER) -> bytes:
        said = fields_of(value, f"the value of {key!r}")
        beside = {name: each for name, each in said.items() if name != _DATA}
        return compact({**said.get(_DATA, {}), **beside})

    def decode(self, key: str, node: bytes) -> Stored | None:
        if not node:
            return None
        fields = fields_of(node, f"the node of {key!r}")
        beside = {name: fields.pop(name) for name in _BESIDE if isinstance(fields.get(name), dict)}
        return Stored(encoded({_DATA: fields, **beside}))


class PartitionedTopics(TopicFamily):
    def __init__(self) -> None:
        super().__init__(
            "/partitioned-topics/",
            "/admin/partitioned-topics",
            ("partitions", "properties", "deleted"),
        )

    def said(self, value: Fields) -> Fields:
        value = {"deleted": False, **value}
        if not value.get("properties"):
            value = {name: each for name, each in value.items() if name != "properties"}
        return value

    def read(self, fields: Fields, key: str) -> Fields:
        partitions, properties = fields.get("partitions", 0), fields.get("properties", {})
        if type(partitions) is not int or not 0 <= partitions <= _MAX_PARTITIONS:
            raise CorruptStorage(
                f"the node of {key!r} says {str(partitions)[:40]!r} partitions; correct it in "
                "ZooKeeper, or delete it"
            )
        if not isinstance(properties, dict) or not _are_texts([*properties.values()]):
            raise CorruptStorage(
                f"the node of {key!r}: properties must contain strings; correct it in ZooKeeper"
            )
        doomed = {"deleted": True} if fields.get("deleted") is True else {}
        return {"partitions": partitions, "properties": properties, **doomed}


def _are_texts(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(each, str) for each in found)
