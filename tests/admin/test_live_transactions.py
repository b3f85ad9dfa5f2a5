"""Live transactions, recently ended ones, one in full, and those of a topic."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from credentials import bearer
from described import check_described
from permission_world import SETTINGS, World

import pybroker.testing
from pybroker.admin.stats import segments
from pybroker.admin.stats import transactions as stats
from pybroker.admin.stats.transactions import LiveTransactions, Wanted, chosen
from pybroker.base.names import TxnId
from pybroker.client import Client, InitialPosition
from pybroker.client.transactions.transaction import Transaction
from pybroker.testing import RunningBroker

BASE = "/admin/v3/transactions"


def name_of(txn: Transaction) -> str:
    return "({},{})".format(*txn.txn_id)


def live(admin: httpx.Client, topic: str, **query: Any) -> list[dict[str, Any]]:
    answer = admin.get(f"{BASE}/live", params={"topic": topic, **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["transactions"]
    return found


def timeline(admin: httpx.Client, txn: Transaction) -> dict[str, Any]:
    answer = admin.get("{}/timeline/{}/{}".format(BASE, *txn.txn_id))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_live_transaction_is_listed_with_what_it_holds_and_blocks(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    full = f"persistent://{topic}"
    producer = client.create_producer(full)
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"123", txn=txn)
    producer.send(b"plain")
    (found,) = live(admin, topic)
    assert (found["txnId"], found["status"], found["owner"]) == (name_of(txn), "OPEN", None)
    assert found["clientAddress"].startswith("127.0.0.1:") and found["clientVersion"]
    assert (found["topics"], found["topicCount"], found["subscriptions"]) == ([full], 1, [])
    assert (found["messages"], found["blockedEntries"], found["blockedTopics"]) == (1, 2, 1)
    assert found["bytes"] > 3 and 0 <= found["blockingMs"] <= found["ageMs"] + 1000
    assert 0 < found["timeLeftMs"] <= found["timeoutMs"] == 60_000
    assert (found["endTimestamp"], found["decidedBy"]) == (None, None)
    txn.abort()
    assert live(admin, topic) == []


def test_a_label_of_a_producer_is_shown_wherever_its_transactions_are(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    full = f"persistent://{topic}"
    nightly = client.create_producer(full, properties={"txn.label": "nightly " + "x" * 300})
    other = client.create_producer(full, properties={"txn.label": "another"})
    plain = client.create_producer(full)
    label = ("nightly " + "x" * 300)[:200]
    txn, unnamed = client.new_transaction(), client.new_transaction()
    for producer in (plain, nightly, other):
        producer.send(b"x", txn=txn)
    plain.send(b"x", txn=unnamed)
    found = {each["txnId"]: each["label"] for each in live(admin, topic)}
    assert found == {name_of(txn): label, name_of(unnamed): None}, "the first label stays"
    assert timeline(admin, txn)["label"] == label
    (blocking, _) = admin.get(f"{BASE}/blocking/{topic}").json()["transactions"]
    assert blocking["label"] == label
    segment, _ = admin.get(f"{BASE}/segments/{topic}").json()["transactions"]
    assert segment["label"] == label
    txn.commit()
    unnamed.abort()
    ended = admin.get(f"{BASE}/ended", params={"topic": topic}).json()["transactions"]
    assert {each["txnId"]: each["label"] for each in ended} == found
    assert timeline(admin, txn)["label"] == label


def test_the_list_is_filtered_sorted_and_paged(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    txns = [client.new_transaction(timeout_ms=60_000 + number) for number in range(3)]
    for number, txn in enumerate(txns):
        for _ in range(number + 1):
            producer.send(b"x", txn=txn)
    names = [name_of(txn) for txn in txns]

    def listed(**query: Any) -> list[str]:
        return [each["txnId"] for each in live(admin, topic, **query)]

    assert listed(sort="messages") == names[::-1]
    assert listed(sort="messages", order="asc") == names
    assert listed(sort="messages", order="asc", limit=2, page=2) == names[2:]
    assert listed(sort="blocked")[0] == names[0], "the first one is in the way"
    assert sorted(listed(sort="id", order="asc")) == sorted(names)
    assert listed(state="COMMITTING") == listed(owner="alice") == []
    assert listed(minAgeMs=3_600_000) == []
    for sort in stats.SORTS:
        assert sorted(listed(sort=sort)) == sorted(names)
    answer = admin.get(f"{BASE}/live", params={"topic": topic, "limit": 1}).json()
    assert (answer["matching"], len(answer["transactions"])) == (3, 1)
    assert answer["live"] >= 3
    for txn in txns:
        txn.abort()


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 501}, {"page": 0}, {"sort": "up"}, {"state": "GONE"}]
)
def test_what_cannot_be_asked_for_is_refused(admin: httpx.Client, query: dict[str, Any]) -> None:
    assert admin.get(f"{BASE}/live", params=query).status_code == 400


def test_a_timeline_follows_a_transaction_to_its_end(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    full = f"persistent://{topic}"
    start = InitialPosition.Earliest
    consumer = client.subscribe(full, "s", initial_position=start)
    producer, other = client.create_producer(full), client.create_producer(f"{full}-too")
    producer.send(b"in")
    message = consumer.receive()
    txn = client.new_transaction(timeout_ms=60_000)
    other.send(b"out", txn=txn)
    consumer.acknowledge(message, txn=txn)
    found = timeline(admin, txn)
    written, acked = found["participants"]
    assert (found["status"], found["messages"], found["blockedEntries"]) == ("OPEN", 1, 1)
    assert (written["topic"], written["subscription"]) == (f"{full}-too", None)
    assert (written["messages"], written["markerPosition"]) == (1, None)
    assert written["firstPosition"].endswith(":0")
    assert (acked["topic"], acked["subscription"], acked["acknowledgements"]) == (full, "s", 1)
    opened = found["openTimestamp"]
    assert opened <= written["addedTimestamp"] <= acked["addedTimestamp"] <= found["timestamp"]
    assert written["followedTimestamp"] is None and acked["followedTimestamp"] is None

    txn.commit()
    found = timeline(admin, txn)
    written, acked = found["participants"]
    assert (found["status"], found["decidedBy"]) == ("COMMITTED", "client")
    assert written["firstPosition"].endswith(":0") and written["markerPosition"].endswith(":1")
    for each in (written, acked):
        assert found["decidedTimestamp"] <= each["followedTimestamp"] <= found["endTimestamp"]
    ended = admin.get(f"{BASE}/ended", params={"topic": topic}).json()
    (one,) = ended["transactions"]
    assert (one["txnId"], one["status"]) == (name_of(txn), "COMMITTED")
    assert admin.get(f"{BASE}/ended", params={"topic": topic, "state": "ABORTED"}).json() == {
        "timestamp": pytest.approx(ended["timestamp"], abs=60_000),
        "matching": 0,
        "transactions": [],
    }


def test_an_administrators_abort_is_told_with_its_reason(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    txn = client.new_transaction()
    client.create_producer(f"persistent://{topic}").send(b"x", txn=txn)
    path = "{}/abortTransaction/{}/{}".format(BASE, *txn.txn_id)
    assert admin.post(path, params={"reason": "it is <old>"}).status_code == 204
    found = timeline(admin, txn)
    assert (found["status"], found["decidedBy"]) == ("ABORTED", "administrator")
    assert found["abortReason"] == "an administrator aborted it: it is <old>"


@pytest.mark.parametrize("path", ["0/999999", "999/0"])
def test_what_never_was_is_not_found(admin: httpx.Client, path: str) -> None:
    assert admin.get(f"{BASE}/timeline/{path}").status_code == 404


def test_of_what_ended_long_ago_the_outcome_is_told(
    admin: httpx.Client, admin_broker: RunningBroker, client: Client
) -> None:
    txn = client.new_transaction()
    txn.commit()

    async def forget(running: Any) -> None:
        running.coordinators.ended._ended.clear()

    admin_broker.call(forget)
    found = timeline(admin, txn)
    assert (found["status"], found["abortReason"]) == ("COMMITTED", "")
    assert "participants" not in found


def test_a_topic_is_told_by_transactions_with_the_cause_in_a_sentence(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    full, path = f"persistent://{topic}", f"{BASE}/segments/{topic}"
    producer = client.create_producer(full)
    producer.send(b"0")
    nothing = admin.get(path).json()
    assert (nothing["cause"], nothing["segments"], nothing["readableEntries"]) == (None, [], 1)
    first, second = client.new_transaction(timeout_ms=60_000), client.new_transaction()
    for txn in (first, first, None, second, first):
        producer.send(b"x", txn=txn)
    found = admin.get(path).json()
    shown = [(each["txnId"], each["entries"]) for each in found["segments"]]
    one, two = name_of(first), name_of(second)
    assert shown == [(one, 2), (None, 1), (two, 1), (one, 1)]
    assert sum(entries for _, entries in shown) == found["blockedEntries"] == 5
    assert found["segments"][-1]["to"] == found["lastConfirmedEntry"]
    assert [each["holdsReadersBack"] for each in found["transactions"]] == [True, False]
    assert [each["messages"] for each in found["transactions"]] == [3, 1]
    stable, begins = found["lastStablePosition"], found["segments"][0]["from"]
    assert found["cause"].startswith(
        f"Readers stop after {stable} because transaction {one} wrote at {begins}, "
    )
    assert found["cause"].endswith(" s left.")
    first.abort()
    second.commit()
    assert admin.get(path).json()["segments"] == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.0 s"),
        (9_940, "9.9 s"),
        (59_999, "59 s"),
        (571_000, "9 min 31 s"),
        (7_500_000, "2 h 5 min"),
    ],
)
def test_a_cause_states_durations_in_two_units(ms: int, text: str) -> None:
    assert segments.duration(ms) == text


def test_readers_that_get_nothing_stop_before_the_first_entry(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    transaction = client.new_transaction(timeout_ms=60_000)
    client.create_producer(f"persistent://{topic}").send(b"x", txn=transaction)
    found = admin.get(f"{BASE}/segments/{topic}").json()
    begins = found["segments"][0]["from"]
    assert found["lastStablePosition"].endswith(":-1") and begins.endswith(":0")
    assert found["cause"].startswith(f"Readers stop before {begins} because transaction")
    transaction.abort()


def test_the_number_of_segments_is_bounded_and_they_leave_nothing_out(
    admin: httpx.Client, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MOST_SEGMENTS", 5)
    producer = client.create_producer(f"persistent://{topic}")
    txn = client.new_transaction()
    for _ in range(10):
        producer.send(b"t", txn=txn)
        producer.send(b"p")
    found = admin.get(f"{BASE}/segments/{topic}").json()
    assert [each["entries"] for each in found["segments"]] == [1] * 9 + [11]
    assert found["segments"][-1]["txnId"] is None
    txn.abort()


# -- permissions


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, **SETTINGS) as broker:
        yield broker


def test_a_role_sees_its_own_transactions_and_a_superuser_all(guarded: RunningBroker) -> None:
    world = World(guarded)
    for role in ("alice", "bob"):
        world.grant(role, "produce", "consume")
    clients = {role: world.client(role, enable_transaction=True) for role in ("alice", "bob")}
    txns = {role: client.new_transaction() for role, client in clients.items()}
    for role, client in clients.items():
        client.create_producer(world.topic).send(b"x", txn=txns[role])

    def ask(role: str, path: str) -> httpx.Response:
        url = f"{guarded.admin_url}{BASE}/{path}"
        answer = world.http.get(url, headers=bearer(role))
        check_described(answer)
        return answer

    def owners(role: str, path: str) -> list[str]:
        return sorted(each["owner"] for each in ask(role, path).json()["transactions"])

    assert owners("alice", "live") == ["alice"]
    assert ask("alice", "live").json()["live"] == 1
    assert owners("boss", "live") == []
    assert owners("admin", "live") == ["alice", "bob"]
    of_bob = "timeline/{}/{}".format(*txns["bob"].txn_id)
    assert ask("bob", of_bob).json()["topics"] == [world.topic]
    assert ask("alice", of_bob).status_code == ask("boss", of_bob).status_code == 403
    assert ask("alice", "timeline/0/999999").status_code == 403
    on_topic = f"segments/{world.namespace}/t"
    for role, seen in (("alice", ["alice", None]), ("boss", ["alice", "bob"])):
        shown = ask(role, on_topic).json()["transactions"]
        assert sorted((each["owner"] for each in shown), key=str) == sorted(seen, key=str)
    assert "of another principal wrote" in ask("bob", on_topic).json()["cause"]
    assert ask("stranger", on_topic).status_code in (401, 403)
    for role, client in clients.items():
        txns[role].commit()
        client.close()
    assert owners("alice", "ended") == ["alice"]
    assert owners("admin", "ended") == ["alice", "bob"]
    assert ask("alice", of_bob).status_code == 403


# -- many


def test_who_asks_at_the_same_time_shares_a_walk_that_yields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stats, "_LOOKED_AT_A_TURN", 20)
    monkeypatch.setattr(stats, "_MANY", 100)

    async def scenario(running: Any) -> tuple[int, int, int, bool]:
        coordinator = await running.coordinators.get(0)
        for _ in range(200):
            await coordinator.new_transaction(60_000, "me")
        lists = LiveTransactions(running.topics, running.coordinators)
        asking = asyncio.gather(lists.walked(), lists.walked())
        turns = 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        one, other = asking.result()
        few = await chosen(one.rows, Wanted(owner="me"))
        return turns, len(one.rows), len(few), one is other is await lists.walked()

    with pybroker.testing.broker() as broker:
        turns, found, mine, shared = broker.call(scenario)
    assert turns >= 10
    assert (found, mine, shared) == (200, 200, True)


def test_what_holds_nothing_is_of_no_topic() -> None:
    metadata: Any = SimpleNamespace(owner=None, partitions={}, subscriptions={}, opened_at_ms=5)
    metadata.txn_id = TxnId(0, 0)
    assert not Wanted(topic="t").has(metadata, stats.TxnStatus.OPEN)
    assert Wanted(opened_before_ms=5).has(metadata, stats.TxnStatus.OPEN)
    assert not Wanted(opened_before_ms=4).has(metadata, stats.TxnStatus.OPEN)


def test_entries_beside_the_log_hold_no_reader_back(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    path = f"/admin/v2/persistent/{topic}/transactionBuffer"
    assert admin.post(path, json="commitOrder").status_code == 204
    producer = client.create_producer(f"persistent://{topic}")
    txn = client.new_transaction()
    producer.send(b"x", txn=txn)
    producer.send(b"plain")
    (participant,) = timeline(admin, txn)["participants"]
    assert (participant["messages"], participant["firstPosition"]) == (1, None)
    found = admin.get(f"{BASE}/segments/{topic}").json()
    assert (found["openTransactions"], found["segments"], found["cause"]) == (1, [], None)
    (shown,) = found["transactions"]
    assert (shown["firstPosition"], shown["holdsReadersBack"]) == (None, False)
    txn.commit()
    assert admin.get(f"{BASE}/segments/{topic}").json()["transactions"] == []
