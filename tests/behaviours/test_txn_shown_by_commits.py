"""Commit order, seen through a client: the policy `transactionBuffer` and what it changes."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from scenario import SOON_MS, assert_nothing_more, delete_topic, drain, subscribe

import pybroker.testing
from pybroker.client import Client, ConsumerType, InvalidTxnStatus, MessageId, TransactionNotFound

pytestmark = pytest.mark.parametrize(
    "transaction_buffer", ["commitOrder"], indirect=True, scope="session"
)


def of_topic(broker: Any, topic: str, what: Callable[[Any], Any]) -> Any:
    async def look(running: Any) -> Any:
        return what(await running.topics.get(topic))

    return broker.call(look)


def set_order(broker: Any, topic: str, order: str) -> None:
    url = f"{broker.admin_url}/admin/v2/{topic.replace('://', '/')}/transactionBuffer"
    assert httpx.post(url, json=order).status_code == 204


def test_an_open_transaction_holds_no_reader_back_and_commits_come_in_their_order(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    first, second = client.new_transaction(), client.new_transaction()
    producer.send(b"a1", txn=first)
    producer.send(b"b1", txn=second)
    producer.send(b"plain")
    producer.send(b"a2", txn=first)
    assert drain(consumer, 1) == [b"plain"]
    assert_nothing_more(consumer)
    second.commit()
    assert drain(consumer, 1) == [b"b1"]
    first.commit()
    assert drain(consumer, 2) == [b"a1", b"a2"]


def test_the_policy_changes_while_transactions_are_open(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    aside, in_log, again = (client.new_transaction() for _ in range(3))
    producer.send(b"a1", txn=aside)
    set_order(shared_broker, topic, "logOrder")
    producer.send(b"b1", txn=in_log)
    producer.send(b"a2", txn=aside)
    set_order(shared_broker, topic, "commitOrder")
    producer.send(b"c1", txn=again)
    producer.send(b"b2", txn=in_log)
    again.commit()
    aside.commit()
    assert_nothing_more(consumer)  # they wait for the one in the log
    in_log.commit()
    assert drain(consumer, 5) == [b"b1", b"b2", b"c1", b"a1", b"a2"]


@pytest.mark.parametrize("stop", ["restart", "kill_and_restart"])
def test_an_open_transaction_goes_on_after_a_restart(topic: str, stop: str) -> None:
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        producer = client.create_producer(topic)
        consumer = subscribe(client, topic)
        txn = client.new_transaction()
        producer.send(b"before", txn=txn)
        getattr(broker, stop)()
        producer.send(b"plain")  # sent again until the client is back; a transaction's is not
        producer.send(b"after", txn=txn)
        assert drain(consumer, 1) == [b"plain"]
        txn.commit()
        assert drain(consumer, 2) == [b"before", b"after"]
        client.close()


def test_a_timeout_aborts_and_a_later_commit_fails(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction(timeout_ms=60_000)
    producer.send(b"too slow", txn=txn)
    assert of_topic(shared_broker, topic, lambda found: found.buffer.has_open)
    shared_broker.clock.advance("61s")
    assert not of_topic(shared_broker, topic, lambda found: found.buffer.has_open)
    with pytest.raises((InvalidTxnStatus, TransactionNotFound)):
        txn.commit()
    producer.send(b"plain")
    assert drain(consumer, 1) == [b"plain"]


def test_readers_and_the_last_message_know_nothing_of_what_waits(
    client: Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"plain")
    producer.send(b"in", txn=txn)
    reader = client.create_reader(topic, MessageId.earliest)
    assert reader.read_next(timeout_millis=SOON_MS).data() == b"plain"
    assert not reader.has_message_available()
    txn.commit()
    assert reader.has_message_available()
    assert reader.read_next(timeout_millis=SOON_MS).data() == b"in"
    assert not reader.has_message_available()


@pytest.mark.parametrize("kind", ConsumerType)
def test_what_a_commit_copied_is_acknowledged_and_delivered_as_any_message(
    client: Client, shared_broker: Any, topic: str, kind: ConsumerType
) -> None:
    consumer = subscribe(client, topic, consumer_type=kind)
    producer = client.create_producer(topic)
    for n in range(3):
        txn = client.new_transaction()
        producer.send(f"in {n}".encode(), partition_key="k", txn=txn)
        (txn.abort if n == 1 else txn.commit)()
    assert drain(consumer, 2) == [b"in 0", b"in 2"]
    shared_broker.wait_until(lambda: shared_broker.backlog(topic, "sub") == 0)


def test_a_large_transaction_in_many_sends_is_whole_and_in_order(
    client: Client, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    payloads = [b"%d" % n + bytes(5000) for n in range(300)]
    for payload in payloads:
        producer.send_async(payload, lambda result, message_id: None, txn=txn)
    producer.flush()
    txn.commit()
    assert drain(consumer, 300) == payloads


def test_a_deleted_topic_takes_what_waits_along(
    client: Client, shared_broker: Any, topic: str
) -> None:
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"in", txn=txn)
    delete_topic(shared_broker, topic)
    txn.commit()
    consumer = subscribe(client, topic)
    assert_nothing_more(consumer)

    async def look(running: Any) -> list[str]:
        return list(running.ledgers.names("transactions-aside/"))

    logs = shared_broker.call(look)
    assert not [name for name in logs if topic.rpartition("/")[2] in name]


def test_a_terminated_topic_ends_when_what_waits_has_ended(
    client: Client, shared_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"plain")
    producer.send(b"in", txn=txn)
    url = f"{shared_broker.admin_url}/admin/v2/{topic.replace('://', '/')}/terminate"
    assert httpx.post(url).status_code == 200

    def ended() -> Any:
        return of_topic(shared_broker, topic, lambda found: found.ended)

    assert drain(consumer, 1) == [b"plain"]
    assert not ended()
    txn.commit()
    assert drain(consumer, 1) == [b"in"]
    assert ended()


@pytest.fixture
def wide() -> Iterator[Any]:
    with pybroker.testing.broker(broker_deduplication_enabled=True) as broker:
        yield broker


def test_deduplication_holds_over_a_kill(wide: Any, topic: str) -> None:
    with Client(wide.service_url, enable_transaction=True) as client:
        producer = client.create_producer(topic, producer_name="p")
        txn = client.new_transaction()
        producer.send(b"one", txn=txn)
        txn.commit()
        undone = client.new_transaction()
        producer.send(b"two", txn=undone)
        undone.abort()
    wide.kill_and_restart()
    with Client(wide.service_url, enable_transaction=True) as client:
        producer = client.create_producer(topic, producer_name="p")
        producer.send(b"three")
        assert drain(subscribe(client, topic), 2) == [b"one", b"three"]
