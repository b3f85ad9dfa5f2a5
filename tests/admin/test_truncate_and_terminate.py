"""Truncation and termination of a topic beside other readers of its log."""

from typing import Any

import httpx
import pytest
from compacting import compact, pairs, read, send
from publishing import publish

import pybroker.testing
from pybroker.broker.persistent.truncation import truncate
from pybroker.client import Client
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"


def logs(admin: httpx.Client, topic: str) -> Any:
    """The number of entries in each ledger."""
    return [each["entries"] for each in _internal_stats(admin, topic)["ledgers"]]


def _internal_stats(admin: httpx.Client, topic: str) -> Any:
    return admin.get(f"{P}/{topic}/internalStats").json()


@pytest.mark.parametrize("also", ["deduplicationEnabled", "compactionThreshold", "nothing"])
def test_truncating_leaves_one_empty_ledger(
    admin: httpx.Client, client: Client, topic: str, also: str
) -> None:
    if also != "nothing":
        value = True if also == "deduplicationEnabled" else 1 << 40
        assert admin.post(f"{P}/{topic}/{also}", json=value).status_code == 204
    admin.put(f"{P}/{topic}/subscription/audit")
    publish(client, topic, 5)
    assert admin.delete(f"{P}/{topic}/truncate").status_code == 204
    assert logs(admin, topic) == [0]


def test_a_copy_of_what_was_truncated_is_recognised(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    assert admin.post(f"{P}/{topic}/deduplicationEnabled", json=True).status_code == 204
    with Client(admin_broker.service_url) as client:
        producer = client.create_producer(f"persistent://{topic}", producer_name="p")
        producer.send(b"first", sequence_id=7)
        assert admin.delete(f"{P}/{topic}/truncate").status_code == 204
        assert admin.put(f"{P}/{topic}/unload").status_code == 204
        assert producer.send(b"first again", sequence_id=7).entry_id() == -1
    assert logs(admin, topic) == [0]


def test_compaction_goes_on_behind_what_was_truncated(
    admin: httpx.Client, admin_broker: RunningBroker, client: Client, topic: str
) -> None:
    """Compacted messages stay, as in Apache Pulsar."""
    name = f"persistent://{topic}"
    send(client, name, ("a", b"1"), ("b", b"2"))
    compact(admin_broker, name)
    send(client, name, ("a", b"3"))
    assert admin.delete(f"{P}/{topic}/truncate").status_code == 204
    assert logs(admin, topic) == [0]
    assert pairs(read(client, name)) == [("a", b"1"), ("b", b"2")]
    send(client, name, ("c", b"4"), ("c", b"5"))
    compact(admin_broker, name)
    assert pairs(read(client, name)) == [("a", b"1"), ("b", b"2"), ("c", b"5")]


def test_a_topic_that_is_being_compacted_is_not_truncated(topic: str) -> None:
    """Compaction must read the entries twice. The refusal names it, and nothing changes."""
    with pybroker.testing.broker(http=True) as broker, Client(broker.service_url) as client:
        name = "persistent://public/default/orders"
        send(client, name, ("a", b"1"))

        async def both(running: Any) -> str:
            found = await running.topics.get(name)
            found.compaction.start()
            try:
                await truncate(found)
            except Exception as error:
                return str(error)
            return "truncated"

        assert "is already running: wait until it ends" in broker.call(both)
        assert pairs(read(client, name, compacted=False)) == [("a", b"1")]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_terminating_answers_the_last_message_though_a_transaction_is_open_before_it(
    admin: httpx.Client, client: Client, topic: str, end: str
) -> None:
    producer = client.create_producer(f"persistent://{topic}")
    txn = client.new_transaction()
    producer.send(b"in the transaction", txn=txn)
    last = producer.send(b"plain")
    answer = admin.post(f"{P}/{topic}/terminate").json()
    assert (answer["ledgerId"], answer["entryId"]) == (last.ledger_id(), last.entry_id())
    getattr(txn, end)()
    assert admin.get(f"{P}/{topic}/lastMessageId").json()["entryId"] == last.entry_id()
