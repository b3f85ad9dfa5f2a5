"""Transactions beside deduplication, trimming, recovery."""

from typing import Any

from scenario import assert_nothing_more, drain, subscribe

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.client import Client


def test_a_sequence_id_is_a_duplicate_within_its_transaction_and_free_after_an_abort(
    topic: str,
) -> None:
    config = BrokerConfig(broker_deduplication_enabled=True)
    with pybroker.testing.broker(config=config) as broker:
        client = Client(broker.service_url, enable_transaction=True)
        consumer = subscribe(client, topic)
        producer = client.create_producer(topic, producer_name="p")
        txn = client.new_transaction()
        producer.send(b"aborted", sequence_id=5, txn=txn)
        producer.send(b"aborted again", sequence_id=5, txn=txn)
        txn.abort()
        producer.send(b"retried", sequence_id=5)
        producer.send(b"retried twice", sequence_id=5)
        producer.send(b"next", sequence_id=6)
        assert drain(consumer, 2) == [b"retried", b"next"]
        assert_nothing_more(consumer)
        client.close()


def test_duplicates_are_known_after_a_kill(topic: str) -> None:
    config = BrokerConfig(broker_deduplication_enabled=True)
    with pybroker.testing.broker(config=config) as broker:
        client = Client(broker.service_url)
        consumer = subscribe(client, topic)
        producer = client.create_producer(topic, producer_name="p")
        producer.send(b"first", sequence_id=0)
        broker.kill_and_restart()
        producer.send(b"first again", sequence_id=0)
        producer.send(b"second", sequence_id=1)
        assert drain(consumer, 2) == [b"first", b"second"]
        assert_nothing_more(consumer)
        client.close()


def test_trimming_a_ledger_drops_its_part_of_the_abort_index(topic: str) -> None:
    config = BrokerConfig(
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    with pybroker.testing.broker(config=config) as broker:
        client = Client(broker.service_url, enable_transaction=True)
        consumer = subscribe(client, topic)
        producer = client.create_producer(topic)
        for number in range(30):
            txn = client.new_transaction()
            producer.send(b"aborted", txn=txn)
            txn.abort()
            producer.send(b"%d" % number)
        assert drain(consumer, 30) == [b"%d" % number for number in range(30)]
        broker.wait_until(lambda: broker.backlog(topic, "sub") == 0)
        broker.trim(topic)
        assert broker.hidden_entries(topic) <= 20, "30 aborted and 30 markers were hidden"
        client.close()


def test_a_producer_created_while_the_buffer_recovers_waits_without_an_error(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        client = Client(broker.service_url, enable_transaction=True)
        producer = client.create_producer(topic)
        for _ in range(50):
            with client.new_transaction() as txn:
                producer.send(b"in", txn=txn)
        broker.kill_and_restart()
        other = Client(broker.service_url, enable_transaction=True)
        other.create_producer(topic).send(b"after recovery")
        consumer = subscribe(other, topic)
        assert drain(consumer, 51)[-1] == b"after recovery"
        client.close()
        other.close()


def test_aborted_messages_stay_hidden_after_kills(topic: str) -> None:
    with pybroker.testing.broker() as broker:
        client: Any = Client(broker.service_url, enable_transaction=True)
        producer = client.create_producer(topic)
        for number in range(5):
            txn = client.new_transaction()
            producer.send(b"aborted", txn=txn)
            txn.abort()
            producer.send(b"%d" % number)
            broker.kill_and_restart()
        consumer = subscribe(client, topic)
        assert drain(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert_nothing_more(consumer)
        client.close()
