"""Ended objects are freed with their last reference.

A broker seldom collects cyclic garbage. Cycles would add up, some kilobytes for each topic and each
connection.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from raw_client import RawClient

import pybroker.testing
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.client import (
    Client,
    ConsumerType,
    InitialPosition,
    InvalidTxnStatus,
    IsolationLevel,
    MessageId,
)
from pybroker.server.connections.session import Session
from pybroker.server.transactions import transactional_sessions
from pybroker.testing import RunningBroker
from pybroker.wire import pulsar_api_pb2 as pb

P = "/admin/v2/persistent/public/default/orders"
TOPIC = "persistent://public/default/orders"
SOON_MS = 5000


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    settings: dict[str, Any] = {
        "managed_ledger_max_entries_per_ledger": 5,
        "managed_ledger_min_ledger_rollover_time_minutes": 0,
    }
    with pybroker.testing.broker(http=True, **settings) as running:
        yield running


@pytest.fixture
def admin(broker: RunningBroker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.admin_url) as client:
        yield client


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


Use = Callable[[httpx.Client, Client], None]


def nothing(admin: httpx.Client, client: Client) -> None:
    pass


def consuming(kind: Any) -> Use:
    def use(admin: httpx.Client, client: Client) -> None:
        consumer = client.subscribe(
            TOPIC, "s", consumer_type=kind, initial_position=InitialPosition.Earliest
        )
        with client.create_producer(TOPIC) as producer:
            for number in range(12):
                producer.send(b"x", partition_key=str(number))
        consumer.acknowledge(consumer.receive(SOON_MS))
        consumer.negative_acknowledge(consumer.receive(SOON_MS))

    return use


def in_transactions(admin: httpx.Client, client: Client) -> None:
    consumer = client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(TOPIC)
    for end in ("commit", "abort"):
        txn = client.new_transaction()
        producer.send(b"plain")
        producer.send(b"x", txn=txn)
        consumer.acknowledge(consumer.receive(SOON_MS), txn=txn)
        getattr(txn, end)()


def reading_what_is_open(admin: httpx.Client, client: Client) -> None:
    consumer = client.subscribe(TOPIC, "s", isolation_level=IsolationLevel.READ_UNCOMMITTED)
    producer, txn = client.create_producer(TOPIC), client.new_transaction()
    producer.send(b"x", txn=txn)
    consumer.receive(SOON_MS)
    txn.abort()


def deduplicated(admin: httpx.Client, client: Client) -> None:
    admin.post(f"{P}/deduplicationEnabled", json=True)
    with client.create_producer(TOPIC) as producer:
        producer.send(b"x")


def compacted(admin: httpx.Client, client: Client) -> None:
    admin.post(f"{P}/compactionThreshold", json=1)
    with client.create_producer(TOPIC) as producer:
        producer.send(b"x", partition_key="k")
    admin.put(f"{P}/compaction")
    reader = client.create_reader(TOPIC, MessageId.earliest, is_read_compacted=True)
    reader.read_next(SOON_MS)


def delayed(admin: httpx.Client, client: Client) -> None:
    consumer = client.subscribe(TOPIC, "s", consumer_type=ConsumerType.Shared)
    with client.create_producer(TOPIC) as producer:
        producer.send(b"later", deliver_after=timedelta(hours=1))
        producer.send(b"now")
    consumer.receive(SOON_MS)


def with_rates(admin: httpx.Client, client: Client) -> None:
    rate = {"dispatchThrottlingRateInMsg": 100, "ratePeriodInSecond": 1}
    admin.post(f"{P}/dispatchRate", json=rate)
    admin.post(f"{P}/subscriptionDispatchRate", json=rate)
    admin.post(f"{P}/publishRate", json={"publishThrottlingRateInMsg": 100})
    consuming(ConsumerType.Shared)(admin, client)


USES: dict[str, Use] = {
    "nothing": nothing,
    **{kind.name: consuming(kind) for kind in ConsumerType},
    "transactions": in_transactions,
    "read uncommitted": reading_what_is_open,
    "deduplication": deduplicated,
    "compaction": compacted,
    "delays": delayed,
    "rates": with_rates,
}
ENDS = {"deleted": ("DELETE", f"{P}?force=true"), "unloaded": ("PUT", f"{P}/unload")}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("end", ENDS)
def test_a_topic_that_has_ended_is_freed(
    broker: RunningBroker, admin: httpx.Client, use: str, end: str
) -> None:
    assert admin.put(P).status_code == 204
    with Client(broker.service_url, enable_transaction=True) as client:
        USES[use](admin, client)
        parts = broker.call(_parts_of)
    assert len(parts) >= 2
    assert admin.request(*ENDS[end]).status_code == 204
    try:
        broker.wait_until(lambda: all(part() is None for part in parts))
    finally:
        admin.delete(f"{P}?force=true")


async def _parts_of(running: Any) -> list[weakref.ref[Any]]:
    topic = await running.topics.get(TopicName.parse(TOPIC))
    parts = [topic, topic.ledger]
    parts += [each for each in (topic.deduplication, topic.compacted) if each is not None]
    return [weakref.ref(part) for part in parts]


def test_a_topic_that_nobody_used_is_freed_when_it_is_deleted() -> None:
    config: dict[str, Any] = {
        "broker_delete_inactive_topics_frequency_seconds": 1,
        "broker_delete_inactive_topics_max_inactive_duration_seconds": 1,
    }
    with pybroker.testing.broker(http=True, **config) as broker:
        with Client(broker.service_url) as client:
            client.create_producer(TOPIC)
            parts = broker.call(_parts_of)
        broker.wait_until(lambda: all(part() is None for part in parts))


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """References to sessions made from now on, and to their transports."""
    made: list[weakref.ref[Any]] = []
    connection_made = Session.connection_made

    def watched(session: Session, transport: asyncio.BaseTransport) -> None:
        made.extend((weakref.ref(session), weakref.ref(transport)))
        connection_made(session, transport)

    monkeypatch.setattr(Session, "connection_made", watched)
    return made


def test_a_connection_that_was_closed_is_freed(
    broker: RunningBroker, connections: list[weakref.ref[Any]]
) -> None:
    with Client(broker.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(b"x")
        consumer.receive(SOON_MS)
    assert len(connections) == 2
    broker.wait_until(lambda: all(part() is None for part in connections))


def test_a_message_posted_over_http_leaves_no_session(
    broker: RunningBroker, admin: httpx.Client, connections: list[weakref.ref[Any]]
) -> None:
    body = {"messages": [{"payload": "x"}]}
    admin.put("/admin/v2/persistent/public/default/posted").raise_for_status()
    answer = admin.post("/topics/persistent/public/default/posted", json=body)
    assert answer.status_code == 200, answer.text
    assert len(connections) == 2
    broker.wait_until(lambda: all(part() is None for part in connections))


def test_a_connection_whose_session_could_not_begin_is_freed(
    broker: RunningBroker, connections: list[weakref.ref[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several requests wait for the same, and its failure is kept for all of them."""

    async def fails(*of: object) -> None:
        raise ServiceNotReady("the log is being recovered")

    monkeypatch.setattr(transactional_sessions, "end_older", fails)
    with RawClient(broker.service_url) as raw:
        name = pb.KeyValue(key="txn.transactional.id", value="no-session")
        for producer_id in (1, 2):
            answer = raw.ask_for_producer(TOPIC, producer_id, metadata=[name])
            assert answer.error == ServiceNotReady.code
    assert len(connections) == 2
    broker.wait_until(lambda: all(part() is None for part in connections))


def test_connections_of_a_fenced_and_of_a_newer_session_are_freed(
    broker: RunningBroker, connections: list[weakref.ref[Any]]
) -> None:
    for _ in range(2):  # the first round starts the housekeeping of ids
        with (
            Client(broker.service_url, transactional_id="x") as older,
            Client(broker.service_url, transactional_id="x") as newer,
        ):
            txn = older.new_transaction()
            older.create_producer(TOPIC).send(b"x", txn=txn)
            newer.create_producer(TOPIC).send(b"x")
            with pytest.raises(InvalidTxnStatus):
                txn.commit()
    assert len(connections) == 8
    broker.wait_until(lambda: all(part() is None for part in connections))
