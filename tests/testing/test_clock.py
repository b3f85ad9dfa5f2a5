"""`broker.clock.advance`: how time proceeds. test_by_time.py tests its effects."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

import pybroker.testing
from pybroker.base.runtime import sleep_in_real_time
from pybroker.client import Client, Consumer, ConsumerType, InitialPosition, Timeout
from pybroker.testing import RunningBroker, clock
from pybroker.testing.clock import AdvancingLoop, seconds_of

TOPIC = "persistent://public/default/t"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


def subscribed(client: Client) -> Consumer:
    return client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)


def test_connections_outlive_it() -> None:
    """Although the broker has work every five minutes."""

    async def connections(running: Any) -> list[int]:
        return [session.number for session in running.server.sessions]

    with (
        pybroker.testing.broker(ttl_duration_default_in_seconds=30 * 86_400) as broker,
        Client(broker.service_url) as client,
    ):
        producer, consumer = client.create_producer(TOPIC), subscribed(client)
        before = broker.call(connections)
        for _ in range(3):
            broker.clock.advance("1d")
            producer.send(b"still here")
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
        assert broker.call(connections) == before


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


def test_timers_in_real_time_do_not_move(broker: RunningBroker) -> None:
    woken = list[str]()

    async def sleep(name: str, sleeping: Coroutine[Any, Any, None]) -> None:
        await sleeping
        woken.append(name)

    async def start(_: Any) -> None:
        tasks.append(asyncio.create_task(sleep("real", sleep_in_real_time(300.0))))
        tasks.append(asyncio.create_task(sleep("broker's", asyncio.sleep(86_400.0))))

    tasks = list[asyncio.Task[None]]()
    broker.call(start)
    for _ in range(3):
        broker.clock.advance("1d")
    assert woken == ["broker's"]


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


def test_a_month_with_delayed_messages_takes_few_turns(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once had a turn for each minute until the message was due."""
    turns: list[float] = []
    move = AdvancingLoop.move

    def counted(loop: AdvancingLoop, seconds: float) -> None:
        turns.append(seconds)
        move(loop, seconds)

    monkeypatch.setattr(AdvancingLoop, "move", counted)
    consumer = client.subscribe(
        TOPIC, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest
    )
    client.create_producer(TOPIC).send(b"late", deliver_after=timedelta(days=30))
    broker.clock.advance("29d")
    with pytest.raises(Timeout):
        consumer.receive(timeout_millis=100)
    broker.clock.advance("2d")
    assert consumer.receive(timeout_millis=10_000).data() == b"late"
    assert len(turns) < 100


def test_a_span_with_far_too_much_work_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is work every five minutes of 95 years."""
    monkeypatch.setattr(clock, "_JUDGED_AFTER_S", 0.01)
    with (
        pybroker.testing.broker(ttl_duration_default_in_seconds=30 * 86_400) as broker,
        Client(broker.service_url) as client,
    ):
        client.create_producer(TOPIC).send(b"x")
        subscribed(client)
        with pytest.raises(TimeoutError, match="this advance would take about"):
            broker.clock.advance("35000d")
        broker.clock.advance("1h")
