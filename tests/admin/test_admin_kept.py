"""Stored data about topics and namespaces that the broker only returns: properties, groups."""

import json

import httpx
import pytest

from pybroker.client import Client
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"
NAMESPACES = "/admin/v2/namespaces"


def partitioned(admin: httpx.Client, namespace: str) -> str:
    body = json.dumps({"partitions": 2, "properties": {"team": "billing"}})
    path = f"{P}/{namespace}/wide"
    assert admin.put(f"{path}/partitions", content=body).status_code == 204
    return path


def test_a_topics_properties_are_merged_and_outlive_an_unload(
    admin: httpx.Client, topic: str
) -> None:
    path = f"{P}/{topic}/properties"
    assert admin.get(path).json() == {}
    assert admin.put(path, json={"team": "billing", "epoch": "1"}).status_code == 204
    assert admin.put(path, json={"epoch": "2"}).status_code == 204
    admin.put(f"{P}/{topic}/unload")
    assert admin.get(path).json() == {"team": "billing", "epoch": "2"}
    assert admin.delete(path, params={"key": "team"}).status_code == 204
    assert admin.delete(path, params={"key": "none"}).status_code == 204
    assert admin.get(path).json() == {"epoch": "2"}
    assert admin.delete(path).status_code == 400


def test_a_partitioned_topics_properties_are_changed_as_well(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{partitioned(admin, namespace)}/properties"
    assert admin.put(path, json={"owner": "ann"}).status_code == 204
    assert admin.delete(path, params={"key": "team"}).status_code == 204
    assert admin.get(path).json() == {"owner": "ann"}
    assert admin.get(f"{P}/{namespace}/wide/partitions").json()["partitions"] == 2


def test_a_topic_is_created_with_properties(admin: httpx.Client, namespace: str) -> None:
    path = f"{P}/{namespace}/made"
    assert admin.put(path, json={"a": "b"}).status_code == 204
    assert admin.get(f"{path}/properties").json() == {"a": "b"}
    assert admin.get(f"{P}/{namespace}/none/properties").status_code == 404


def test_a_topic_whose_properties_are_too_large_is_not_created(
    admin: httpx.Client, namespace: str
) -> None:
    path, too_large = f"{P}/{namespace}/made", {"a": "ä" * 40_000}
    assert admin.put(path, json=too_large).status_code == 412
    assert admin.put(path, json={"a": "b"}).status_code == 204
    wide = f"{P}/{namespace}/wide/partitions"
    assert admin.put(wide, json={"partitions": 2, "properties": too_large}).status_code == 412
    assert admin.put(wide, json={"partitions": 2, "properties": {"a": "b"}}).status_code == 204


def test_properties_do_not_reach_what_the_broker_keeps_of_a_topic(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    for key in ("terminated", "topic.epoch", "property.x"):
        admin.put(f"{P}/{topic}/properties", json={key: "true"})
    admin.put(f"{P}/{topic}/unload")
    with Client(admin_broker.service_url) as client:
        client.create_producer(f"persistent://{topic}").send(b"x")
    assert len(admin.get(f"{P}/{topic}/properties").json()) == 3


@pytest.mark.parametrize("body", ["[1]", '{"a": 1}', json.dumps({"a": "x" * 70_000})])
def test_odd_or_endless_properties_are_refused(
    admin: httpx.Client, topic: str, namespace: str, body: str
) -> None:
    for path in (f"{P}/{topic}", partitioned(admin, namespace)):
        assert admin.put(f"{path}/properties", content=body).status_code in (400, 412)


def test_a_backlog_is_analyzed_from_the_cursor_or_from_a_position(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    path = f"{P}/{topic}/subscription/audit"
    admin.put(path, json="earliest")
    with Client(admin_broker.service_url) as client:
        producer = client.create_producer(f"persistent://{topic}", batching_enabled=True)
        for number in range(3):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        producer.send(b"last")
    found = admin.post(f"{path}/analyzeBacklog").json()
    assert (found["entries"], found["messages"], found["aborted"]) == (2, 4, False)
    assert found["firstMessageId"].endswith(":0") and found["lastMessageId"].endswith(":1")
    ledger = int(found["lastMessageId"].split(":")[0])
    found = admin.post(f"{path}/analyzeBacklog", json={"ledgerId": ledger, "entryId": 1}).json()
    assert (found["entries"], found["messages"]) == (1, 1)
    admin.post(f"{path}/skip_all")
    assert admin.post(f"{path}/analyzeBacklog").json()["firstMessageId"] is None
    assert admin.post(f"{P}/{topic}/subscription/none/analyzeBacklog").status_code == 404
    offline = admin.get(f"{P}/{topic}/backlog").json()
    assert (offline["totalMessages"], offline["messageBacklog"]) == (2, 0)


def test_a_namespace_is_of_a_resource_group_that_exists(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{NAMESPACES}/{namespace}/resourcegroup"
    assert admin.get(path).status_code == 204
    assert admin.post(f"{path}/none").status_code == 404
    admin.put("/admin/v2/resourcegroups/slow", json={"publishRateInMsgs": 1})
    assert admin.post(f"{path}/slow").status_code == 204
    assert admin.get(path).text == "slow"
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 204
    admin.delete("/admin/v2/resourcegroups/slow")


def test_the_namespaces_of_an_anti_affinity_group_are_found(
    admin: httpx.Client, namespace: str
) -> None:
    admin.post(f"{NAMESPACES}/{namespace}/antiAffinity", json="apart")
    path = f"{NAMESPACES}/standalone/antiAffinity"
    assert admin.get(f"{path}/apart").json() == [namespace]
    assert admin.get(f"{path}/apart", params={"tenant": "pulsar"}).json() == []
    assert admin.get(f"{path}/other").json() == []
    assert admin.get(f"{NAMESPACES}/mars/antiAffinity/apart").status_code == 404


def test_offload_policies_have_a_route_out(admin: httpx.Client, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    admin.post(f"{path}/offloadPolicies", json={"managedLedgerOffloadDriver": "S3"})
    assert admin.delete(f"{path}/removeOffloadPolicies").status_code == 204
    assert admin.get(f"{path}/offloadPolicies").status_code == 204


def test_a_topic_is_in_its_namespaces_only_bundle(admin: httpx.Client, topic: str) -> None:
    path = f"/lookup/v2/topic/persistent/{topic}/bundle"
    assert admin.get(path).text == "0x00000000_0xffffffff"


def test_a_schemas_metadata_lists_its_versions(admin: httpx.Client, topic: str) -> None:
    path = f"/admin/v2/schemas/{topic}"
    assert admin.get(f"{path}/metadata").status_code == 404
    admin.post(f"{path}/schema", json={"type": "STRING", "schema": "", "properties": {}})
    metadata = admin.get(f"{path}/metadata").json()
    assert metadata["info"]["version"] == 0 and len(metadata["index"]) == 1
