"""Policies that are stored and shown as in Apache Pulsar, and why each has no effect here."""

from typing import Any, Final

from pybroker.broker.policies.kinds import (
    LONG,
    Check,
    anything,
    names,
    properties,
    record,
    text,
    truth,
    whole,
)
from pybroker.broker.policies.policy import Level, Policy, Record

NO_BOOKIES: Final = "standalone has no bookies, and other brokers use the values of broker.conf"
_NO_OFFLOADING: Final = "nothing is offloaded"
ONE_CLUSTER: Final = "nothing is replicated: there is one cluster"


def _kept(
    off: str, name: str, field: str, check: Check = anything, unset: Any = None, **level: Any
) -> Policy[Any]:
    """A policy of namespaces that has no effect."""
    at = Level(name, field, unset=unset, **level)
    return Policy(name, check, lambda config: unset, at, off=off)


PROPERTIES: Final = Policy[Record](
    "properties",
    properties,
    lambda config: {},
    Level("properties", "properties", verb="PUT", unset={}),
    off="properties are only for the operator's own use",
)
ANTI_AFFINITY: Final = _kept(
    "brokers are chosen without anti-affinity groups",
    "antiAffinity",
    "antiAffinityGroup",
    text,
    bare=True,
)
RESOURCE_GROUP: Final = _kept(
    "rates are limited by topic, namespace and broker, not by resource group",
    "resourcegroup", "resource_group_name", text, by_hand=True,
)  # fmt: skip
_OTHERS: Final = (
    _kept("metrics have no labels for topic properties", "allowedTopicPropertyKeysForMetrics",
          "allowed_topic_property_keys_for_metrics", names(), unset=[]),
    _kept(ONE_CLUSTER, "allowedClusters", "allowed_clusters", names(), unset=[], removable=False),
    _kept(_NO_OFFLOADING, "offloadDeletionLagMs", "offload_deletion_lag_ms", whole(-1, LONG),
          verb="PUT"),
    _kept(_NO_OFFLOADING, "offloadThreshold", "offload_threshold", whole(-LONG - 1, LONG),
          unset=-1, verb="PUT", removable=False),
    _kept(_NO_OFFLOADING, "offloadThresholdInSeconds", "offload_threshold_in_seconds",
          whole(-LONG - 1, LONG), unset=-1, verb="PUT", removable=False),
    _kept("bookies are chosen without affinity groups", "persistence/bookieAffinity",
          "bookieAffinityGroup"),
)  # fmt: skip
OFFLOAD: Final = Policy[Any](
    "offloadPolicies",
    anything,
    lambda config: None,
    Level("offloadPolicies", "offload_policies", removable=False),
    Level("offloadPolicies", "offloadPolicies"),
    off=_NO_OFFLOADING,
)
ENTRY_FILTERS: Final = Policy[Any](
    "entryFilters",
    record(entryFilterNames=(text, "")),
    lambda config: {"entryFilterNames": ""},
    Level("entryFilters", "entryFilters"),
    Level("entryFilters", "entryFilters"),
    off="entry filters are Java classes loaded by the broker",
)
_PAUSE: Final = "dispatcherPauseOnAckStatePersistent"
PAUSE_ON_ACK_STATE: Final = Policy[bool](
    _PAUSE,
    truth,
    lambda config: False,
    Level(_PAUSE, f"{_PAUSE}Enabled", unset=False, meant=True),
    Level(_PAUSE, f"{_PAUSE}Enabled", meant=True),
    off="all acknowledgements are persisted, however many ranges they form",
)
REPLICATION: Final = Policy[list[str]](
    "replication",
    names(),
    lambda config: [config.cluster_name],
    Level("replication", "replication_clusters", removable=False, by_hand=True),
    Level("replication", "replicationClusters"),
    off=ONE_CLUSTER,
)
SHADOW_TOPICS: Final = Policy[list[str]](
    "shadowTopics",
    names(),
    lambda config: [],
    topic=Level("shadowTopics", "shadowTopics", verb="PUT"),
    off=ONE_CLUSTER,
)

KEPT: Final[tuple[Policy[Any], ...]] = (
    PROPERTIES,
    ANTI_AFFINITY,
    RESOURCE_GROUP,
    OFFLOAD,
    ENTRY_FILTERS,
    PAUSE_ON_ACK_STATE,
    REPLICATION,
    SHADOW_TOPICS,
    *_OTHERS,
)
