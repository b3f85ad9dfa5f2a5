"""Configures the storage of a cluster's broker with all formats of this package."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from managed_ledger.storage.bookkeeper.backend import ClusterConfig
from managed_ledger.storage.bookkeeper.formats.managed_ledgers import ManagedLedgers
from pybroker.formats.apache.deduplication import DeduplicationCursors
from pybroker.formats.apache.namespaces import NamespaceNodes
from pybroker.formats.apache.schemas import SchemaNodes
from pybroker.formats.apache.tenants import ClusterNodes, PartitionedTopics, TenantNodes

# Prefixes of the keys that Apache Pulsar's set-up of a cluster writes, before any topic exists.
SET_UP: Final = ("/clusters/", "/tenants/", "/namespaces/", "/permissions/", "/partitioned-topics/")


def in_apaches_formats(
    config: ClusterConfig, cluster: str, bundles: Mapping[str, Any]
) -> ClusterConfig:
    """`config` with Apache's formats. `cluster`: this cluster's name. `bundles`: the BundlesData of
    a new namespace.
    """
    ledgers = ManagedLedgers()
    deduplication = DeduplicationCursors(ledgers)
    return replace(
        config,
        families=(deduplication, ledgers, TenantNodes(), ClusterNodes(), PartitionedTopics()),
        joined=(NamespaceNodes(cluster, bundles),),
        lists=(SchemaNodes(),),
    )
