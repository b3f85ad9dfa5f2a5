"""One transaction with participants of Kafka's and of Pulsar's clients: all of it, or nothing."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_produce import create
from kafka_words import TOPIC, add_group, add_partition, inited, offset_of
from raw_kafka import RawKafka

from pybroker.base.names import TxnId
from pybroker.client import Client, InitialPosition, Timeout
from pybroker.kafka.errors import ErrorCode
from pybroker.testing import RunningBroker, broker

TIMEOUT_S = 30.0
STEPS = [
    f"transaction.{step}.{when}"
    for step in ("decided", "marker", "pending_ack", "completed")
    for when in ("before", "after")
]


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker(kafka=True, http=True, faults=True) as started:
        yield started


def offsets_route(running: RunningBroker, txn_id: Any) -> str:
    return f"{running.admin_url}/admin/v3/transactions/{txn_id[0]}/{txn_id[1]}/kafkaOffsets"


def commit_offsets(running: RunningBroker, txn_id: Any, **more: Any) -> httpx.Response:
    offsets = [{"topic": "orders", "partition": 0, "offset": 1}]
    body = {"group": "billing", "offsets": offsets, **more}
    return httpx.post(offsets_route(running, txn_id), json=body, timeout=TIMEOUT_S)


def offset(running: RunningBroker) -> int:
    with RawKafka(running.kafka_bootstrap) as raw:
        found = offset_of(raw, "billing", stable=True)
        assert type(found) is int, found
        return found


def order(running: RunningBroker) -> None:
    """An order in Kafka's topic, which a group has read."""
    producer = Producer({"bootstrap.servers": running.kafka_bootstrap})
    producer.produce("orders", b"an order", partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def messages(client: Client, topic: str) -> list[bytes]:
    reading = client.subscribe(topic, "check", initial_position=InitialPosition.Earliest)
    found = []
    try:
        while True:
            found.append(reading.receive(500).data())
    except Timeout:
        return found
    finally:
        reading.close()


@pytest.mark.parametrize("commits", [True, False])
def test_a_pulsar_transaction_commits_the_offsets_of_a_kafka_group(
    running: RunningBroker, commits: bool
) -> None:
    order(running)
    with Client(running.service_url, enable_transaction=True) as client:
        txn = client.new_transaction()
        client.create_producer("bills").send(b"a bill", txn=txn)
        assert commit_offsets(running, txn.txn_id).status_code == 204
        txn.commit() if commits else txn.abort()
        assert messages(client, "bills") == ([b"a bill"] if commits else [])
    assert offset(running) == (1 if commits else -1)


@pytest.mark.parametrize("point", STEPS)
def test_both_are_there_after_a_crash_at_each_step(running: RunningBroker, point: str) -> None:
    order(running)
    with Client(running.service_url, enable_transaction=True) as client:
        txn = client.new_transaction()
        client.create_producer("bills").send(b"a bill", txn=txn)
        assert commit_offsets(running, txn.txn_id).status_code == 204
        crash = running.faults.inject(point, "crash")
        running.restart_after(crash)
        committing = threading.Thread(target=txn.commit)
        committing.start()
        committing.join(60)
        assert not committing.is_alive()
        crash.wait_for_hit()
    running.kill_and_restart()
    with Client(running.service_url) as client:
        assert messages(client, "bills") == [b"a bill"]
    assert offset(running) == 1


def test_a_pulsar_client_joins_the_transaction_of_a_kafka_producer(running: RunningBroker) -> None:
    producer = Producer(
        {"bootstrap.servers": running.kafka_bootstrap, "transactional.id": "billing"}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("kafka-bills", b"a bill", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    url = f"{running.admin_url}/admin/v3/transactions/transactionalIds/billing"
    (text,) = httpx.get(url).json()["openTransactions"]
    txn_id = TxnId(*map(int, text.strip("()").split(",")))
    with Client(running.service_url, enable_transaction=True) as client:
        txn = client.attach_transaction(txn_id)
        client.create_producer("pulsar-bills").send(b"a copy", txn=txn)
        assert messages(client, "pulsar-bills") == []
        producer.commit_transaction(TIMEOUT_S)
        assert messages(client, "pulsar-bills") == [b"a copy"]
        assert messages(client, "kafka-bills") == [b"a bill"]


def test_a_consumer_that_was_left_behind_commits_nothing(running: RunningBroker) -> None:
    order(running)
    with Client(running.service_url, enable_transaction=True) as client:
        txn = client.new_transaction()
        refused = commit_offsets(running, txn.txn_id, memberId="gone", generation=3)
        assert refused.status_code == 409 and "ILLEGAL_GENERATION" in refused.text
        txn.commit()
        late = commit_offsets(running, txn.txn_id)
        assert late.status_code == 409
    assert offset(running) == -1


def test_what_does_not_exist_is_not_found(running: RunningBroker) -> None:
    with Client(running.service_url, enable_transaction=True) as client:
        txn = client.new_transaction()
        assert commit_offsets(running, txn.txn_id).status_code == 404  # no topic
        order(running)
        assert commit_offsets(running, (0, 4711)).status_code == 404
        txn.abort()


def test_groups_are_shown_with_their_lag(running: RunningBroker) -> None:
    for _ in range(3):
        order(running)
    settings = {
        "bootstrap.servers": running.kafka_bootstrap,
        "group.id": "a/group",
        "auto.offset.reset": "earliest",
    }
    consuming = Consumer(settings)
    consuming.subscribe(["orders"])
    running.wait_until(lambda: consuming.poll(0.1) is not None)
    consuming.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    url = f"{running.admin_url}/admin/v3/kafka/groups"
    (listed,) = httpx.get(url).json()
    assert listed == {
        "group": "a/group",
        "kind": "classic",
        "state": "Stable",
        "members": 1,
        "committedPartitions": 1,
    }
    (place,) = httpx.get(f"{url}/a%2Fgroup").json()["offsets"]
    assert (place["committedOffset"], place["endOffset"], place["lag"]) == (1, 3, 2)
    assert httpx.get(f"{url}/nobodys").status_code == 404
    consuming.close()


def test_without_kafka_there_are_no_groups() -> None:
    with broker(http=True) as running:
        answer = httpx.get(f"{running.admin_url}/admin/v3/kafka/groups")
        assert answer.status_code == 409 and "--kafka" in answer.text


def test_the_admin_api_describes_a_transaction_with_offsets(running: RunningBroker) -> None:
    """It took the log of the offsets for a topic, and refused."""
    with RawKafka(running.kafka_bootstrap) as raw:
        create(raw, TOPIC)
        producer = inited(raw, "billing")
        assert add_partition(raw, producer) == ErrorCode.NONE
        assert add_group(raw, producer, "shipping") == ErrorCode.NONE
        routes = f"{running.admin_url}/admin/v3/transactions"
        (live,) = httpx.get(f"{routes}/live").json()["transactions"]
        txn_id = TxnId.parse(live["txnId"])
        route = f"{routes}/transactionMetadata/{txn_id.most}/{txn_id.least}"
        found = httpx.get(route).json()
        (acknowledged,) = found["ackedPartitions"].values()
        assert (found["status"], list(acknowledged)) == ("OPEN", ["shipping"])
        assert str(txn_id) in httpx.get(f"{routes}/slowTransactions/0").json()
