"""Clusters, resource groups, quotas, bundles: what operators' tools store and read back."""

from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client
from pybroker.testing import RunningBroker

CLUSTERS = "/admin/v2/clusters"
GROUPS = "/admin/v2/resourcegroups"
QUOTAS = "/admin/v2/resource-quotas"
NAMESPACES = "/admin/v2/namespaces"
P = "/admin/v2/persistent"
WHOLE = "0x00000000_0xffffffff"


@pytest.fixture
def far(admin: httpx.Client) -> Iterator[str]:
    """The path of another cluster, which exists during the test."""
    path = f"{CLUSTERS}/far"
    assert admin.put(path, json={"serviceUrl": "http://far:8080"}).status_code == 200
    yield path
    admin.delete(path)


def test_another_cluster_comes_changes_and_goes(admin: httpx.Client, far: str) -> None:
    assert admin.get(CLUSTERS).json() == ["far", "standalone"]
    assert admin.put(far, json={}).status_code == 409
    assert admin.post(far, json={"serviceUrl": "http://b:1"}).status_code == 200
    assert admin.get(far).json() == {"serviceUrl": "http://b:1"}
    assert admin.delete(far).status_code == 204
    assert admin.get(far).status_code == 404
    assert admin.post(far, json={}).status_code == 404
    assert admin.delete(far).status_code == 404


def test_this_cluster_keeps_its_urls_and_cannot_go(
    admin: httpx.Client, admin_broker: RunningBroker
) -> None:
    own = f"{CLUSTERS}/standalone"
    assert admin.delete(own).status_code == 412
    assert admin.put(own, json={}).status_code == 409
    assert admin.post(own, json={"listenerName": "inner"}).status_code == 200
    assert admin.get(own).json()["brokerServiceUrl"] == admin_broker.service_url
    assert admin.get(own).json()["listenerName"] == "inner"
    admin.post(own, json={})


@pytest.mark.parametrize("name", ["a%2Fb", "a b", "ä", "x" * 300, "%00"])
def test_a_clusters_name_is_checked(admin: httpx.Client, name: str) -> None:
    assert admin.put(f"{CLUSTERS}/{name}", json={}).status_code in (400, 412)


def test_peers_are_other_clusters(admin: httpx.Client, far: str) -> None:
    own = f"{CLUSTERS}/standalone/peers"
    assert admin.get(own).json() == []
    assert admin.post(own, json=["mars"]).status_code == 412
    assert admin.post(own, json=["standalone"]).status_code == 412
    assert admin.post(own, json=["far"]).status_code == 204
    assert admin.get(own).json() == ["far"]
    admin.post(own, json=[])


def test_a_broker_is_in_one_failure_domain(admin: httpx.Client, far: str) -> None:
    domains = f"{far}/failureDomains"
    assert admin.get(domains).json() == {}
    assert admin.post(f"{domains}/left", json={"brokers": ["b1", "b2"]}).status_code == 204
    assert admin.post(f"{domains}/left", json={"brokers": ["b1"]}).status_code == 204
    assert admin.post(f"{domains}/right", json={"brokers": ["b1"]}).status_code == 409
    assert admin.post(f"{domains}/right", json={"brokers": "b1"}).status_code == 400
    assert admin.get(f"{domains}/left").json() == {"brokers": ["b1"]}
    assert admin.get(f"{domains}/right").status_code == 404
    assert admin.delete(f"{domains}/left").status_code == 204
    assert admin.delete(f"{domains}/left").status_code == 404


def test_isolation_policies_are_kept(admin: httpx.Client, far: str) -> None:
    policies = f"{far}/namespaceIsolationPolicies"
    policy = {
        "namespaces": ["public/.*"],
        "primary": ["broker.*"],
        "secondary": [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
    }
    assert admin.post(f"{policies}/own", json=policy | {"primary": []}).status_code == 400
    assert admin.post(f"{policies}/own", json={"namespaces": ["a"]}).status_code == 400
    assert admin.post(f"{policies}/own", json=policy).status_code == 204
    assert admin.get(policies).json() == {"own": policy}
    (broker,) = admin.get(f"{policies}/brokers").json()
    assert (broker["policyName"], broker["namespaceRegex"]) == ("own", ["public/.*"])
    assert admin.get(f"{policies}/brokers/{broker['brokerName']}").json() == broker
    assert admin.get(f"{policies}/brokers/none").status_code == 404
    assert admin.delete(f"{policies}/own").status_code == 204


def test_no_cluster_is_migrated(admin: httpx.Client, far: str) -> None:
    assert admin.get(f"{far}/migrate").json()["migrated"] is False
    assert admin.post(f"{far}/migrate", params={"migrated": True}, json={}).status_code == 400


def test_a_tenant_may_name_every_known_cluster(admin: httpx.Client, far: str) -> None:
    settings = {"allowedClusters": ["standalone", "far"]}
    assert admin.put("/admin/v2/tenants/wide", json=settings).status_code == 204
    assert admin.put("/admin/v2/tenants/odd", json={"allowedClusters": [1]}).status_code == 400
    admin.delete("/admin/v2/tenants/wide")


def test_a_resource_group_keeps_what_is_not_said(admin: httpx.Client) -> None:
    group = f"{GROUPS}/batch"
    assert admin.get(group).status_code == 404
    assert admin.put(group, json={"publishRateInMsgs": 10, "unknown": 1}).status_code == 204
    assert admin.put(group, json={"dispatchRateInBytes": 20}).status_code == 204
    assert admin.get(group).json() == {"publishRateInMsgs": 10, "dispatchRateInBytes": 20}
    assert admin.get(GROUPS).json() == ["batch"]
    assert admin.put(group, json={"publishRateInMsgs": "many"}).status_code == 400
    assert admin.delete(group).status_code == 204
    assert admin.delete(group).status_code == 404


def test_quotas_of_a_namespace_go_before_the_default_ones(
    admin: httpx.Client, namespace: str
) -> None:
    own = f"{QUOTAS}/{namespace}/{WHOLE}"
    standard = admin.get(QUOTAS).json()
    assert admin.get(own).json() == standard
    assert admin.post(own, json={"memory": 1.0}).status_code == 204
    assert admin.post(QUOTAS, json=standard | {"msgRateIn": 7.0}).status_code == 204
    assert admin.get(own).json() == standard | {"msgRateIn": 7.0, "memory": 1.0}
    assert admin.post(own, json={"memory": "much"}).status_code == 400
    assert admin.delete(own).status_code == 204
    assert admin.delete(own).status_code == 204
    assert admin.get(own).json() == standard | {"msgRateIn": 7.0}
    admin.post(QUOTAS, json=standard)
    assert admin.get(f"{QUOTAS}/public/none/{WHOLE}").status_code == 404


def test_a_quota_goes_with_its_namespace(admin: httpx.Client) -> None:
    namespace = f"{NAMESPACES}/public/made-again"
    own = f"{QUOTAS}/public/made-again/{WHOLE}"
    standard = admin.get(QUOTAS).json()
    for _ in range(2):
        assert admin.put(namespace).status_code == 204
        assert admin.get(own).json() == standard
        assert admin.post(own, json={"memory": 1.0}).status_code == 204
        assert admin.delete(namespace).status_code == 204


def test_a_namespace_is_one_bundle(admin: httpx.Client, namespace: str, topic: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    assert admin.get(f"{path}/bundles").json()["numBundles"] == 1
    positions = admin.get(f"{path}/{WHOLE}/topicHashPositions").json()["topicHashPositions"]
    assert list(positions) == [f"persistent://{topic}"]
    assert admin.put(f"{path}/{WHOLE}/unload").status_code == 204
    assert admin.put(f"{path}/{WHOLE}/split").status_code == 412
    assert admin.delete(f"{path}/{WHOLE}").status_code == 409
    assert admin.put(f"{path}/0x00000000_0x7fffffff/unload").status_code == 404
    assert admin.get(f"{NAMESPACES}/public/none/bundles").status_code == 404


@pytest.mark.parametrize("bundle", ["", f"/{WHOLE}"])
def test_all_backlogs_of_a_namespace_are_cleared_or_one_subscriptions(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str, bundle: str
) -> None:
    topics = [f"{namespace}/a", f"{namespace}/b"]
    with closing(Client(admin_broker.service_url)) as client:
        for topic in topics:
            admin.put(f"{P}/{topic}")
            for name in ("audit", "other"):
                admin.put(f"{P}/{topic}/subscription/{name}", json="earliest")
            client.create_producer(f"persistent://{topic}").send(b"x")

    def backlogs(name: str) -> list[int]:
        stats = [admin.get(f"{P}/{topic}/stats").json() for topic in topics]
        return [one["subscriptions"][name]["msgBacklog"] for one in stats]

    path = f"{NAMESPACES}/{namespace}{bundle}/clearBacklog"
    assert admin.post(f"{path}/audit").status_code == 204
    assert (backlogs("audit"), backlogs("other")) == ([0, 0], [1, 1])
    assert admin.post(path).status_code == 204
    assert backlogs("other") == [0, 0]


def test_a_subscription_is_removed_from_a_namespace_unless_it_has_consumers(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    for name in ("a", "b"):
        admin.put(f"{P}/{namespace}/{name}")
        admin.put(f"{P}/{namespace}/{name}/subscription/audit")
    path = f"{NAMESPACES}/{namespace}/unsubscribe/audit"
    with closing(Client(admin_broker.service_url)) as client:
        client.subscribe(f"persistent://{namespace}/b", "audit")
        assert admin.post(path).status_code == 412
    assert admin.post(path).status_code == 204
    for name in ("a", "b"):
        assert admin.get(f"{P}/{namespace}/{name}/subscriptions").json() == []


def test_a_broker_within_another_process_is_not_shut_down_from_outside(admin: httpx.Client) -> None:
    assert admin.post("/admin/v2/brokers/shutdown").status_code == 412


def test_the_stats_of_all_topics_come_by_namespace(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    stats = admin.get("/admin/v2/broker-stats/topics").json()
    (found,) = stats[namespace][WHOLE]["persistent"].values()
    assert found["storageSize"] == 0
    assert f"persistent://{topic}" in stats[namespace][WHOLE]["persistent"]


def test_a_broker_without_topics_has_no_stats_of_topics() -> None:
    with pybroker.testing.broker(http=True) as broker:
        assert httpx.get(f"{broker.admin_url}/admin/v2/broker-stats/topics").json() == {}


def test_the_broker_tells_of_its_load(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    report = admin.get("/admin/v2/broker-stats/load-report").json()
    assert f"{namespace}/{WHOLE}" in report["bundles"]
    assert report["pulsarServiceUrl"] == admin_broker.service_url
    (metrics,) = admin.get("/admin/v2/broker-stats/metrics").json()
    assert metrics["metrics"]["brk_topics_count"] == report["numTopics"]
    assert admin.get("/admin/v2/broker-stats/mbeans").json() == []
    assert admin.get("/admin/v2/broker-stats/bookieops").json() == {}
    assert admin.get("/admin/v2/broker-stats/allocator-stats/default").json() == {}
    available = f"/admin/v2/broker-stats/broker-resource-availability/{namespace}"
    assert len(admin.get(available).json()) == 1


def test_null_is_no_body(admin: httpx.Client) -> None:
    path = "/admin/v2/clusters/standalone/peers"
    assert admin.post(path, content=b"null").status_code == 204
    assert admin.get(path).json() == []
