"""Delayed messages through a client: alone, over a restart, in transactions, over a limit."""

import json
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from raw_client import RawClient
from scenario import SOON_MS, assert_nothing_more, drain

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.client import Client, Consumer, ConsumerType, InitialPosition
from pybroker.wire import pulsar_api_pb2 as pb

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
BY_TIME = pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
CRASHES = pytest.mark.parametrize("crash", [False, True], ids=["restarted", "killed"])


@pytest.fixture
def ticking_broker() -> Iterator[Any]:
    """Each test has its own, because it advances the clock."""
    config = BrokerConfig(
        delayed_delivery_tick_time_millis=20, is_delayed_delivery_deliver_at_time_strict=True
    )
    with pybroker.testing.broker(config=config, http=True) as broker:
        yield broker


@pytest.fixture
def client(ticking_broker: Any) -> Iterator[Client]:
    with Client(ticking_broker.service_url, enable_transaction=True) as client:
        yield client


def subscribe(client: Client, topic: str, kind: Any = ConsumerType.Shared) -> Consumer:
    return client.subscribe(
        topic, "sub", consumer_type=kind, initial_position=InitialPosition.Earliest
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@BY_TIME
def test_a_delayed_message_comes_behind_those_that_are_not(
    client: Client, ticking_broker: Any, topic: str, kind: Any
) -> None:
    consumer = subscribe(client, topic, kind)
    with client.create_producer(topic) as producer:
        producer.send(b"later", deliver_after=2 * HOUR)
        producer.send(b"sooner", deliver_at=now_ms() + 3_600_000)
        producer.send(b"now")
    assert drain(consumer, 1) == [b"now"]
    ticking_broker.clock.advance("59m")
    assert_nothing_more(consumer)
    ticking_broker.clock.advance(MINUTE)
    assert drain(consumer, 1) == [b"sooner"]
    ticking_broker.clock.advance("59m")
    assert_nothing_more(consumer)
    ticking_broker.clock.advance(MINUTE)
    message = consumer.receive(timeout_millis=SOON_MS)
    assert (message.data(), message.redelivery_count()) == (b"later", 0)


def test_stats_say_how_many_are_delayed(client: Client, ticking_broker: Any, topic: str) -> None:
    consumer = subscribe(client, topic)
    with client.create_producer(topic) as producer:
        for _ in range(5):
            producer.send(b"later", deliver_after=HOUR)
        producer.send(b"now")
    consumer.receive(timeout_millis=SOON_MS)
    path = topic.replace("://", "/")
    url = f"{ticking_broker.admin_url}/admin/v2/{path}/stats"
    with urllib.request.urlopen(url) as answer:
        stats = json.load(answer)["subscriptions"]["sub"]
    assert (stats["msgDelayed"], stats["msgBacklog"], stats["msgBacklogNoDelayed"]) == (5, 6, 1)


@CRASHES
def test_a_delayed_message_survives_the_broker(topic: str, crash: bool) -> None:
    config = BrokerConfig(delayed_delivery_tick_time_millis=20)
    with pybroker.testing.broker(config=config) as broker:
        with Client(broker.service_url) as client, client.create_producer(topic) as producer:
            consumer = subscribe(client, topic)
            producer.send(b"soon", deliver_after=MINUTE)
            producer.send(b"far", deliver_after=HOUR)
            producer.send(b"now")
            assert drain(consumer, 1) == [b"now"]
            consumer.close()  # answered after its acknowledgement
            broker.call(lambda running: _flush(running, topic))
        if crash:
            broker.kill_and_restart()
        else:
            broker.restart()
        with Client(broker.service_url) as client:
            consumer = subscribe(client, topic)
            assert_nothing_more(consumer)
            broker.clock.advance(MINUTE)
            assert drain(consumer, 1) == [b"soon"]
            assert_nothing_more(consumer)


async def _flush(running: Any, topic: str) -> None:
    await (await running.topics.get(topic)).ledger.flush_cursors()


@BY_TIME
def test_in_a_transaction_the_commit_is_where_delays_begin_to_count(
    client: Client, ticking_broker: Any, topic: str, kind: Any
) -> None:
    consumer = subscribe(client, topic, kind)
    producer = client.create_producer(topic)
    txn = client.new_transaction(timeout_ms=3_600_000)
    producer.send(b"past at the commit", deliver_at=now_ms() + 60_000, txn=txn)
    producer.send(b"later", deliver_after=HOUR, txn=txn)
    producer.send(b"plain", txn=txn)
    ticking_broker.clock.advance(MINUTE)
    assert_nothing_more(consumer)
    txn.commit()
    assert sorted(drain(consumer, 2)) == [b"past at the commit", b"plain"]
    assert_nothing_more(consumer)
    ticking_broker.clock.advance(HOUR)
    assert drain(consumer, 1) == [b"later"]


def test_of_an_aborted_transaction_nothing_comes_at_any_time(
    client: Client, ticking_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    txn = client.new_transaction()
    producer.send(b"aborted", deliver_after=MINUTE, txn=txn)
    txn.abort()
    producer.send(b"behind", deliver_after=HOUR)
    ticking_broker.clock.advance(HOUR)
    assert drain(consumer, 1) == [b"behind"]


def test_an_aborted_acknowledgement_brings_a_delayed_message_again(
    client: Client, ticking_broker: Any, topic: str
) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=MINUTE)
    ticking_broker.clock.advance(MINUTE)
    message = consumer.receive(timeout_millis=SOON_MS)
    txn = client.new_transaction()
    consumer.acknowledge(message, txn=txn)
    txn.abort()
    assert drain(consumer, 1) == [b"delayed"]
    assert_nothing_more(consumer)


@pytest.mark.parametrize("deduplicated", [False, True])
def test_what_is_delayed_too_far_is_refused_and_the_rest_is_stored(
    topic: str, deduplicated: bool
) -> None:
    config = BrokerConfig(
        delayed_delivery_max_delay_in_millis=10_000, broker_deduplication_enabled=deduplicated
    )
    with pybroker.testing.broker(config=config) as broker, RawClient(broker.service_url) as raw:
        raw.create_producer(topic)
        with raw.in_one_piece():
            for sequence_id, delay_ms in enumerate((0, 10_000, 10_001, 0)):
                raw.start_publish(
                    b"x", sequence_id, publish_time=1000, deliver_at_time=1000 + delay_ms
                )
        answers = [
            raw.receive(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR) for _ in "1234"
        ]
        assert [answer.sequence_id for answer in answers] == [0, 1, 2, 3]
        refused = [answer for answer in answers if isinstance(answer, pb.CommandSendError)]
        assert [(answer.sequence_id, answer.error) for answer in refused] == [
            (2, pb.NotAllowedError)
        ]
        assert "Exceeds max allowed delivery delay of 10000 milliseconds" in refused[0].message
        again = raw.publish(b"x", 2, publish_time=1000)
        assert again.message_id.entryId == 3
