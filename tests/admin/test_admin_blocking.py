"""Transactions that hold readers back: routes, stats and metrics."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import pybroker.testing
from pybroker.admin.routes import blocking
from pybroker.base.names import TopicName, TxnId
from pybroker.client import Client, InitialPosition, IsolationLevel
from pybroker.security.permissions import Need, route_row

P = "/admin/v2/persistent"
BLOCKING = "/admin/v3/transactions/blocking"
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


def subscribe(client: Client, topic: str, name: str, level: IsolationLevel | None = None) -> None:
    start = InitialPosition.Earliest
    client.subscribe(
        f"persistent://{topic}", name, initial_position=start, isolation_level=level
    ).close()


def test_the_transaction_in_the_way_is_named_with_what_it_blocks(
    admin: httpx.Client, client: Client, topic: str, namespace: str
) -> None:
    full = f"persistent://{topic}"
    subscribe(client, topic, "committed")
    subscribe(client, topic, "uncommitted", UNCOMMITTED)
    producer = client.create_producer(full)
    producer.send(b"before")
    first, second = client.new_transaction(timeout_ms=60_000), client.new_transaction()
    producer.send(b"first", txn=first)
    producer.send(b"plain")
    producer.send(b"second", txn=second)
    other = client.create_producer(f"{full}-too")
    other.send(b"elsewhere", txn=first)

    everywhere = admin.get(BLOCKING, params={"namespace": namespace}).json()
    assert (everywhere["blockedTopics"], everywhere["blockedEntries"]) == (2, 4)
    worst = everywhere["topics"][0]
    assert (worst["topic"], worst["blockedEntries"], worst["openTransactions"]) == (full, 3, 2)
    blocker = worst["blocking"]
    assert blocker["txnId"] == "({},{})".format(*first.txn_id)
    assert (blocker["status"], blocker["owner"], blocker["blockedEntries"]) == ("OPEN", None, 3)
    assert blocker["topics"] == [full, f"{full}-too"]
    assert (blocker["topicCount"], blocker["subscriptionCount"]) == (2, 0)
    assert 0 <= blocker["ageMs"] <= 60_000 and 0 < blocker["timeLeftMs"] <= 60_000

    one = admin.get(BLOCKING, params={"namespace": namespace, "limit": 1}).json()
    assert (len(one["topics"]), one["blockedTopics"]) == (1, 2)
    assert admin.get(BLOCKING, params={"namespace": "public/none"}).json()["topics"] == []

    found = admin.get(f"{BLOCKING}/{topic}").json()
    assert [each["blockedEntries"] for each in found["transactions"]] == [3, 1]
    assert found["lastStablePosition"].endswith(":0")
    assert len(admin.get(f"{BLOCKING}/{topic}", params={"limit": 1}).json()["transactions"]) == 1
    subscriptions = found["subscriptions"]
    assert _of(subscriptions["committed"]) == (4, 1, 3, "read_committed")
    assert _of(subscriptions["uncommitted"]) == (4, 1, 0, "read_uncommitted")
    assert subscriptions["uncommitted"]["lastStablePosition"] == found["lastConfirmedEntry"]
    stats = admin.get(f"{P}/{topic}/stats").json()
    assert stats["blockedEntries"] == 3
    assert _of(stats["subscriptions"]["committed"]) == (4, 1, 3, "read_committed")

    first.abort()
    found = admin.get(f"{BLOCKING}/{topic}").json()
    assert found["blockedEntries"] == 1, "what was aborted and markers do not count"
    assert _of(found["subscriptions"]["committed"]) == (3, 2, 1, "read_committed")
    second.commit()
    found = admin.get(f"{BLOCKING}/{topic}").json()
    assert (found["blockedEntries"], found["transactions"]) == (0, [])
    assert _of(found["subscriptions"]["committed"]) == (3, 3, 0, "read_committed")
    left = admin.get(BLOCKING, params={"namespace": namespace}).json()
    assert (left["blockedTopics"], left["topics"]) == (0, [])


def _of(found: dict[str, Any]) -> tuple[int, int, int, str]:
    backlog, committed = found["msgBacklog"], found["committedBacklog"]
    return backlog, committed, found["blockedBacklog"], found["isolationLevel"]


def test_stats_of_partitions_add_what_is_blocked(
    admin: httpx.Client, client: Client, namespace: str
) -> None:
    name = f"{namespace}/parted"
    assert admin.put(f"{P}/{name}/partitions", json=2).status_code == 204
    txn = client.new_transaction()
    for number in range(2):
        client.create_producer(f"persistent://{name}-partition-{number}").send(b"in", txn=txn)
    assert admin.get(f"{P}/{name}/partitioned-stats").json()["blockedEntries"] == 2
    txn.abort()


@pytest.mark.parametrize("query", ({"limit": 0}, {"limit": 1001}, {"limit": "many"}))
def test_a_limit_is_bounded(admin: httpx.Client, query: dict[str, Any]) -> None:
    assert admin.get(BLOCKING, params=query).status_code == 400


def test_metrics_say_what_is_blocked_and_for_how_long(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    def sample(name: str) -> list[float]:
        lines = admin.get("/metrics").text.splitlines()
        mine = (line for line in lines if line.startswith(name) and f"{topic}" in line)
        return [float(line.rsplit(" ", 1)[1]) for line in mine]

    txn = client.new_transaction()
    producer = client.create_producer(f"persistent://{topic}")
    producer.send(b"in", txn=txn)
    producer.send(b"behind")
    assert sample("pybroker_txn_blocked_entries") == [2]
    (age_s,) = sample("pybroker_txn_oldest_blocking_seconds")
    assert 0 <= age_s < 60
    assert "pybroker_txn_blocked_topics{" in admin.get("/metrics").text
    txn.commit()
    assert sample("pybroker_txn_blocked_entries") == [0]
    assert sample("pybroker_txn_oldest_blocking_seconds") == []


def test_many_topics_are_looked_at_a_few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_TOPICS_A_TURN", 20)

    async def scenario(running: Any) -> tuple[int, dict[str, Any]]:
        for number in range(200):
            topic = await running.topics.get(TopicName.parse(f"t-{number}"), create=True)
            log_order = topic.buffer._log
            log_order._keep_index()
            log_order._open.begin(TxnId(9, number), topic.ledger.last_confirmed, 1)
            await topic.ledger.append_one(b"entry")
        services: Any = SimpleNamespace(
            topics=running.topics, coordinators=running.coordinators, clock=running._clock
        )
        asking = asyncio.ensure_future(blocking.BlockingRoutes(services)._worst(100, None))
        turns = 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, asking.result()

    with pybroker.testing.broker() as broker:
        turns, found = broker.call(scenario)
    assert turns >= 10
    assert (found["blockedTopics"], len(found["topics"])) == (200, 100)
    of_an_unknown_coordinator = found["topics"][0]["blocking"]
    assert (of_an_unknown_coordinator["status"], of_an_unknown_coordinator["topicCount"]) == (
        "UNKNOWN",
        None,
    )


def test_it_is_for_superusers_as_all_that_several_tenants_share() -> None:
    for path in (BLOCKING, BLOCKING + "/{tenant}/{namespace}/{topic}"):
        assert route_row("GET", path).need is Need.SUPER_USER
