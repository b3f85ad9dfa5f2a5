"""The logs of topics, cursors and transactions in the admin REST."""

from typing import Any

import httpx
from publishing import publish

from pybroker.client import Client, ConsumerType
from pybroker.testing import RunningBroker

P = "/admin/v2/persistent"
T = "/admin/v3/transactions"


def test_a_cursor_shows_what_was_acknowledged_out_of_order(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "audit", ConsumerType.Shared)
    publish(client, topic, 6)
    for number in range(6):
        message = consumer.receive(timeout_millis=30_000)
        if number in (1, 2, 4):
            consumer.acknowledge(message)
    consumer.close()
    stats = admin.get(f"{P}/{topic}/internalStats").json()
    ledger, cursor = stats["ledgers"][-1]["ledgerId"], stats["cursors"]["audit"]
    ranges = f"({ledger}:0..{ledger}:2],({ledger}:3..{ledger}:4]"
    assert cursor["individuallyDeletedMessages"] == f"[{ranges}]"
    assert (cursor["active"], stats["entriesAddedCounter"]) == (False, 6)


def test_of_very_many_ranges_a_cursor_shows_the_first(
    admin: httpx.Client, admin_broker: RunningBroker, topic: str
) -> None:
    admin.put(f"{P}/{topic}/subscription/audit", json="earliest")

    async def acknowledge(running: Any) -> None:
        topic_there = await running.topics.get(f"persistent://{topic}")
        for _ in range(250):
            last = await topic_there.ledger.append_one(b"x")
        for entry_id in range(1, 250, 2):
            topic_there.subscriptions["audit"].cursor.delete(last.ledger_id, entry_id)

    admin_broker.call(acknowledge)
    cursor = admin.get(f"{P}/{topic}/internalStats").json()["cursors"]["audit"]
    assert cursor["individuallyDeletedMessages"].count("..") == 100
    assert cursor["individuallyDeletedMessages"].endswith(",…]")


def test_a_coordinators_log_is_a_managed_ledger(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    most = client.new_transaction().txn_id.most
    log = admin.get(f"{T}/coordinatorInternalStats/{most}").json()["transactionLogStats"]
    assert log["managedLedgerName"].endswith(str(most))
    assert log["managedLedgerInternalStats"]["numberOfEntries"] > 0
    assert admin.get(f"{T}/coordinatorInternalStats/999").status_code == 404
    assert admin.get(f"{T}/transactionBufferInternalStats/{topic}").json()["snapshotType"]


def test_a_position_is_told_to_be_acknowledged_pending_or_neither(
    admin: httpx.Client, client: Client, topic: str
) -> None:
    consumer = client.subscribe(f"persistent://{topic}", "audit", ConsumerType.Shared)
    publish(client, topic, 3)
    received = [consumer.receive(timeout_millis=30_000) for _ in range(3)]
    assert admin.get(f"{T}/pendingAckInternalStats/{topic}/audit").status_code == 404
    ledger = received[0].message_id().ledger_id()
    path = f"{T}/positionStatsInPendingAck/{topic}/audit/{ledger}"

    def state(entry: int) -> Any:
        return admin.get(f"{path}/{entry}").json()["state"]

    assert state(1) == "NotInPendingAck"
    txn = client.new_transaction()
    consumer.acknowledge(received[0])
    consumer.acknowledge(received[1], txn=txn)
    consumer.close()
    assert [state(entry) for entry in (0, 1, 2, 3)] == [
        "MarkDelete",
        "PendingAck",
        "NotInPendingAck",
        "InvalidPosition",
    ]
    log = admin.get(f"{T}/pendingAckInternalStats/{topic}/audit").json()["pendingAckLogStats"]
    assert log["managedLedgerInternalStats"]["numberOfEntries"] == 1
    txn.abort()
    assert state(1) == "NotInPendingAck"


def test_a_part_of_a_batch_is_pending(admin: httpx.Client, client: Client, topic: str) -> None:
    name = f"persistent://{topic}"
    consumer = client.subscribe(name, "audit", ConsumerType.Shared)
    producer = client.create_producer(name, batching_enabled=True)
    for number in range(3):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    first = consumer.receive(timeout_millis=30_000)
    txn = client.new_transaction()
    consumer.acknowledge(first, txn=txn)
    consumer.close()
    at = first.message_id()
    path = f"{T}/positionStatsInPendingAck/{topic}/audit/{at.ledger_id()}/{at.entry_id()}"
    states = [
        admin.get(path, params={"batchIndex": index}).json()["state"]
        for index in (0, 1, 10**18, -(10**18))
    ]
    assert states == ["PendingAck", "NotInPendingAck", "NotInPendingAck", "NotInPendingAck"]
    assert admin.get(path, params={"batchIndex": "x"}).status_code == 400
    txn.abort()
