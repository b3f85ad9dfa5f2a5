"""`broker.faults`: rules at fault points, as a client sees them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pybroker.testing
from pybroker.client import Client, InitialPosition, Timeout
from pybroker.faults import Passing
from pybroker.faults.registry import BadRule, Faults
from pybroker.testing import RunningBroker

LONG_MS = 30_000


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(faults=True) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with Client(broker.service_url, enable_transaction=True) as connected:
        yield connected


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def subscribed(client: Client, topic: str) -> Any:
    return client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)


def test_a_crash_before_the_append_loses_nothing_that_was_receipted(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor
) -> None:
    consumer, producer = subscribed(client, "orders"), client.create_producer("orders")
    producer.send(b"kept")
    crash = broker.faults.inject("publish.before_append", "crash", topic="orders")
    sending = threads.submit(producer.send, b"sent again")
    crash.wait_for_hit()
    broker.start()
    sending.result(60)
    payloads = [consumer.receive(LONG_MS).data() for _ in range(2)]
    assert payloads in ([b"kept", b"sent again"], [b"kept", b"kept"])
    assert crash.hits == 1, "a crash strikes once"


def test_a_crash_behind_the_append_leads_to_a_second_copy(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor
) -> None:
    producer = client.create_producer("orders")
    crash = broker.faults.inject("publish.after_append", "crash")
    sending = threads.submit(producer.send, b"twice")
    crash.wait_for_hit()
    broker.start()
    sending.result(60)
    consumer = subscribed(client, "orders")
    assert [consumer.receive(LONG_MS).data() for _ in range(2)] == [b"twice"] * 2


def test_what_is_held_goes_on_when_it_is_released_and_keeps_its_order(
    broker: RunningBroker, client: Client
) -> None:
    consumer, producer = subscribed(client, "orders"), client.create_producer("orders")
    hold = broker.faults.inject("publish.before_append", "hold", once=True)
    done = threading.Event()
    producer.send_async(b"1", lambda *_: None)
    producer.send_async(b"2", lambda *_: done.set())
    hold.wait_for_hit()
    with pytest.raises(Timeout):
        consumer.receive(100)
    assert hold.holding == 1
    assert not done.is_set()
    hold.release()
    assert done.wait(30)
    assert [consumer.receive(LONG_MS).data() for _ in range(2)] == [b"1", b"2"]


def test_every_after_and_times_choose_among_the_passings_that_match(
    broker: RunningBroker, client: Client
) -> None:
    struck: list[int] = []
    broker.faults.observe(
        lambda passing: struck.append(passing.entries[0][-1] - 48) if passing.struck else None
    )
    chosen = broker.faults.inject(
        "publish.before_append", "delay", seconds=0.001, topic="chosen", after=1, every=2, times=2
    )
    for topic in ("other", "chosen"):
        producer = client.create_producer(topic)
        for number in range(8):
            producer.send(b"%d" % number)
    assert struck == [2, 4]
    assert (chosen.hits, chosen.matched, chosen.is_spent) == (2, 5, True)


def test_a_failure_has_the_error_and_the_message_of_its_rule(
    broker: RunningBroker, client: Client
) -> None:
    with (
        broker.faults.inject(
            "subscribe.before", "fail", error="AuthorizationError", message="not today"
        ),
        pytest.raises(Exception, match="not today"),
    ):
        subscribed(client, "orders")
    subscribed(client, "orders")  # the rule ended with its `with` block


@pytest.mark.parametrize(
    ("predicate", "passing", "fits"),
    [
        ({"topic": "orders"}, {"topic": "persistent://public/default/orders"}, True),
        ({"topic": "orders"}, {"topic": "persistent://public/default/orders-partition-3"}, True),
        ({"topic": "orders"}, {"topic": "orders-eu"}, False),
        ({"topic": "orders*"}, {"topic": "orders-eu"}, True),
        ({"topic": "a/b/c"}, {"topic": "persistent://a/b/c"}, True),
        ({"topic": "c"}, {"topic": "persistent://a/b/c"}, False),
        ({"subscription": "s?"}, {"subscription": "s1"}, True),
        ({"subscription": "*"}, {"subscription": ""}, False),
        ({"producer": "p"}, {"producer": "p"}, True),
        ({"transaction": "(1,2)"}, {"transaction": "(1,2)"}, True),
        ({"transaction": "(1,*)"}, {"transaction": "(2,2)"}, False),
        ({"topic": "t", "producer": "p"}, {"topic": "t", "producer": "q"}, False),
    ],
)
def test_predicates_are_names_or_globs(
    predicate: dict[str, str], passing: dict[str, str], fits: bool
) -> None:
    faults = Faults()
    point = "subscribe.before" if "subscription" in predicate else "publish.before_append"
    faults.inject(point, "drop", **predicate)  # type: ignore[arg-type]
    assert (faults.passing(Passing(point, **passing)) is not None) == fits  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"point": "publish.befor_append"}, "pybroker faults list"),
        ({"action": "explode"}, "choose one of crash, delay"),
        ({"point": "publish.after_append", "action": "fail"}, "makes no sense"),
        ({"subscription": "s"}, "knows topic, producer, transaction"),
        ({"topic": ""}, "1 to 2048 characters"),
        ({"topic": "x" * 3000}, "1 to 2048 characters"),
        ({"every": 0}, "at least 1"),
        ({"after": -1}, "at least 0"),
        ({"times": 0}, "at least 1"),
        ({"once": True, "times": 3}, "leave out"),
        ({"seconds": 1.0}, "Only delay and hold"),
        ({"action": "delay"}, "needs its seconds"),
        ({"action": "delay", "seconds": 0}, "above 0"),
        ({"action": "hold", "seconds": 1e9}, "at most 600"),
        ({"action": "delay", "seconds": float("nan")}, "above 0"),
        ({"action": "fail", "error": "Nope"}, "choose one of"),
        ({"message": "but it does not fail"}, "Only fail"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_what_can(
    arguments: dict[str, Any], says: str
) -> None:
    whole = {"point": "publish.before_append", "action": "drop", **arguments}
    with pytest.raises(BadRule, match=says):
        Faults().inject(whole.pop("point"), whole.pop("action"), **whole)


def test_waiting_for_a_hit_ends_with_what_was_seen_instead(
    broker: RunningBroker, client: Client
) -> None:
    never = broker.faults.inject("publish.before_append", "drop", topic="orders", after=5)
    client.create_producer("orders").send(b"let through")
    with pytest.raises(TimeoutError, match=r"struck 0 of 1 times .*; 1 passings matched"):
        never.wait_for_hit(0.01)


def test_clear_removes_all_rules_and_releases_what_they_hold(
    broker: RunningBroker, client: Client, threads: ThreadPoolExecutor
) -> None:
    producer = client.create_producer("orders")
    holds = [broker.faults.inject("publish.before_receipt", "hold") for _ in range(2)]
    sending = threads.submit(producer.send, b"1")
    holds[0].wait_for_hit()
    broker.faults.clear()
    sending.result(30)
    assert broker.faults.rules == ()
    producer.send(b"2")


def test_an_observer_sees_each_message_with_its_facts_and_may_fail(
    broker: RunningBroker, client: Client
) -> None:
    seen: list[Passing] = []

    def fails(passing: Passing) -> None:
        raise RuntimeError("an observer's own mistake")

    with broker.faults.observe(fails), broker.faults.observe(seen.append):
        consumer, producer = subscribed(client, "orders"), client.create_producer("orders")
        producer.send(b"1")
        consumer.acknowledge(consumer.receive(LONG_MS))
        consumer.close()
    producer.send(b"unobserved")
    by_point = {passing.point: passing for passing in seen}
    stored, given = by_point["publish.after_append"], by_point["deliver.before"]
    taken = by_point["acknowledge.before"]
    assert stored.topic == given.topic == "persistent://public/default/orders"
    assert stored.producer == producer.producer_name()
    assert stored.position == given.position == taken.position
    assert (given.subscription, stored.messages) == ("s", 1)
    assert by_point["consumer.close.after"].subscription == "s"
