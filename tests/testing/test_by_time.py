"""Each timed event happens when the broker's clock is advanced, and not before.

The last test compares this file with broker.conf: every key with a time has a test here, or a
reason why not.
"""

import dataclasses
import re
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token
from raw_client import RawClient

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName
from pybroker.client import (
    AuthenticationToken,
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    PulsarException,
    Timeout,
)
from pybroker.testing import RunningBroker, VirtualClock
from pybroker.wire import pulsar_api_pb2 as pb

Test = TypeVar("Test", bound=Callable[..., None])

TOPIC: Final = "persistent://public/default/t"
T: Final = "persistent/public/default/t"
NAMESPACE: Final = "namespaces/public/default"
A_TIME: Final = re.compile(r"_(seconds?|minutes?|ms|millis|sec)(_|$)")
MOVED: Final[set[str]] = set()
NOT_MOVED: Final = {
    "bookkeeper_tls_cert_files_refresh_duration_seconds": "of several brokers",
    "delayed_delivery_max_delay_in_millis": "a limit to what a producer may ask for",
    "delayed_delivery_tick_time_millis": "how exact delays are",
    "kafka_group_initial_rebalance_delay_ms": "kafka/test_kafka_groups_by_time.py",
    "kafka_offsets_retention_minutes": "kafka/test_kafka_groups_by_time.py",
    "keep_alive_interval_seconds": "clients have their own time: test_connections_outlive_it",
    "load_balancer_shedding_interval_minutes": "of several brokers",
    "max_transaction_timeout_ms": "a limit to what a client may ask for",
    "max_transaction_timeout_ms_per_namespace": "a limit to what a client may ask for",
    "metadata_store_session_timeout_millis": "of ZooKeeper, which keeps its own time",
    "metrics_cache_ms": "a broker for tests keeps no metrics",
    "prepared_transaction_max_age_ms": "transaction/test_txn_preparing.py, in virtual time",
    "scalable_topic_consumer_session_grace_period_seconds": "server/test_wire_v5_consumers.py",
    **dict.fromkeys(
        (
            "scalable_topic_auto_scale_interval_seconds",
            "scalable_topic_merge_cooldown_seconds",
            "scalable_topic_merge_window_seconds",
            "scalable_topic_rebucket_cooldown_seconds",
            "scalable_topic_split_cooldown_seconds",
        ),
        "broker/scalable/test_auto_scaler.py, in virtual time",
    ),
    "web_socket_ping_duration_seconds": "whether a connection is alive: real time",
    "web_socket_session_idle_timeout_millis": "whether a connection is alive: real time",
    "topic_compaction_delete_retention_seconds": "broker/compaction: it is the clock's time there",
    "tls_cert_refresh_check_duration_sec": "security/test_certificates_that_expire.py",
    "transaction_buffer_snapshot_min_time_in_millis": "how much a restart reads again",
    "token_allowed_clock_skew_seconds": "how exact the expiry of tokens is",
}


def by(*keys: str) -> Callable[[Test], Test]:
    """Declares the keys of broker.conf that the test covers."""
    MOVED.update(keys)
    return lambda test: test


def admin(broker: RunningBroker, path: str, body: Any = None, method: str = "POST") -> None:
    httpx.request(method, f"{broker.admin_url}/admin/{path}", json=body).raise_for_status()


def asked(broker: RunningBroker, path: str) -> Any:
    answer = httpx.get(f"{broker.admin_url}/admin/{path}")
    answer.raise_for_status()
    return answer.json()


def ledgers(broker: RunningBroker) -> int:
    return len(asked(broker, f"v2/{T}/internalStats")["ledgers"])


def subscribed(client: Client, kind: ConsumerType = ConsumerType.Exclusive) -> Consumer:
    earliest = InitialPosition.Earliest
    return client.subscribe(TOPIC, "s", consumer_type=kind, initial_position=earliest)


def nothing_comes(consumer: Consumer) -> bool:
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=50)
    return True


def next_of(consumer: Consumer) -> bytes:
    payload: bytes = consumer.receive(timeout_millis=20_000).data()
    return payload


# -- messages


def test_a_delayed_message_is_delivered(pulsar_client: Client, pulsar_clock: VirtualClock) -> None:
    consumer = subscribed(pulsar_client, ConsumerType.Shared)
    pulsar_client.create_producer(TOPIC).send(b"later", deliver_after=timedelta(days=2))
    pulsar_clock.advance("47h")
    assert nothing_comes(consumer)
    pulsar_clock.advance("61m")
    assert next_of(consumer) == b"later"


def test_a_delayed_message_of_a_transaction_is_delivered(
    pulsar_client: Client, pulsar_clock: VirtualClock
) -> None:
    consumer = subscribed(pulsar_client, ConsumerType.Shared)
    with pulsar_client.new_transaction() as txn:
        producer = pulsar_client.create_producer(TOPIC)
        producer.send(b"later", txn=txn, deliver_after=timedelta(hours=1))
    pulsar_clock.advance("59m")
    assert nothing_comes(consumer)
    pulsar_clock.advance("2m")
    assert next_of(consumer) == b"later"


@by("ttl_duration_default_in_seconds", "message_expiry_check_interval_in_minutes")
def test_messages_expire(pulsar_broker: RunningBroker, pulsar_client: Client) -> None:
    subscribed(pulsar_client).close()
    pulsar_client.create_producer(TOPIC).send(b"old")
    admin(pulsar_broker, f"v2/{NAMESPACE}/messageTTL", 7200)
    pulsar_broker.clock.advance("1h")
    assert pulsar_broker.backlog(TOPIC, "s") == 1
    pulsar_broker.clock.advance("2h")
    assert pulsar_broker.backlog(TOPIC, "s") == 0


@by("default_retention_time_in_minutes")
def test_retention_ends(pulsar_broker: RunningBroker, pulsar_client: Client) -> None:
    retention = {"retentionTimeInMinutes": 120, "retentionSizeInMB": 100}
    admin(pulsar_broker, f"v2/{NAMESPACE}/retention", retention)
    pulsar_client.create_producer(TOPIC).send(b"old")
    admin(pulsar_broker, f"v2/{T}/unload", method="PUT")
    subscribed(pulsar_client)
    assert ledgers(pulsar_broker) == 2
    admin(pulsar_broker, f"v2/{T}/subscription/s/skip_all")
    pulsar_broker.clock.advance("1h")
    assert ledgers(pulsar_broker) == 2
    pulsar_broker.clock.advance("2h")
    assert ledgers(pulsar_broker) == 1


@by("managed_ledger_max_ledger_rollover_time_minutes")
@pytest.mark.pulsar_broker(managedLedgerMaxLedgerRolloverTimeMinutes=120)
def test_a_ledger_is_closed_because_of_its_age(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    subscribed(pulsar_client)
    pulsar_client.create_producer(TOPIC).send(b"old")
    pulsar_broker.clock.advance("1h")
    assert ledgers(pulsar_broker) == 1
    pulsar_broker.clock.advance("2h")
    assert ledgers(pulsar_broker) == 2


@by("managed_ledger_min_ledger_rollover_time_minutes")
@pytest.mark.pulsar_broker(managedLedgerMaxEntriesPerLedger=1)
def test_a_full_ledger_is_closed_when_it_is_old_enough(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    subscribed(pulsar_client)
    producer = pulsar_client.create_producer(TOPIC)
    producer.send(b"one")
    producer.send(b"two")
    assert ledgers(pulsar_broker) == 1
    pulsar_broker.clock.advance("10m")
    producer.send(b"three")
    pulsar_broker.wait_until(lambda: ledgers(pulsar_broker) == 2)


@by("broker_service_compaction_monitor_interval_in_seconds")
@pytest.mark.pulsar_broker(brokerServiceCompactionThresholdInBytes=1)
def test_a_topic_is_compacted(pulsar_broker: RunningBroker, pulsar_client: Client) -> None:
    producer = pulsar_client.create_producer(TOPIC)
    for price in (b"1", b"2"):
        producer.send(price, partition_key="lamp")
    assert asked(pulsar_broker, f"v2/{T}/compaction")["status"] == "NOT_RUN"
    pulsar_broker.clock.advance("1m")
    assert asked(pulsar_broker, f"v2/{T}/compaction")["status"] == "SUCCESS"


@by("broker_deduplication_snapshot_interval_seconds")
@pytest.mark.pulsar_broker(
    brokerDeduplicationEnabled=True, brokerDeduplicationSnapshotIntervalSeconds=3600
)
def test_a_snapshot_for_deduplication_is_written(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    pulsar_client.create_producer(TOPIC).send(b"one")

    async def left_out(running: Any) -> int:
        topic = await running.topics.get(TopicName.parse(TOPIC))
        return int(topic.deduplication._since_snapshot)

    pulsar_broker.clock.advance("59m")
    assert pulsar_broker.call(left_out) == 1
    pulsar_broker.clock.advance("2m")
    pulsar_broker.wait_until(lambda: pulsar_broker.call(left_out) == 0)


# -- topics and subscriptions


def test_an_unused_topic_that_stores_nothing_is_deleted(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    topic = "non-persistent://public/default/t"
    pulsar_client.create_producer(topic).close()
    assert asked(pulsar_broker, "v2/non-persistent/public/default") == [topic]
    pulsar_broker.clock.advance("5m")
    assert asked(pulsar_broker, "v2/non-persistent/public/default") == []


def test_a_reader_that_does_not_return_from_its_seek_is_forgotten(
    pulsar_broker: RunningBroker,
) -> None:
    with RawClient(pulsar_broker.service_url) as raw:
        raw.subscribe(TOPIC, 1, subscription="reader", durable=False)
        raw.request(
            pb.BaseCommand.SEEK, "seek", pb.CommandSeek(consumer_id=1, message_publish_time=0)
        )
    path = f"v2/{T}/subscriptions"
    pulsar_broker.clock.advance("50s")
    assert asked(pulsar_broker, path) == ["reader"]
    pulsar_broker.clock.advance("11s")
    pulsar_broker.wait_until(lambda: asked(pulsar_broker, path) == [])


@by("broker_delete_inactive_topics_frequency_seconds")
def test_an_unused_topic_is_deleted(pulsar_broker: RunningBroker, pulsar_client: Client) -> None:
    pulsar_client.create_producer(TOPIC).close()
    assert asked(pulsar_broker, "v2/persistent/public/default") == [TOPIC]
    pulsar_broker.clock.advance("5m")
    assert asked(pulsar_broker, "v2/persistent/public/default") == []


@by("broker_delete_inactive_topics_max_inactive_duration_seconds")
def test_an_unused_topic_is_deleted_as_its_namespace_says(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 7200,
        "deleteWhileInactive": True,
    }
    admin(pulsar_broker, f"v2/{NAMESPACE}/inactiveTopicPolicies", policy)
    pulsar_client.create_producer(TOPIC).close()
    pulsar_broker.clock.advance("1h")
    assert asked(pulsar_broker, "v2/persistent/public/default") == [TOPIC]
    pulsar_broker.clock.advance("2h")
    assert asked(pulsar_broker, "v2/persistent/public/default") == []


@by("subscription_expiration_time_minutes", "subscription_expiry_check_interval_in_minutes")
def test_an_unused_subscription_is_deleted(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    admin(pulsar_broker, f"v2/{NAMESPACE}/subscriptionExpirationTime", 120)
    pulsar_client.create_producer(TOPIC)
    subscribed(pulsar_client).close()
    pulsar_broker.clock.advance("1h")
    assert asked(pulsar_broker, f"v2/{T}/subscriptions") == ["s"]
    pulsar_broker.clock.advance("2h")
    assert asked(pulsar_broker, f"v2/{T}/subscriptions") == []


@by("backlog_quota_default_limit_second", "backlog_quota_check_interval_in_seconds")
@pytest.mark.pulsar_broker(
    backlogQuotaDefaultLimitSecond=7200, backlogQuotaDefaultRetentionPolicy="producer_exception"
)
def test_a_backlog_becomes_too_old(pulsar_broker: RunningBroker, pulsar_client: Client) -> None:
    subscribed(pulsar_client)
    producer = pulsar_client.create_producer(TOPIC)
    producer.send(b"old")
    pulsar_broker.clock.advance("1h")
    producer.send(b"newer")
    pulsar_broker.clock.advance("2h")
    with pytest.raises(PulsarException, match="quota"):
        pulsar_client.create_producer(TOPIC)


def test_a_rate_of_publishing_lets_the_next_message_in(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    rate = {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": 100}
    admin(pulsar_broker, f"v2/{NAMESPACE}/publishRate", rate)
    subscribed(pulsar_client)
    producer = pulsar_client.create_producer(TOPIC)
    producer.send(b"x" * 800)  # uses up eight seconds of the rate
    with RawClient(pulsar_broker.service_url) as raw:
        raw.create_producer(TOPIC)
        raw.start_publish(b"later", 0)
        raw.kinds_before_pong()  # the broker has received it
        pulsar_broker.clock.advance("5s")
        assert pulsar_broker.backlog(TOPIC, "s") == 1
        pulsar_broker.clock.advance("5s")
        raw.receive(pb.BaseCommand.SEND_RECEIPT)
    assert pulsar_broker.backlog(TOPIC, "s") == 2


def test_a_rate_of_dispatch_has_its_next_period(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    rate = {
        "dispatchThrottlingRateInMsg": 1,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 3600,
    }
    admin(pulsar_broker, f"v2/{NAMESPACE}/dispatchRate", rate)
    consumer, producer = subscribed(pulsar_client), pulsar_client.create_producer(TOPIC)
    for payload in (b"one", b"two"):
        producer.send(payload)
    assert next_of(consumer) == b"one"
    pulsar_broker.clock.advance("30m")
    assert nothing_comes(consumer)
    pulsar_broker.clock.advance("31m")
    assert next_of(consumer) == b"two"


@by("subscribe_rate_period_per_consumer_in_second")
@pytest.mark.pulsar_broker(
    subscribeThrottlingRatePerConsumer=1, subscribeRatePeriodPerConsumerInSecond=3600
)
def test_a_rate_of_subscribing_has_its_next_period(pulsar_broker: RunningBroker) -> None:
    with RawClient(pulsar_broker.service_url) as raw:
        answers = []
        for pause in ("0s", "59m", "1m"):
            pulsar_broker.clock.advance(pause)
            answers.append(raw.subscribe(TOPIC, 1, consumer_name="me"))
            raw.close_consumer(1)
    refused = [isinstance(answer, pb.CommandError) for answer in answers]
    assert refused == [False, True, False]


# -- transactions


def test_a_transaction_times_out(pulsar_client: Client, pulsar_clock: VirtualClock) -> None:
    consumer, producer = subscribed(pulsar_client), pulsar_client.create_producer(TOPIC)
    producer.send(b"in it", txn=pulsar_client.new_transaction(timeout_ms=3_600_000))
    producer.send(b"behind it")
    pulsar_clock.advance("59m")
    assert nothing_comes(consumer)
    pulsar_clock.advance("1m")
    assert next_of(consumer) == b"behind it"


def test_what_a_transaction_acknowledged_comes_again_after_its_time(
    pulsar_client: Client, pulsar_clock: VirtualClock
) -> None:
    consumer = subscribed(pulsar_client, ConsumerType.Shared)
    pulsar_client.create_producer(TOPIC).send(b"one")
    txn = pulsar_client.new_transaction(timeout_ms=3_600_000)
    consumer.acknowledge(consumer.receive(timeout_millis=20_000), txn)
    consumer.close()
    consumer = subscribed(pulsar_client, ConsumerType.Shared)
    pulsar_clock.advance("59m")
    assert nothing_comes(consumer)
    pulsar_clock.advance("1m")
    assert next_of(consumer) == b"one"


def test_the_log_of_pending_acknowledgements_is_shortened(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    consumer = subscribed(pulsar_client)
    pulsar_client.create_producer(TOPIC).send(b"one")
    message = consumer.receive(timeout_millis=20_000)
    with pulsar_client.new_transaction() as txn:
        consumer.acknowledge(message, txn)

    async def records(running: Any) -> int:
        topic = await running.topics.get(TopicName.parse(TOPIC))
        return int(topic.subscriptions["s"].pending_acks._store.records_since_snapshot)

    pulsar_broker.clock.advance("1s")
    assert pulsar_broker.call(records) > 0
    pulsar_broker.clock.advance("9s")
    pulsar_broker.wait_until(lambda: pulsar_broker.call(records) == 0)


def test_the_admin_api_lists_ended_transactions_for_an_hour(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    pulsar_client.new_transaction().commit()
    path = "v3/transactions/ended"
    pulsar_broker.clock.advance("59m")
    assert len(asked(pulsar_broker, path)["transactions"]) == 1
    pulsar_broker.clock.advance("2m")
    assert asked(pulsar_broker, path)["transactions"] == []


@by("transaction_outcome_retention_ms")
@pytest.mark.pulsar_broker(transactionCoordinators=1)
def test_the_outcome_of_a_transaction_is_forgotten(
    pulsar_broker: RunningBroker, pulsar_client: Client
) -> None:
    """It is forgotten when newer transactions have ended."""
    txn = pulsar_client.new_transaction()
    txn.commit()
    path = f"v3/transactions/transactionMetadata/{txn.txn_id.most}/{txn.txn_id.least}"
    pulsar_broker.clock.advance("50m")
    pulsar_client.new_transaction().commit()
    assert asked(pulsar_broker, path)["status"] == "COMMITTED"
    pulsar_broker.clock.advance("70m")
    pulsar_client.new_transaction().commit()
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        asked(pulsar_broker, path)


@by("transactional_id_expiration_ms")
def test_a_transactional_id_is_forgotten(pulsar_broker: RunningBroker) -> None:
    url = pulsar_broker.service_url
    with Client(url, enable_transaction=True, transactional_id="billing") as client:
        client.new_transaction().commit()
    path = "v3/transactions/transactionalIds"
    pulsar_broker.clock.advance("6d")
    assert len(asked(pulsar_broker, path)) == 1
    pulsar_broker.clock.advance("3d")
    assert asked(pulsar_broker, path) == []


# -- connections and logins


@by("handshake_timeout_ms")
def test_a_connection_that_says_nothing_is_closed() -> None:
    with pybroker.testing.broker(handshake_timeout_ms=3_600_000) as broker:
        address = urlsplit(broker.service_url)
        with socket.create_connection((address.hostname, address.port), 20) as silent:
            broker.wait_until(lambda: broker.call(sessions) == 1)
            broker.clock.advance("50m")
            assert broker.call(sessions) == 1
            broker.clock.advance("10m")
            assert silent.recv(1) == b""


async def sessions(running: Any) -> int:
    return len(running.server.sessions)


def test_a_token_expires() -> None:
    settings = TOKEN_SETTINGS | {"authorization_enabled": False}
    with pybroker.testing.broker(**settings) as broker:
        login = AuthenticationToken(token("alice", exp=int(time.time()) + 3600))
        with Client(broker.service_url, authentication=login) as client:
            client.create_producer(TOPIC).send(b"x")
        broker.clock.advance("2h")
        with (
            Client(broker.service_url, authentication=login, operation_timeout_seconds=2) as client,
            pytest.raises(PulsarException),
        ):
            client.create_producer(TOPIC)


@by("authentication_refresh_check_seconds")
def test_a_client_s_token_expires_while_it_is_connected() -> None:
    with pybroker.testing.broker(**TOKEN_SETTINGS) as broker:
        login = AuthenticationToken(token("alice", exp=int(time.time()) + 3600))
        with Client(broker.service_url, authentication=login) as client:
            consumer = subscribed(client)
            broker.clock.advance("50m")
            assert consumer.is_connected()
            broker.clock.advance("20m")
            broker.wait_until(lambda: not consumer.is_connected())


def test_each_key_with_a_time_is_moved_or_it_is_said_why_not() -> None:
    keys = {field.name for field in dataclasses.fields(BrokerConfig) if A_TIME.search(field.name)}
    assert not MOVED & NOT_MOVED.keys()
    assert keys == MOVED | NOT_MOVED.keys()
