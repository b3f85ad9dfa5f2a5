"""Non-persistent topics in the admin API."""

import httpx
import pytest
from raw_client import RawClient

from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb


@pytest.fixture
def fleeting(namespace: str) -> str:
    return f"{namespace}/fleeting"


def test_stats_show_what_was_dropped_and_nothing_stored(
    admin: httpx.Client, admin_broker: RunningBroker, fleeting: str
) -> None:
    with RawClient(admin_broker.service_url) as raw:
        raw.create_producer(f"non-persistent://{fleeting}")
        raw.subscribe(f"non-persistent://{fleeting}", subType=pb.CommandSubscribe.Key_Shared)
        raw.flow(1)
        for number in range(3):
            raw.publish(b"m", number)
        stats = admin.get(f"/admin/v2/non-persistent/{fleeting}/stats").json()
        dropped = admin_broker.call(lambda broker: _dropped(broker, f"non-persistent://{fleeting}"))
    assert dropped == 2
    assert stats["msgInCounter"] == 3 and stats["msgOutCounter"] == 1
    assert stats["storageSize"] == 0 and stats["msgDropRate"] >= 0
    assert stats["publishers"][0]["msgDropRate"] == 0
    subscription = stats["subscriptions"]["raw"]
    assert subscription["type"] == "Key_Shared" and subscription["msgDropRate"] >= 0
    assert subscription["consumers"][0]["keyHashRanges"]


async def _dropped(broker: object, topic: str) -> int:
    served = await broker.topics.served(topic)  # type: ignore[attr-defined]
    return int(served.subscriptions["raw"].dropped)


def test_it_is_created_listed_unloaded_and_deleted(admin: httpx.Client, fleeting: str) -> None:
    path, namespace = f"/admin/v2/non-persistent/{fleeting}", fleeting.rsplit("/", 1)[0]
    assert admin.put(path).status_code == 204
    assert admin.put(path).status_code == 409
    name = f"non-persistent://{fleeting}"
    assert admin.get(f"/admin/v2/non-persistent/{namespace}").json() == [name]
    assert admin.get(f"/admin/v2/persistent/{namespace}").json() == []
    topics = f"/admin/v2/namespaces/{namespace}/topics"
    assert admin.get(topics).json() == []
    assert admin.get(topics, params={"mode": "ALL"}).json() == [name]
    assert admin.get(topics, params={"mode": "NON_PERSISTENT"}).json() == [name]
    assert admin.delete(path).status_code == 204
    assert admin.delete(path).status_code == 404
    assert admin.get(f"/admin/v2/non-persistent/{namespace}").json() == []


def test_partitions_are_shown_together(admin: httpx.Client, fleeting: str) -> None:
    path = f"/admin/v2/non-persistent/{fleeting}"
    assert admin.put(f"{path}/partitions", json=2).status_code == 204
    assert admin.put(f"{path}/subscription/s").status_code == 204
    stats = admin.get(f"{path}/partitioned-stats").json()
    assert len(stats["partitions"]) == 2 and list(stats["subscriptions"]) == ["s"]
    assert admin.get(f"{path}-partition-0/internalStats").json()["ledgers"] == []
    assert admin.delete(f"{path}/partitions").status_code == 204


def test_subscriptions_come_and_go(admin: httpx.Client, fleeting: str) -> None:
    path = f"/admin/v2/non-persistent/{fleeting}"
    admin.put(path)
    assert admin.put(f"{path}/subscription/s").status_code == 204
    assert admin.get(f"{path}/subscriptions").json() == ["s"]
    assert admin.delete(f"{path}/subscription/s").status_code == 204
    assert admin.delete(f"{path}/subscription/s").status_code == 404


@pytest.mark.parametrize("action", ["terminate", "subscription/s/skip_all"])
def test_what_needs_a_log_is_not_allowed(admin: httpx.Client, fleeting: str, action: str) -> None:
    path = f"/admin/v2/non-persistent/{fleeting}"
    admin.put(path)
    admin.put(f"{path}/subscription/s")
    answer = admin.post(f"{path}/{action}")
    assert answer.status_code == 405 and "not persistent" in answer.json()["reason"]


def test_metrics_count_it(admin: httpx.Client, fleeting: str) -> None:
    admin.put(f"/admin/v2/non-persistent/{fleeting}")
    assert f'topic="non-persistent://{fleeting}"' in admin.get("/metrics").text
