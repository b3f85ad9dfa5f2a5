"""Namespaces, topics, partitioned topics, subscriptions, schemas through the admin REST."""

import json

import httpx
import pytest
from raw_client import RawClient

from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

P = "/admin/v2/persistent"
N = "/admin/v2/namespaces"
S = "/admin/v2/schemas"
_RECORD = '{"type": "record", "name": "r", "fields": []}'


def test_a_namespace_comes_and_goes(admin: httpx.Client) -> None:
    assert admin.put(f"{N}/public/short").status_code == 204
    assert admin.put(f"{N}/public/short").status_code == 409
    assert "public/short" in admin.get(f"{N}/public").json()
    assert admin.get(f"{N}/public/short").json()["replication_clusters"] == ["standalone"]
    assert admin.delete(f"{N}/public/short").status_code == 204
    assert admin.get(f"{N}/public/short").status_code == 404


def test_a_namespace_of_a_missing_tenant_is_not_found(admin: httpx.Client) -> None:
    assert admin.put(f"{N}/nobody/ns").status_code == 404


def test_a_namespace_with_topics_goes_by_force_only(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    admin.put(f"{P}/{namespace}/parts/partitions", json=2)
    assert admin.delete(f"{N}/{namespace}").status_code == 409
    assert admin.delete(f"{N}/{namespace}", params={"force": "true"}).status_code == 204
    assert admin.get(f"{P}/{topic}/stats").status_code == 404


def test_policies_are_kept_and_taken_back(admin: httpx.Client, namespace: str) -> None:
    override = {"allowAutoTopicCreation": False}
    path = f"{N}/{namespace}/autoTopicCreation"
    assert admin.get(path).status_code == 204
    assert admin.post(path, json=override).status_code == 204
    assert admin.get(path).json() == override
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 204


def test_deduplication_takes_effect_on_loaded_topics(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    assert admin.get(f"{P}/{topic}/stats").json()["deduplicationStatus"] == "Disabled"
    assert admin.post(f"{N}/{namespace}/deduplication", json=True).status_code == 204
    assert admin.get(f"{P}/{topic}/stats").json()["deduplicationStatus"] == "Enabled"


def test_topics_are_listed_by_full_name(admin: httpx.Client, namespace: str, topic: str) -> None:
    assert admin.get(f"{P}/{namespace}").json() == [f"persistent://{topic}"]
    assert admin.get(f"{N}/{namespace}/topics").json() == [f"persistent://{topic}"]
    assert admin.get(f"/admin/v2/non-persistent/{namespace}").json() == []


def test_a_topic_is_created_once(admin: httpx.Client, topic: str) -> None:
    assert admin.put(f"{P}/{topic}").status_code == 409


def test_a_deleted_topic_is_gone(admin: httpx.Client, namespace: str, topic: str) -> None:
    assert admin.delete(f"{P}/{topic}").status_code == 204
    assert admin.get(f"{P}/{namespace}").json() == []
    assert admin.delete(f"{P}/{topic}").status_code == 404


def test_a_topic_name_may_hold_an_encoded_slash(admin: httpx.Client, namespace: str) -> None:
    assert admin.put(f"{P}/{namespace}/a%2Fb").status_code == 204
    assert admin.get(f"{P}/{namespace}").json() == [f"persistent://{namespace}/a/b"]
    assert admin.get(f"{P}/{namespace}/a%2Fb/stats").status_code == 200


@pytest.mark.parametrize("name", ["%2e%2e", "a%00b", "%ff", "a%ED%A0%80"])
def test_an_impossible_topic_name_is_refused(
    admin: httpx.Client, namespace: str, name: str
) -> None:
    assert admin.put(f"{P}/{namespace}/{name}").status_code in (404, 412)
    assert admin.get(f"{P}/{namespace}").json() == []


def test_a_slash_hidden_in_a_namespace_is_refused(admin: httpx.Client) -> None:
    assert admin.put(f"{P}/public/default%2Fx/t").status_code == 412


@pytest.mark.parametrize(
    ("status", "override"),
    [
        (204, {"topicType": "partitioned", "defaultNumPartitions": 3}),
        (204, {"topicType": "non-partitioned"}),
        (412, {"topicType": "partitioned"}),
        (412, {"topicType": "partitioned", "defaultNumPartitions": 0}),
        (412, {"topicType": "non-partitioned", "defaultNumPartitions": 3}),
        (412, {"topicType": "round"}),
        (412, {}),
        (406, {"topicType": "partitioned", "defaultNumPartitions": 10**9}),
    ],
)
def test_partitions_are_for_topics_created_as_partitioned(
    admin: httpx.Client, namespace: str, status: int, override: dict[str, object]
) -> None:
    path = f"{N}/{namespace}/autoTopicCreation"
    answer = admin.post(path, json={"allowAutoTopicCreation": True} | override)
    assert answer.status_code == status, answer.text
    assert admin.post(path, json={"allowAutoTopicCreation": False} | override).status_code == 204


def test_a_partitioned_topic_grows_and_goes(admin: httpx.Client, namespace: str) -> None:
    path = f"{P}/{namespace}/parts/partitions"
    assert admin.put(path, json=2).status_code == 204
    assert admin.get(path).json()["partitions"] == 2
    assert admin.get(f"{P}/{namespace}/partitioned").json() == [f"persistent://{namespace}/parts"]
    assert admin.post(path, json=3).status_code == 204
    assert len(admin.get(f"{P}/{namespace}").json()) == 3
    assert admin.post(path, json=1).status_code == 422
    assert admin.post(path, json=10**9).status_code == 422
    assert admin.delete(path).status_code == 204
    assert admin.get(f"{P}/{namespace}").json() == []


def test_what_comes_to_a_new_partition_first_is_not_lost_to_a_subscription(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    """Its consumers learn of the partition later than producers, and subscribe at the latest."""
    topic = f"{namespace}/parts"
    admin.put(f"{P}/{topic}/partitions", json=1)
    with RawClient(admin_broker.service_url) as raw:
        latest = pb.CommandSubscribe.Latest
        raw.subscribe(f"persistent://{topic}-partition-0", 1, initialPosition=latest)
        assert admin.post(f"{P}/{topic}/partitions", json=2).status_code == 204
        new = f"persistent://{topic}-partition-1"
        raw.create_producer(new)
        raw.publish(b"early", 0)
        raw.subscribe(new, 2, initialPosition=latest)
        raw.flow(1, 2)
        assert raw.messages(1)[0].consumer_id == 2


def test_a_partitioned_topic_keeps_what_its_creator_says_of_it(
    admin: httpx.Client, namespace: str
) -> None:
    """The request is the Go client's."""
    path = f"{P}/{namespace}/parts"
    body = {"partitions": 2, "properties": {"team": "billing"}}
    kind = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
    answer = admin.put(f"{path}/partitions", content=json.dumps(body), headers=kind)
    assert answer.status_code == 204
    assert admin.post(f"{path}/partitions", json=3).status_code == 204
    shown = {"partitions": 3, "deleted": False, "properties": {"team": "billing"}}
    assert admin.get(f"{path}/partitions").json() == shown
    assert admin.get(f"{path}/partitioned-stats").json()["metadata"] == shown


@pytest.mark.parametrize("properties", [[], {"a": 1}, "x"])
def test_odd_properties_are_refused(
    admin: httpx.Client, namespace: str, properties: object
) -> None:
    body = {"partitions": 2, "properties": properties or [1]}
    assert admin.put(f"{P}/{namespace}/parts/partitions", json=body).status_code == 400


@pytest.mark.parametrize("count", [0, -1, 10**9, "x", 1.5, True, None])
def test_an_impossible_partition_count_is_refused(
    admin: httpx.Client, namespace: str, count: object
) -> None:
    assert admin.put(f"{P}/{namespace}/parts/partitions", json=count).status_code == 406


def test_a_plain_topic_neither_grows_nor_goes_as_a_partitioned_one(
    admin: httpx.Client, namespace: str, topic: str
) -> None:
    assert admin.post(f"{P}/{topic}/partitions", json=2).status_code == 409
    assert admin.delete(f"{P}/{topic}/partitions").status_code == 409
    assert admin.delete(f"{P}/{namespace}/none/partitions").status_code == 404
    assert admin.get(f"{P}/{namespace}").json() == [f"persistent://{topic}"]


def test_a_topic_in_use_goes_by_force_only(
    admin: httpx.Client, admin_broker: RunningBroker, namespace: str
) -> None:
    path = f"{P}/{namespace}/parts"
    admin.put(f"{path}/partitions", json=1)
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"persistent://{namespace}/parts-partition-0")
        assert admin.delete(f"{path}-partition-0").status_code == 412
        assert admin.delete(f"{path}/partitions").status_code == 412
        assert admin.delete(f"{path}/partitions", params={"force": "true"}).status_code == 204


def test_partitions_of_a_missing_topic_are_not_found(admin: httpx.Client, namespace: str) -> None:
    assert admin.get(f"{P}/{namespace}/none/partitions").status_code == 404


def test_a_client_that_may_create_gets_zero_partitions(admin: httpx.Client, namespace: str) -> None:
    answer = admin.get(
        f"{P}/{namespace}/none/partitions", params={"checkAllowAutoCreation": "true"}
    )
    assert answer.json()["partitions"] == 0


def test_the_coordinators_topic_is_partitioned(admin: httpx.Client) -> None:
    path = f"{P}/pulsar/system/transaction_coordinator_assign/partitions"
    coordinators = admin.get("/admin/v3/transactions/coordinators").json()
    assert admin.get(path).json()["partitions"] == len(coordinators) >= 16


def test_a_subscription_comes_and_goes(admin: httpx.Client, topic: str) -> None:
    path = f"{P}/{topic}/subscription/audit"
    assert admin.put(path, json="latest").status_code == 204
    assert admin.put(path).status_code == 409
    assert admin.get(f"{P}/{topic}/subscriptions").json() == ["audit"]
    assert admin.delete(path).status_code == 204
    assert admin.get(f"{P}/{topic}/subscriptions").json() == []
    assert admin.delete(path).status_code == 404


def test_a_subscription_on_a_partitioned_topic_is_on_every_partition(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{P}/{namespace}/parts"
    admin.put(f"{path}/partitions", json=2)
    assert admin.put(f"{path}/subscription/audit").status_code == 204
    assert admin.get(f"{path}/subscriptions").json() == ["audit"]
    for index in range(2):
        assert admin.get(f"{path}-partition-{index}/subscriptions").json() == ["audit"]
    assert admin.post(f"{path}/subscription/audit/skip_all").status_code == 204
    assert admin.delete(f"{path}/subscription/audit").status_code == 204


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_subscription_creates_its_topic(admin: httpx.Client, namespace: str, domain: str) -> None:
    """For tests that need a subscription before anything is published."""
    path = f"/admin/v2/{domain}/{namespace}"
    assert admin.put(f"{path}/fresh/subscription/audit", json="earliest").status_code == 204
    assert admin.get(path).json() == [f"{domain}://{namespace}/fresh"]


def test_a_subscription_creates_a_partitioned_topic_where_that_is_the_kind_that_is_created(
    admin: httpx.Client, namespace: str
) -> None:
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned"}
    admin.post(f"{N}/{namespace}/autoTopicCreation", json={**creation, "defaultNumPartitions": 2})
    assert admin.put(f"{P}/{namespace}/fresh/subscription/audit").status_code == 204
    assert admin.get(f"{P}/{namespace}/fresh/partitions").json()["partitions"] == 2
    assert admin.get(f"{P}/{namespace}/fresh-partition-1/subscriptions").json() == ["audit"]


def test_a_subscription_creates_no_topic_where_that_is_off(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{P}/{namespace}"
    missing = admin.put(f"{P}/public/nowhere/fresh/subscription/audit")
    assert missing.status_code == 404
    admin.post(f"{N}/{namespace}/autoTopicCreation", json={"allowAutoTopicCreation": False})
    assert admin.put(f"{path}/fresh/subscription/audit").status_code == 412
    assert admin.put(f"{path}/fresh-partition-0/subscription/audit").status_code == 412
    assert admin.get(path).json() == []


def test_a_subscription_that_some_partitions_have_comes_to_all(
    admin: httpx.Client, namespace: str
) -> None:
    path = f"{P}/{namespace}/parts"
    admin.put(f"{path}/partitions", json=2)
    assert admin.put(f"{path}-partition-0/subscription/audit").status_code == 204
    assert admin.put(f"{path}/subscription/audit").status_code == 204
    assert admin.get(f"{path}-partition-1/subscriptions").json() == ["audit"]
    assert admin.put(f"{path}/subscription/audit").status_code == 409


def test_a_reset_needs_a_message_id(admin: httpx.Client, topic: str) -> None:
    path = f"{P}/{topic}/subscription/audit"
    admin.put(path)
    assert admin.post(f"{path}/resetcursor", json={"ledgerId": "x"}).status_code == 400
    earliest = {"ledgerId": -1, "entryId": -1}
    assert admin.post(f"{path}/resetcursor", json=earliest).status_code == 204
    assert admin.post(f"{path}/resetcursor/0").status_code == 204


def test_a_schema_is_kept_by_version(admin: httpx.Client, topic: str) -> None:
    path = f"{S}/{topic}/schema"
    assert admin.get(path).status_code == 404
    schema = {"type": "JSON", "schema": _RECORD, "properties": {"a": "b"}}
    assert admin.post(path, json=schema).json() == {"version": {"version": 0}}
    found = admin.get(path).json()
    assert (found["type"], found["data"], found["version"]) == ("JSON", schema["schema"], 0)
    assert admin.get(f"{path}/0").json() == found
    assert found["timestamp"] > 0
    assert admin.get(f"{path}/7").status_code == 404
    assert admin.get(f"{S}/{topic}/schemas").json() == {"getSchemaResponses": [found]}
    assert admin.post(f"{S}/{topic}/version", json=schema).json() == {"version": 0}
    assert admin.delete(path).json() == {"version": 1}
    assert admin.get(path).status_code == 404
    assert admin.delete(path).status_code == 404


def test_a_schema_needs_a_namespace_and_goes_with_it(admin: httpx.Client, namespace: str) -> None:
    tenant, schema = namespace.partition("/")[0], {"type": "STRING"}
    there, nowhere = f"{S}/{namespace}/later/schema", f"{S}/{tenant}/none/later/schema"
    assert admin.post(nowhere, json=schema).status_code == 404
    assert admin.post(there, json=schema).status_code == 200
    path = f"/admin/v2/namespaces/{namespace}"
    assert admin.delete(path).status_code == admin.put(path).status_code == 204
    assert admin.get(there).status_code == 404


def test_a_topic_without_schemas_has_an_empty_list_of_them(admin: httpx.Client, topic: str) -> None:
    """As with Apache Pulsar: only a request for one schema gets 404."""
    for _ in range(2):
        assert admin.get(f"{S}/{topic}/schemas").json() == {"getSchemaResponses": []}
        assert admin.get(f"{S}/{topic}/metadata").status_code == 404
        assert admin.get(f"{S}/{topic}/schema").status_code == 404
        admin.post(f"{S}/{topic}/schema", json={"type": "STRING"})
        assert admin.get(f"{S}/{topic}/metadata").status_code == 200
        admin.delete(f"{S}/{topic}/schema")


def test_compatibility_is_told_without_adding_anything(admin: httpx.Client, topic: str) -> None:
    def asked(kind: str) -> dict[str, object]:
        answer = admin.post(f"{S}/{topic}/compatibility", json={"type": kind, "schema": ""})
        return dict(answer.json())

    assert asked("STRING") == {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    assert admin.post(f"{S}/{topic}/schema", json={"type": "BYTES"}).status_code == 200
    assert admin.get(f"{S}/{topic}/schema").json()["type"] == "NONE"  # like Apache Pulsar
    assert asked("STRING")["compatibility"] is False
    assert admin.post(f"{S}/{topic}/schema", json={"type": "STRING"}).status_code == 409
    assert admin.post(f"{S}/{topic}/version", json={"type": "STRING"}).status_code == 404


def test_a_key_value_schema_is_json_here_and_two_schemas_on_the_wire(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    record = {"type": "record", "name": "R", "fields": []}
    text = json.dumps({"key": "", "value": record}, separators=(",", ":"))
    types = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    body = {"type": "KEY_VALUE", "schema": text, "properties": types}
    assert admin.post(f"{S}/{topic}/schema", json=body).status_code == 200
    found = admin.get(f"{S}/{topic}/schema").json()
    assert (found["type"], found["data"], found["properties"]) == ("KEY_VALUE", text, types)
    with RawClient(admin_broker.service_url) as raw:
        asked = pb.CommandGetSchema(topic=f"persistent://{topic}")
        stored = raw.request(pb.BaseCommand.GET_SCHEMA, "getSchema", asked).schema.schema_data
    value = json.dumps(record, separators=(",", ":")).encode()
    assert stored == bytes(4) + len(value).to_bytes(4, "big") + value
    body["properties"] = types | {"key.schema.type": "INT64"}
    body["schema"] = json.dumps({"key": "", "value": record | {"doc": "again"}})
    assert admin.post(f"{S}/{topic}/schema", json=body).status_code == 409


@pytest.mark.parametrize(
    "escaped",
    ['"\\ud800"', '["x\\udfff"]', '{"\\ud800": 1}', "NaN", "1e999", "[" * 300 + "]" * 300],
)
def test_what_python_alone_takes_for_json_is_refused(
    admin: httpx.Client, topic: str, escaped: str
) -> None:
    pair = f'{{"key": {escaped}, "value": ""}}'
    within = admin.post(f"{S}/{topic}/schema", json={"type": "KEY_VALUE", "schema": pair})
    assert within.status_code == 422
    outside = admin.post(
        f"{S}/{topic}/schema", content=f'{{"type": "STRING", "properties": {{"p": {escaped}}}}}'
    )
    assert (outside.status_code, "The body is not JSON" in outside.text) == (400, True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": ""}', "5"])
def test_a_key_value_schema_of_another_form_is_refused(
    admin: httpx.Client, topic: str, text: str
) -> None:
    body = {"type": "KEY_VALUE", "schema": text}
    assert admin.post(f"{S}/{topic}/schema", json=body).status_code == 422


def test_an_unknown_schema_type_is_refused(admin: httpx.Client, topic: str) -> None:
    assert admin.post(f"{S}/{topic}/schema", json={"type": "XML"}).status_code == 422


def test_very_many_properties_are_refused_without_a_look_at_each(
    admin: httpx.Client, namespace: str
) -> None:
    many = {f"{number:x}": "" for number in range(6000)}
    refusal = admin.put(f"/admin/v2/persistent/{namespace}/orders", json=many)
    assert (refusal.status_code, refusal.json()["reason"]) == (
        400,
        "The body must have at most 5000 properties",
    )
