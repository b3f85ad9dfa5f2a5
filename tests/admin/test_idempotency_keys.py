"""Idempotency-Key: whoever repeats a request gets the first one's message ids, and no copies."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from credentials import bearer
from permission_world import SETTINGS, World
from posting import codes, received

import pybroker.testing
from managed_ledger.empty_ledgers import has_all_after
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.storage.memory import MemoryBackend
from pybroker.admin import idempotency
from pybroker.base.names import TopicName
from pybroker.base.runtime import SystemClock
from pybroker.client import Client
from pybroker.testing import RunningBroker


def post(admin: httpx.Client, topic: str, key: str, *payloads: Any, query: str = "") -> Any:
    messages = [{"payload": payload} for payload in payloads]
    return admin.post(
        f"/topics/persistent/{topic}{query}",
        json={"messages": messages},
        headers={"Idempotency-Key": key},
    )


def ids(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["messageId"] for each in answer.json()["messagePublishResults"]]


def count(admin: httpx.Client, topic: str) -> int:
    found: int = admin.get(f"/admin/v2/persistent/{topic}/internalStats").json()["numberOfEntries"]
    return found


def test_a_repeat_gets_the_first_answer(admin: httpx.Client, client: Client, topic: str) -> None:
    first = post(admin, topic, "k", "a", "b")
    again = post(admin, topic, "k", "a", "b")
    assert again.json() == first.json()
    assert len(ids(first)) == 2
    other = post(admin, topic, "another", "a", "b")
    assert not set(ids(other)) & set(ids(first))
    assert count(admin, topic) == 4
    found = received(client, topic, 4)
    assert [each.data() for each in found] == [b"a", b"b"] * 2
    keys = [each.properties()[idempotency.PROPERTY] for each in found]
    assert len(set(keys)) == 4


def test_a_key_belongs_to_one_request(admin: httpx.Client, topic: str) -> None:
    ids(post(admin, topic, "k", "a"))
    assert post(admin, topic, "k", "b").status_code == 422
    assert count(admin, topic) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_has_limits(admin: httpx.Client, topic: str, key: str) -> None:
    assert post(admin, topic, key, "a").status_code == 400


def test_repeats_at_the_same_time_publish_once(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    found: list[list[str]] = []

    def repeat() -> None:
        with httpx.Client(base_url=admin_broker.admin_url, timeout=60) as own:
            found.append(ids(post(own, topic, "k", *"abc")))

    threads = [threading.Thread(target=repeat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(each == found[0] for each in found)
    assert count(admin, topic) == 3


def test_only_what_failed_is_published_by_a_repeat(admin: httpx.Client, topic: str) -> None:
    first = post(admin, topic, "k", "a", 7, "b")
    assert codes(first.json()["messagePublishResults"]) == [0, 2, 0]
    again = post(admin, topic, "k", "a", 7, "b").json()["messagePublishResults"]
    assert codes(again) == [0, 2, 0]
    assert again[0] == first.json()["messagePublishResults"][0]
    assert count(admin, topic) == 2


def test_partitions_are_those_of_the_first_request(admin: httpx.Client, namespace: str) -> None:
    topic = f"{namespace}/parts"
    assert admin.put(f"/admin/v2/persistent/{topic}/partitions", json=3).status_code == 204
    first = post(admin, topic, "k", *"abcdefg")
    assert len({each.rpartition(":")[2] for each in ids(first)}) == 3
    assert ids(post(admin, topic, "k", *"abcdefg")) == ids(first)


def test_a_request_in_a_transaction_can_be_repeated(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    begun = admin.post("/admin/v3/transactions").json()
    query = f"?txn={begun['txnId']}"
    first = post(admin, topic, "k", "a", query=query)
    assert ids(post(admin, topic, "k", "a", query=query)) == ids(first)
    assert post(admin, topic, "k", "a").status_code == 422
    assert admin.post(f"{begun['path']}/commit").status_code == 200
    assert ids(post(admin, topic, "k", "a", query=query)) == ids(first)
    assert [each.data() for each in received(client, topic, 1)] == [b"a"]


def test_a_request_that_was_refused_before_it_published_leaves_its_key_free(
    admin: httpx.Client, topic: str
) -> None:
    """The broker has not stopped, so nobody need doubt."""
    for _ in range(2):
        answer = post(admin, topic, "k", "a", query="?txn=0:999999")
        assert (answer.status_code, "does not exist" in answer.text) == (404, True)
    ids(post(admin, topic, "k", "a"))


def test_messages_that_are_still_on_their_way_are_waited_for(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stands still answers late; the messages may be stored all the same."""

    async def hold(running: Any) -> Any:
        ledger = (await running.topics.get(TopicName.parse(topic))).ledger
        ledger._appender.hold()
        return ledger

    async def release(_: Any) -> None:
        ledger._appender.release()

    ids(post(admin, topic, "before", "x"))
    ledger = admin_broker.call(hold)
    with monkeypatch.context() as patched:
        patched.setattr("pybroker.server.local.connection.PUBLISH_TIMEOUT_S", 0.1)
        patched.setattr(idempotency, "_WAIT_S", 0.1)
        late = post(admin, topic, "k", "a").json()["messagePublishResults"]
        assert [each["errorCode"] for each in late] == [1]
        assert post(admin, topic, "k", "a").status_code == 503
    admin_broker.call(release)
    (stored,) = ids(post(admin, topic, "k", "a"))
    assert ids(post(admin, topic, "k", "a")) == [stored]
    assert count(admin, topic) == 2


def test_a_key_is_forgotten_after_a_day() -> None:
    with (
        pybroker.testing.broker(http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as admin,
    ):
        admin.put("/admin/v2/persistent/public/default/t")
        admin.put("/admin/v2/persistent/public/default/t/subscription/s")
        first = post(admin, "public/default/t", "k", "a")
        broker.clock.advance("25h")
        ids(post(admin, "public/default/t", "other", "a"))
        assert broker.call(kept_keys) == 1
        assert ids(post(admin, "public/default/t", "k", "a")) != ids(first)


async def kept_keys(running: Any) -> int:
    return len(running.metadata.keys("/idempotency-keys/"))


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True, data_dir=tmp_path, faults=True) as broker:
        yield broker


def is_up(broker: RunningBroker) -> bool:
    try:
        return httpx.get(f"{broker.admin_url}/admin/v2/brokers/ready").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize("step", ["publish.before_receipt", "publish.before_append"])
def test_a_crash_on_the_way_publishes_each_message_once(durable: RunningBroker, step: str) -> None:
    topic = "public/default/t"
    with httpx.Client(base_url=durable.admin_url, timeout=60) as admin:
        admin.put(f"/admin/v2/persistent/{topic}")
        admin.put(f"/admin/v2/persistent/{topic}/subscription/s")
        ids(post(admin, topic, "before", "x"))
        crash = durable.faults.inject(step, "crash", topic="t")
        with pytest.raises(httpx.HTTPError):
            post(admin, topic, "k", "a", "b", "c").raise_for_status()
        durable.restart_after(crash)
        durable.wait_until(lambda: is_up(durable))
    with httpx.Client(base_url=durable.admin_url, timeout=60) as admin:
        first = ids(post(admin, topic, "k", "a", "b", "c"))
        assert ids(post(admin, topic, "k", "a", "b", "c")) == first
        assert len(set(first)) == 3
        with Client(durable.service_url) as client:
            consumer = client.subscribe("t", "s")
            found = [consumer.receive(30_000) for _ in range(4)]
        assert sorted(each.data() for each in found) == [b"a", b"b", b"c", b"x"]
        assert count(admin, topic) == 4


def test_a_crash_before_the_first_message_of_a_topic_leaves_no_doubt(
    durable: RunningBroker,
) -> None:
    """The empty ledger is dropped, and the list of ledgers says so."""
    topic = "public/default/t"
    with httpx.Client(base_url=durable.admin_url) as admin:
        admin.put(f"/admin/v2/persistent/{topic}")
        admin.put(f"/admin/v2/persistent/{topic}/subscription/s")
        crash = durable.faults.inject("publish.before_append", "crash", topic="t")
        with pytest.raises(httpx.HTTPError):
            post(admin, topic, "k", "a").raise_for_status()
        durable.restart_after(crash)
        durable.wait_until(lambda: is_up(durable))
    with httpx.Client(base_url=durable.admin_url, timeout=60) as admin:
        assert ids(post(admin, topic, "k", "a")) == ids(post(admin, topic, "k", "a"))
        assert count(admin, topic) == 1


def test_a_request_after_all_was_consumed_and_deleted_begins_where_nothing_can_be_missing() -> None:
    async def look() -> None:
        backend = MemoryBackend()
        factory = ManagedLedgerFactory(backend, SystemClock())
        ledger = await factory.open("log")
        await ledger.append_one(b"before")
        await ledger.roll_over()
        await ledger.trim()
        start = idempotency._end_of(SimpleNamespace(ledger=ledger))  # type: ignore[arg-type]
        await factory.close()
        ledger = await ManagedLedgerFactory(backend, SystemClock()).open("log")
        assert has_all_after(start, ledger.ledgers(), ledger.properties)

    asyncio.run(look())


def test_an_answer_survives_a_crash(durable: RunningBroker) -> None:
    topic = "public/default/t"
    with httpx.Client(base_url=durable.admin_url) as admin:
        admin.put(f"/admin/v2/persistent/{topic}")
        first = ids(post(admin, topic, "k", "a"))
    durable.kill_and_restart()
    with httpx.Client(base_url=durable.admin_url) as admin:
        assert ids(post(admin, topic, "k", "a")) == first


def test_roles_have_their_own_keys() -> None:
    with pybroker.testing.broker(http=True, **SETTINGS) as broker:
        world = World(broker)
        world.admin("PUT", world.on_topic())
        found = []
        for role in ("one", "two"):
            world.grant(role, "produce")
            with httpx.Client(base_url=broker.admin_url, headers=bearer(role)) as own:
                found.append(ids(post(own, f"{world.namespace}/t", "k", "a")))
        assert found[0] != found[1]


def test_the_keys_of_a_role_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_KEYS_OF_A_ROLE", 2)
    with pybroker.testing.broker(http=True, **SETTINGS) as broker:
        world = World(broker)
        world.admin("PUT", world.on_topic())
        statuses = []
        for role in ("many", "other"):
            world.grant(role, "produce")
            with httpx.Client(base_url=broker.admin_url, headers=bearer(role)) as own:
                for key in "xyz":  # nothing is published
                    assert post(own, f"{world.namespace}/t", key, "a", query="?txn=").is_error
                for key in "abc":
                    answer = post(own, f"{world.namespace}/t", key, "a")
                    statuses.append(answer.status_code)
        assert statuses == [200, 200, 429, 200, 200, 429]


def test_a_large_request_counts_as_several_keys_and_takes_little_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idempotency, "MOST_KEYS_OF_A_ROLE", 3)
    with (
        pybroker.testing.broker(http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as own,
    ):
        for path in ("t", "t/subscription/s"):
            own.put(f"/admin/v2/persistent/public/default/{path}").raise_for_status()
        assert len(ids(post(own, "public/default/t", "large", *["x"] * 250))) == 250
        assert broker.call(stored_bytes) < 250 * 10
        answer = post(own, "public/default/t", "small", "x")
        assert (answer.status_code, "each 100 messages" in answer.text) == (429, True)
        assert len(ids(post(own, "public/default/t", "large", *["x"] * 250))) == 250
        broker.clock.advance("11m")  # they are counted anew
        assert post(own, "public/default/t", "small", "x").status_code == 429


async def stored_bytes(running: Any) -> int:
    metadata = running.metadata
    keys = metadata.keys("/idempotency-keys/")
    return sum(len(metadata.get(key).value) for key in keys)


def test_a_key_that_another_broker_has_used_again_is_not_forgotten() -> None:
    """What this broker knows of it is a day old."""

    async def look() -> None:
        metadata, now_ms = MemoryBackend().metadata, 3 * idempotency.KEPT_MS
        keys = idempotency.IdempotencyKeys(metadata, SystemClock())
        await metadata.put("/idempotency-keys/o/k", b'{"at_ms": 1, "keys": 1}\n')
        old = metadata.get("/idempotency-keys/o/k")
        await metadata.put("/idempotency-keys/o/k", b'{"at_ms": %d, "keys": 1}\n' % now_ms)
        current, metadata.get = metadata.get, lambda _: old  # type: ignore[method-assign]
        await keys._look_at_all(now_ms)
        assert current("/idempotency-keys/o/k") is not None

    asyncio.run(look())
