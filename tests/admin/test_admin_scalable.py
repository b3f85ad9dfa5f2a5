"""Scalable topics through the admin REST: codes, records, statistics, permissions."""

import json
from typing import Any

import httpx
import pytest
from raw_client import RawClient

from pybroker.client import Client, TopicTerminated
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

S = "/admin/v2/scalable"
N = "/admin/v2/namespaces"


@pytest.fixture
def scalable(admin: httpx.Client, namespace: str) -> str:
    """A new scalable topic of two segments: tenant/namespace/topic."""
    name = f"{namespace}/orders"
    made = admin.put(f"{S}/{name}", params={"numInitialSegments": 2}, json={"team": "a"})
    assert made.status_code == 204
    return name


def refused(answer: httpx.Response, status: int, sentence: str) -> None:
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert sentence in said["reason"] + said.get("advice", "")


def test_a_topic_comes_and_goes(admin: httpx.Client, namespace: str, scalable: str) -> None:
    refused(admin.put(f"{S}/{scalable}"), 409, "already exists")
    record = admin.get(f"{S}/{scalable}").json()
    assert (record["epoch"], record["nextSegmentId"], record["properties"]) == (0, 2, {"team": "a"})
    first = record["segments"]["0"]
    assert first["hashRange"] == {"start": 0, "end": 32767} and first["state"] == "ACTIVE"
    assert (first["root"], first["leaf"], first["legacy"]) == (True, True, False)
    assert admin.get(f"{S}/{namespace}").json() == [f"topic://{scalable}"]
    assert admin.get(f"/admin/v2/persistent/{namespace}").json() == []
    assert admin.get(f"{N}/{namespace}/topics").json() == []
    assert admin.delete(f"{S}/{scalable}").status_code == 204
    refused(admin.get(f"{S}/{scalable}"), 404, "does not exist")
    refused(admin.delete(f"{S}/{scalable}"), 404, "does not exist")


def test_topics_are_found_by_their_properties(
    admin: httpx.Client, namespace: str, scalable: str
) -> None:
    admin.put(f"{S}/{namespace}/other", json={"team": "b", "tier": "1"})

    def found(*properties: str) -> list[str]:
        answer = admin.get(f"{S}/{namespace}", params={"property": list(properties)})
        return [name.rpartition("/")[2] for name in answer.json()]

    assert found() == ["orders", "other"]
    assert found("team=a") == ["orders"] and found("team=b", "tier=1") == ["other"]
    assert found("team=a", "tier=1") == []
    refused(admin.get(f"{S}/{namespace}", params={"property": "team"}), 400, "key=value")


def test_segments_are_split_and_merged(admin: httpx.Client, scalable: str) -> None:
    assert admin.post(f"{S}/{scalable}/split/0").status_code == 204
    assert admin.post(f"{S}/{scalable}/merge/3/1").status_code == 204
    record = admin.get(f"{S}/{scalable}").json()
    states = {number: each["state"] for number, each in record["segments"].items()}
    assert states == {"0": "SEALED", "1": "SEALED", "2": "ACTIVE", "3": "SEALED", "4": "ACTIVE"}
    assert record["segments"]["4"]["parentIds"] == [3, 1] and record["epoch"] == 2


def test_a_segment_gets_another_number_of_entry_buckets(admin: httpx.Client, scalable: str) -> None:
    rebucket, count = f"{S}/{scalable}/rebucket/0", {"bucketCount": 4}
    assert admin.post(rebucket, params=count).status_code == 204
    record = admin.get(f"{S}/{scalable}").json()
    assert record["segments"]["2"]["entryBucketSplits"] == [16384, 32768, 49152]
    assert record["segments"]["2"]["hashRange"] == record["segments"]["0"]["hashRange"]
    stats = admin.get(f"{S}/{scalable}/stats").json()
    assert stats["layout"]["segments"]["2"]["entryBuckets"] == 4
    assert stats["layout"]["lastOperation"]["operation"] == "rebucket"
    assert stats["autoScale"]["lastRebucketAt"] == stats["layout"]["lastOperation"]["at"]
    refused(admin.post(rebucket, params=count), 409, "sealed")
    refused(admin.post(f"{S}/{scalable}/rebucket/2", params=count), 412, "4 entry buckets already")
    refused(admin.post(f"{S}/{scalable}/rebucket/2"), 400, "add ?bucketCount")


def test_a_topic_has_an_auto_scale_policy_of_its_own_over_its_namespace_s(
    admin: httpx.Client, namespace: str, scalable: str
) -> None:
    path, of_namespace = f"{S}/{scalable}/autoScalePolicy", f"{N}/{namespace}"
    own, others = {"minSegments": 2, "splitMsgRateInThreshold": 2e5}, {"maxSegments": 8}
    assert admin.get(path).status_code == 204
    assert admin.post(path, json=own).status_code == 204
    assert admin.get(path).json() == own
    assert admin.get(f"{S}/{scalable}").json()["autoScalePolicy"] == own
    answer = admin.post(f"{of_namespace}/scalableTopicAutoScalePolicy", json=others)
    assert answer.status_code == 204
    admin.post(f"{S}/{scalable}/split/0")
    stats = admin.get(f"{S}/{scalable}/stats").json()
    assert stats["autoScale"]["policy"].items() >= (own | others).items()
    assert stats["autoScale"]["lastSplitAt"] == stats["layout"]["lastOperation"]["at"]
    assert stats["layout"]["lastOperation"]["segmentIds"] == [0]
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 204
    assert "autoScalePolicy" not in admin.get(f"{S}/{scalable}").json()
    refused(admin.post(path, json={"minSegments": 9, "maxSegments": 3}), 412, "minSegments is 9")
    refused(admin.post(path, json={"maxSegments": "many"}), 400, "maxSegments")
    refused(admin.post(path.replace("orders", "absent"), json={}), 404, "does not exist")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/split/7", 404, "no segment 7"),
        ("/split/0", 409, "sealed"),
        ("/merge/1/9", 404, "no segment 9"),
        ("/merge/1/0", 409, "sealed"),
        ("/merge/2/1", 412, "no neighbours"),
        ("/rebucket/9?bucketCount=4", 404, "no segment 9"),
        ("/rebucket/1?bucketCount=1025", 412, "1 to 1024 entry buckets"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_the_reason(
    admin: httpx.Client, scalable: str, path: str, status: int, sentence: str
) -> None:
    admin.post(f"{S}/{scalable}/split/0")
    refused(admin.post(f"{S}/{scalable}{path}"), status, sentence)
    assert admin.get(f"{S}/{scalable}").json()["epoch"] == 1


@pytest.mark.parametrize(
    ("count", "status", "sentence"),
    [("0", 412, "not 0"), ("-1", 412, "not -1"), ("10001", 412, "10000"), ("many", 400, "number")],
)
def test_a_topic_has_at_least_one_segment_and_not_too_many(
    admin: httpx.Client, namespace: str, count: str, status: int, sentence: str
) -> None:
    made = admin.put(f"{S}/{namespace}/t", params={"numInitialSegments": count})
    refused(made, status, sentence)


def test_names_that_cannot_be_are_refused(admin: httpx.Client, namespace: str) -> None:
    refused(admin.put(f"{S}/{namespace}/t-partition-3"), 412, "like a partition")
    refused(admin.put(f"{S}/public/absent/t"), 404, "Namespace does not exist")
    refused(admin.put(f"{S}/{namespace}/__transaction_log_1"), 405, "another name")
    refused(admin.post(f"{S}/{namespace}/absent/split/0"), 404, "does not exist")
    refused(admin.get(f"{S}/{namespace}/absent/stats"), 404, "does not exist")


def test_subscriptions_are_those_of_all_segments(
    admin: httpx.Client, scalable: str, admin_broker: RunningBroker
) -> None:
    path = f"{S}/{scalable}/subscriptions/audit"
    for _ in range(2):
        assert admin.put(path, params={"type": "QUEUE"}).status_code == 204
    refused(admin.put(path, params={"type": "STREAM"}), 409, "type QUEUE")
    refused(admin.put(path, params={"type": "OTHER"}), 400, "STREAM or QUEUE")
    segment = f"segment://{scalable}/0000-7fff-0"
    with Client(admin_broker.service_url) as client, client.create_producer(segment) as producer:
        for _ in range(3):
            producer.send(b"x")
    stats = admin.get(f"{S}/{scalable}/stats").json()
    found = stats["subscriptions"]["audit"]
    assert (found["type"], found["backlog"], found["uncoveredSegmentIds"]) == ("QUEUE", 3, [])
    assert stats["layout"]["segments"]["0"]["name"] == segment
    assert admin.post(f"{path}/skip-all").status_code == 204
    of_segment = admin.get(f"{S}/{scalable}/segments/0/stats").json()
    assert of_segment["subscriptions"]["audit"]["msgBacklog"] == 0
    assert admin.post(f"{path}/seek", params={"timestamp": 1}).status_code == 204
    assert admin.get(f"{S}/{scalable}/stats").json()["subscriptions"]["audit"]["backlog"] == 3
    refused(admin.post(f"{path}/seek"), 400, "timestamp")
    assert admin.delete(path).status_code == 204
    refused(admin.delete(path), 404, "no subscription audit")
    refused(admin.post(f"{path}/skip-all"), 404, "no subscription audit")
    refused(admin.get(f"{S}/{scalable}/segments/9/stats"), 404, "no segment 9")


def test_one_segment_s_subscriptions_are_made_moved_and_deleted(
    admin: httpx.Client, scalable: str, admin_broker: RunningBroker
) -> None:
    path = f"/admin/v2/segments/{scalable}/0000-7fff-0"
    with (
        Client(admin_broker.service_url) as client,
        client.create_producer(f"segment://{scalable}/0000-7fff-0") as producer,
    ):
        producer.send(b"x")
    assert admin.put(path, json=["audit"]).status_code == 204
    assert admin.put(f"{path}/subscription/other").status_code == 204
    for name in ("audit", "other"):
        assert admin.get(f"{path}/subscription/{name}/backlog").json() == 1
    assert admin.post(f"{path}/subscription/audit/skip-all").status_code == 204
    assert admin.get(f"{path}/subscription/audit/backlog").json() == 0
    at = {"timestamp": 1}
    assert admin.post(f"{path}/subscription/audit/seek", params=at).status_code == 204
    assert admin.get(f"{path}/subscription/audit/backlog").json() == 1
    assert admin.delete(f"{path}/subscription/audit").status_code == 204
    refused(admin.get(f"{path}/subscription/audit/backlog"), 404, "no subscription audit")
    refused(admin.post(f"{path}/subscription/other/seek"), 400, "timestamp")


def test_only_the_record_makes_ends_and_deletes_segments(
    admin: httpx.Client, scalable: str
) -> None:
    path = f"/admin/v2/segments/{scalable}"
    refused(admin.put(f"{path}/0000-7fff-9"), 404, "no segment 0000-7fff-9")
    refused(admin.put(f"{path}/0000-7ffe-0"), 404, "no segment 0000-7ffe-0")
    refused(admin.put(f"{path}/0"), 412, "as 0000-7fff-1")
    refused(admin.delete(f"{path}/0000-7fff-0"), 409, "delete the topic")
    refused(admin.post(f"{path}/0000-7fff-0/terminate"), 409, "split or merge it")
    admin.post(f"{S}/{scalable}/split/0")
    assert admin.post(f"{path}/0000-7fff-0/terminate").status_code == 204
    refused(admin.delete(f"{path}/0000-7fff-0", params={"force": "true"}), 409, "a sealed segment")


def test_a_subscription_in_use_is_not_deleted(
    admin: httpx.Client, scalable: str, admin_broker: RunningBroker
) -> None:
    with (
        Client(admin_broker.service_url) as client,
        client.subscribe(f"segment://{scalable}/0000-7fff-0", "busy"),
    ):
        refused(admin.delete(f"{S}/{scalable}/subscriptions/busy"), 412, "close them")
        refused(admin.delete(f"{S}/{scalable}"), 412, "use force")
    assert admin.delete(f"{S}/{scalable}/subscriptions/busy").status_code == 204


def test_a_namespace_with_a_scalable_topic_goes_by_force_only(
    admin: httpx.Client, namespace: str, scalable: str
) -> None:
    admin.post(f"{S}/{scalable}/split/0")
    refused(admin.delete(f"{N}/{namespace}"), 409, "has 1 topics")
    assert admin.delete(f"{N}/{namespace}", params={"force": "true"}).status_code == 204
    assert admin.put(f"{N}/{namespace}").status_code == 204
    assert admin.get(f"{S}/{namespace}").json() == []


def test_all_segments_share_the_schemas_which_go_with_the_topic(
    admin: httpx.Client, scalable: str, admin_broker: RunningBroker
) -> None:
    path = f"/admin/v2/schemas/{scalable}/schema"
    assert admin.get(path).status_code == 404
    with RawClient(admin_broker.service_url) as raw:
        text = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
        raw.create_producer(f"segment://{scalable}/0000-7fff-0", schema=text)
        assert admin.get(path).json()["type"] == "STRING"
        number = pb.Schema(name="s", type=pb.Schema.Int32, schema_data=b"")
        refused = raw.ask_for_producer(f"segment://{scalable}/8000-ffff-1", 2, schema=number)
        assert refused.error == pb.IncompatibleSchema
    admin.put(f"/admin/v2/persistent/{scalable}")
    assert admin.get(path).status_code == 404, "an ordinary topic of that name has its own"
    payload = {"type": "INT32", "schema": "", "properties": {}}
    assert admin.post(path, content=json.dumps(payload)).status_code == 200
    assert admin.delete(f"{S}/{scalable}", params={"force": "true"}).status_code == 204
    assert admin.get(path).json()["type"] == "INT32"
    assert admin.delete(f"/admin/v2/persistent/{scalable}").status_code == 204
    assert admin.put(f"{S}/{scalable}").status_code == 204
    assert admin.get(path).status_code == 404, "the schema went with the topic"


def test_an_ordinary_topic_is_made_scalable(
    admin: httpx.Client, namespace: str, admin_broker: RunningBroker
) -> None:
    name, path = f"{namespace}/old", f"{S}/{namespace}/old/migrate"
    refused(admin.post(path), 404, "old does not exist")
    assert admin.put(f"/admin/v2/persistent/{name}/partitions", content="2").status_code == 204
    with Client(admin_broker.service_url) as client:
        producer = client.create_producer(f"persistent://{name}")
        producer.send(b"x")
        refused(admin.post(path), 409, "use force")
        assert admin.post(path, params={"force": "true"}).status_code == 204
        with pytest.raises(TopicTerminated):
            producer.send(b"x")
    refused(admin.post(path), 409, "exists already")
    first = admin.get(f"{S}/{name}").json()["segments"]["0"]
    assert first["legacyTopicName"] == f"persistent://{name}-partition-0" and first["legacy"]
    stats = admin.get(f"{S}/{name}/stats").json()
    assert stats["layout"]["lastOperation"]["operation"] == "migrate"
    refused(admin.delete(f"/admin/v2/persistent/{name}/partitions"), 409, "was made scalable")
    assert admin.delete(f"{N}/{namespace}", params={"force": "true"}).status_code == 204
    assert admin.put(f"{N}/{namespace}").status_code == 204
    assert admin.get(f"/admin/v2/persistent/{namespace}").json() == []


def test_a_subscription_that_is_made_on_the_former_topic_is_on_the_new_segments_too(
    admin: httpx.Client, namespace: str, admin_broker: RunningBroker
) -> None:
    """By the routes of ordinary topics: it would miss what comes before its first consumer."""
    name = f"{namespace}/old"
    ordinary = f"/admin/v2/persistent/{name}"
    assert admin.put(f"{ordinary}/partitions", content="2").status_code == 204
    assert admin.post(f"{S}/{name}/migrate").status_code == 204
    for start in ("earliest", "latest"):
        made = admin.put(f"{ordinary}/subscription/{start}", content=f'"{start}"')
        assert made.status_code == 204
    rewound: list[str] = []

    async def watch(started: Any) -> None:
        async def hear(topic: Any, subscription: str) -> None:
            rewound.append(f"{topic} {subscription}")

        started.topics.scalable.on_rewound(hear)

    admin_broker.call(watch)
    for number in range(4):
        stats = admin.get(f"{S}/{name}/segments/{number}/stats").json()
        assert {"earliest", "latest"} <= stats["subscriptions"].keys()
    reset = f"{ordinary}/subscription/earliest/resetcursor"
    assert admin.post(f"{reset}/0").status_code == 204
    assert admin.post(reset, content='"earliest"').status_code == 204
    assert set(rewound) == {f"topic://{name} earliest"} and len(rewound) == 4
