"""`broker.clock.advance`: what happens by time, without waiting for it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from credentials import TOKEN_SETTINGS, token

import pybroker.testing
from pybroker.base.runtime import next_look
from pybroker.client import Client, Consumer, ConsumerType, InitialPosition, Timeout
from pybroker.testing import RunningBroker
from pybroker.testing.clock import seconds_of

TOPIC = "persistent://public/default/t"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


def admin(broker: RunningBroker, path: str, body: Any = None, method: str = "POST") -> Any:
    url = f"{broker.admin_url}/admin/v2/{path}"
    answer = httpx.get(url) if method == "GET" else httpx.request(method, url, json=body)
    answer.raise_for_status()
    return answer.json() if method == "GET" else None


def subscribed(client: Client, kind: ConsumerType = ConsumerType.Exclusive) -> Consumer:
    return client.subscribe(
        TOPIC, "s", consumer_type=kind, initial_position=InitialPosition.Earliest
    )


def nothing_comes(consumer: Consumer) -> bool:
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=100)
    return True


def test_a_transaction_times_out(broker: RunningBroker, client: Client) -> None:
    consumer, producer = subscribed(client), client.create_producer(TOPIC)
    producer.send(b"in it", txn=client.new_transaction(timeout_ms=3_600_000))
    producer.send(b"behind it")
    broker.clock.advance("59m")
    assert nothing_comes(consumer)
    broker.clock.advance("1m")
    assert consumer.receive(timeout_millis=10_000).data() == b"behind it"


def test_a_delayed_message_comes_at_its_time(broker: RunningBroker, client: Client) -> None:
    consumer = subscribed(client, ConsumerType.Shared)
    client.create_producer(TOPIC).send(b"later", deliver_after=timedelta(days=2))
    broker.clock.advance("47h")
    assert nothing_comes(consumer)
    broker.clock.advance("61m")
    assert consumer.receive(timeout_millis=10_000).data() == b"later"


def test_messages_expire(broker: RunningBroker, client: Client) -> None:
    subscribed(client).close()
    client.create_producer(TOPIC).send(b"old")
    admin(broker, "namespaces/public/default/messageTTL", 7200)
    broker.clock.advance("1h")
    assert broker.backlog(TOPIC, "s") == 1
    broker.clock.advance("2h")
    assert broker.backlog(TOPIC, "s") == 0


def test_retention_ends(client: Client, broker: RunningBroker) -> None:
    retention = {"retentionTimeInMinutes": 120, "retentionSizeInMB": 100}
    admin(broker, "namespaces/public/default/retention", retention)
    producer = client.create_producer(TOPIC)
    producer.send(b"old")
    admin(broker, "persistent/public/default/t/unload", method="PUT")

    def ledgers() -> int:
        path = "persistent/public/default/t/internalStats"
        return len(admin(broker, path, method="GET")["ledgers"])

    subscribed(client)
    assert ledgers() == 2
    admin(broker, "persistent/public/default/t/subscription/s/skip_all")
    broker.clock.advance("1h")
    assert ledgers() == 2
    broker.clock.advance("2h")
    assert ledgers() == 1


def test_an_unused_topic_is_deleted(broker: RunningBroker, client: Client) -> None:
    client.create_producer(TOPIC).close()
    assert admin(broker, "persistent/public/default", method="GET") == [TOPIC]
    broker.clock.advance("5m")
    assert admin(broker, "persistent/public/default", method="GET") == []


def test_a_token_expires() -> None:
    settings = TOKEN_SETTINGS | {"authorization_enabled": False}
    with pybroker.testing.broker(**settings) as broker:
        expires = int(time.time()) + 3600
        login = pybroker.client.AuthenticationToken(token("alice", exp=expires))
        with Client(broker.service_url, authentication=login) as client:
            client.create_producer(TOPIC).send(b"x")
        broker.clock.advance("2h")
        with (
            Client(broker.service_url, authentication=login, operation_timeout_seconds=2) as client,
            pytest.raises(pybroker.client.PulsarException),
        ):
            client.create_producer(TOPIC)


def test_connections_outlive_it(broker: RunningBroker, client: Client) -> None:
    producer, consumer = client.create_producer(TOPIC), subscribed(client)
    for _ in range(3):
        broker.clock.advance("1d")
        producer.send(b"still here")
        consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    assert consumer.is_connected()


def test_the_time_outlives_a_restart(broker: RunningBroker, client: Client) -> None:
    consumer, producer = subscribed(client), client.create_producer(TOPIC)
    producer.send(b"in it", txn=client.new_transaction(timeout_ms=3_600_000))
    producer.send(b"behind it")
    broker.clock.advance("30m")
    broker.restart()
    assert broker.clock.now_ms() >= time.time() * 1000 + 1_790_000
    broker.clock.advance("30m")
    assert consumer.receive(timeout_millis=20_000).data() == b"behind it"


def test_what_a_stopped_broker_missed_happens_at_its_start(
    broker: RunningBroker, client: Client
) -> None:
    consumer, producer = subscribed(client), client.create_producer(TOPIC)
    producer.send(b"in it", txn=client.new_transaction(timeout_ms=3_600_000))
    producer.send(b"behind it")
    broker.stop()
    broker.clock.advance("1d")
    broker.start()
    assert consumer.receive(timeout_millis=20_000).data() == b"behind it"


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [(90, 90), ("1h", 3600), ("1h30m", 5400), ("500ms", 0.5), ("1d 2h", 93_600), ("1.5s", 1.5)],
)
def test_durations(duration: float | str, seconds: float) -> None:
    assert seconds_of(duration) == seconds
    assert seconds_of(timedelta(seconds=seconds)) == seconds


@pytest.mark.parametrize(
    "duration",
    ["", "1", "h", "1 hour", "1y", -1, "-1h", float("nan"), float("inf"), "9" * 400 + "d", "101y"],
)
def test_what_is_no_duration_is_refused(duration: float | str, broker: RunningBroker) -> None:
    with pytest.raises(ValueError, match="duration"):
        broker.clock.advance(duration)


def test_what_only_looks_whether_there_is_something_to_do_looks_once(broker: RunningBroker) -> None:
    looked: list[float] = []

    async def look_every_second(_: Any) -> None:
        await next_look(1.0)
        looked.append(asyncio.get_running_loop().time())

    async def start(running: Any) -> "asyncio.Task[None]":
        return asyncio.create_task(look_every_second(running))

    looking = broker.call(start)
    before_s = broker.call(lambda _: now_s())
    broker.clock.advance("1d")
    broker.wait_until(looking.done)
    assert looked[0] >= before_s + 86_400


async def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_the_broker_s_loop_cannot_advance_its_own_clock(broker: RunningBroker) -> None:
    async def advance(_: Any) -> None:
        broker.clock.advance("1h")

    with pytest.raises(RuntimeError, match=r"in the test's thread"):
        broker.call(advance)


def test_a_broker_that_ends_waits_until_the_time_was_moved(broker: RunningBroker) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    async def hold_the_loop(_: Any) -> None:
        began.set()
        may_go_on.wait(10)

    with ThreadPoolExecutor(3) as threads:
        held = threads.submit(broker.call, hold_the_loop)
        assert began.wait(10)
        advanced = threads.submit(broker.clock.advance, "1h")
        while not broker.clock.is_advancing:
            pass
        ended = threads.submit(broker.kill)
        may_go_on.set()
        for each in (held, advanced, ended):
            each.result(20)
    assert broker.clock.offset_s > 3599
