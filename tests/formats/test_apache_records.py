"""Tenants, namespaces and partitioned topics as Apache Pulsar stores them in ZooKeeper."""

import json
import random

import pytest

from managed_ledger.errors import CorruptStorage
from managed_ledger.storage.bookkeeper.formats.family import Kept, Stored
from pybroker.formats.apache.namespaces import NamespaceNodes
from pybroker.formats.apache.tenants import ClusterNodes, PartitionedTopics, TenantNodes

BUNDLES = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
NAMESPACES = NamespaceNodes("east", BUNDLES)
PATH = "/admin/policies/acme/shop"
POLICIES, PERMISSIONS = "/namespaces/acme/shop", "/permissions/acme/shop"
# Apache Pulsar 4.2 wrote this for a namespace with a TTL, a rate and a grant.
APACHES = {
    "auth_policies": {
        "namespace_auth": {"bob": ["produce"]},
        "destination_auth": {},
        "subscription_auth_roles": {},
    },
    "replication_clusters": ["east"],
    "allowed_clusters": [],
    "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {"east": {"dispatchThrottlingRateInMsg": 7}, "west": {"a": 1}},
    "latency_stats_sample_rate": {},
    "message_ttl_in_seconds": 77,
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
}


def split(node: object) -> dict[str, object]:
    found = NAMESPACES.split(PATH, json.dumps(node).encode())
    return {key: json.loads(value) for key, value in found.items()}


def join(values: dict[str, object], node: object = None) -> dict[str, object]:
    encoded = {key: json.dumps(value).encode() for key, value in values.items()}
    joined = NAMESPACES.join(PATH, encoded, b"" if node is None else json.dumps(node).encode())
    assert joined is not None
    found: dict[str, object] = json.loads(joined)
    return found


# --- namespaces


def test_a_namespaces_node_has_its_policies_and_its_permissions():
    assert NAMESPACES.path_of(POLICIES) == NAMESPACES.path_of(PERMISSIONS) == PATH
    assert NAMESPACES.keys_of(PATH) == (POLICIES, PERMISSIONS)
    assert NAMESPACES.keys_of("/admin/policies/acme") == ()
    assert NAMESPACES.path_of("/tenants/acme") is None
    assert NAMESPACES.path_of("/namespaces/acme/..") is None


def test_what_apache_wrote_is_read():
    assert split(APACHES) == {
        POLICIES: {
            "message_ttl_in_seconds": 77,
            "topicDispatchRate": {"dispatchThrottlingRateInMsg": 7},
            "is_allow_auto_update_schema": True,
        },
        PERMISSIONS: {"namespace_auth": {"bob": ["produce"]}},
    }


def test_unchanged_data_of_apache_is_kept():
    values = split(APACHES)
    assert join(values, APACHES).items() >= APACHES.items()
    values[POLICIES] = {"message_ttl_in_seconds": 5}
    changed = join(values, APACHES)
    assert changed["message_ttl_in_seconds"] == 5
    assert changed["topicDispatchRate"] == {"west": {"a": 1}}
    assert changed["bundles"] == APACHES["bundles"]
    assert changed["auth_policies"] == APACHES["auth_policies"]
    assert "is_allow_auto_update_schema" not in changed


def test_a_new_namespace_is_of_this_cluster_and_divided():
    made = join({POLICIES: {"message_ttl_in_seconds": 5}})
    assert made["replication_clusters"] == ["east"]
    assert made["bundles"] == BUNDLES
    assert made["message_ttl_in_seconds"] == 5
    assert split(made) == {POLICIES: {"message_ttl_in_seconds": 5}}


def test_limits_of_transactions_stand_beside_apaches_fields():
    limits = {"transaction_limits": {"maxOpenTransactions": 3}}
    made = join({POLICIES: limits})
    assert made["transaction_limits"] == limits["transaction_limits"]
    assert split(made) == {POLICIES: limits}


def test_revoking_everything_leaves_no_grant():
    changed = join({POLICIES: {}}, APACHES)
    assert changed["auth_policies"] == {
        "namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}
    }  # fmt: skip
    assert PERMISSIONS not in split(changed)


def test_the_node_goes_with_the_policies_whatever_was_granted():
    granted = {PERMISSIONS: b'{"namespace_auth": {"bob": ["produce"]}}'}
    assert NAMESPACES.join(PATH, granted, json.dumps(APACHES).encode()) is None
    assert NAMESPACES.join(PATH, {}, b"") is None


@pytest.mark.parametrize(
    "auth", [[], "x", {"namespace_auth": []}, {"namespace_auth": {"bob": "produce"}},
             {"destination_auth": {"t": ["bob"]}}, {"subscription_auth_roles": {"s": [1]}}],
)  # fmt: skip
def test_unreadable_permissions_admit_no_role(auth):
    with pytest.raises(CorruptStorage, match=r"acme/shop.*auth_policies.*correct it"):
        split({**APACHES, "auth_policies": auth})


def test_a_value_of_the_wrong_shape_is_left_to_the_code_that_checks_it():
    assert split({"topicDispatchRate": [], "message_ttl_in_seconds": "no"}) == {
        POLICIES: {"message_ttl_in_seconds": "no"}
    }


# --- records with a node each

ALONE = [
    (TenantNodes(), "/tenants/acme", "/admin/policies/acme",
     {"adminRoles": ["joe"], "allowedClusters": ["east"]}),
    (ClusterNodes(), "/clusters/west", "/admin/clusters/west",
     {"data": {"serviceUrl": "http://w"}, "failureDomains": {"a": {"brokers": []}}}),
    (PartitionedTopics(), "/partitioned-topics/acme/shop/persistent/a b",
     "/admin/partitioned-topics/acme/shop/persistent/a+b",
     {"partitions": 3, "properties": {"k": "v"}}),
]  # fmt: skip


@pytest.mark.parametrize(("family", "key", "path", "record"), ALONE, ids=["t", "c", "p"])
def test_a_record_comes_back(family, key, path, record):
    assert (family.path_of(key), family.key_of(path)) == (path, key)
    node = family.encode(key, json.dumps(record).encode(), {})
    stored = family.decode(key, node)
    assert json.loads(stored.value) == record
    kept: Kept = stored.kept
    assert family.encode(key, stored.value, kept) == node


def test_a_partitioned_topics_node_is_apaches():
    family, key = PartitionedTopics(), ALONE[2][1]
    value = json.dumps({"partitions": 3, "properties": {}}).encode()
    assert json.loads(family.encode(key, value, {})) == {"partitions": 3, "deleted": False}
    stored = family.decode(key, b'{"partitions":3,"deleted":true,"later":1}')
    assert isinstance(stored, Stored)
    assert json.loads(stored.value) == {"partitions": 3, "properties": {}, "deleted": True}
    more = json.dumps({"partitions": 5, "properties": {}, "deleted": True}).encode()
    assert json.loads(family.encode(key, more, stored.kept)) == {
        "partitions": 5, "deleted": True, "later": 1
    }  # fmt: skip


def test_a_node_that_is_there_for_others_below_it_is_no_record():
    assert TenantNodes().decode("/tenants/acme", b"") is None


HOSTILE = [b"no", b"[]", b"[" * 100_000, b'"', b"\xff", b'{"partitions":-1}',
           b'{"partitions":1e99}', b'{"partitions":true}', b'{"partitions":3,"properties":[]}',
           b'{"partitions":3,"properties":{"a":1}}', b'{"partitions":99999999}']  # fmt: skip


@pytest.mark.parametrize("node", HOSTILE, ids=lambda node: repr(node[:30]))
def test_what_cannot_be_read_is_a_sentence_with_its_node(node):
    key = "/partitioned-topics/acme/shop/persistent/orders"
    with pytest.raises(CorruptStorage, match=r"shop/persistent/orders.*correct"):
        PartitionedTopics().decode(key, node)


@pytest.mark.parametrize("node", [b"[]", b'{"adminRoles":"joe"}', b'{"allowedClusters":[1]}'])
def test_a_tenant_that_cannot_be_read_is_a_sentence(node):
    with pytest.raises(CorruptStorage, match=r"/tenants/acme.*correct"):
        TenantNodes().decode("/tenants/acme", node)


def test_damage_is_corruption_or_another_value_and_nothing_else():
    node, rng = json.dumps(APACHES).encode(), random.Random(3)
    for _ in range(500):
        each = bytearray(node[: rng.randint(1, len(node))] if rng.random() < 0.3 else node)
        for _ in range(rng.randint(1, 4)):
            each[rng.randrange(len(each))] = rng.choice(b'{}[]":,0x\xff\n')
        try:
            values = NAMESPACES.split(PATH, bytes(each))
            NAMESPACES.join(PATH, values, bytes(each))
        except CorruptStorage:
            continue
