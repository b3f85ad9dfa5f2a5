"""The official Java client with messages that an aborted transaction returns late."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from official_java import OfficialClient, java_gateway

import pybroker.testing
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.feature("transactions")]

PATH = "persistent/public/default/java-late"
TOPIC = PATH.replace("/", "://", 1)
SUBSCRIPTION = "workers"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    with java_gateway() as gateway:
        yield gateway


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(http=True) as broker:
        yield broker


@pytest.fixture
def official(gateway: Any, broker: RunningBroker) -> Iterator[OfficialClient]:
    """The client of all processors except the one that dies."""
    client = OfficialClient(gateway, broker.service_url)
    yield client
    client.shutdown()


def worker(client: OfficialClient, name: str, **settings: Any) -> Any:
    return client.consumer(TOPIC, SUBSCRIPTION, "Failover", consumerName=name, **settings)


def received(client: OfficialClient, consumer: Any, count: int) -> dict[bytes, Any]:
    """Receive messages; returns their ids by content."""
    messages = [client.receive(consumer) for _ in range(count)]
    assert None not in messages, f"{messages.index(None)} of {count} came"
    return {bytes(message.getData()): message.getMessageId() for message in messages}


def stats(broker: RunningBroker) -> Any:
    """The stats of the subscription."""
    answer = httpx.get(f"{broker.admin_url}/admin/v2/{PATH}/stats")
    return answer.json()["subscriptions"][SUBSCRIPTION]


def sent_to(broker: RunningBroker, name: str) -> int:
    """The number of messages that the broker sent to that consumer."""
    (sent,) = (
        each["msgOutCounter"] for each in stats(broker)["consumers"] if each["consumerName"] == name
    )
    assert isinstance(sent, int)
    return sent


def test_what_the_client_dropped_because_it_came_late_goes_to_the_next_consumer(
    gateway: Any, broker: RunningBroker, official: OfficialClient
) -> None:
    """B never shows message 2 to its application, which acknowledges later messages without it."""
    dying = OfficialClient(gateway, broker.service_url)
    a = worker(dying, "A")
    b = worker(official, "B", priorityLevel=1)  # the standby
    producer = official.producer(TOPIC, enableBatching=False)
    for number in range(5):
        producer.send(b"%d" % number)
    txn = official.transaction()
    a.acknowledgeAsync(received(dying, a, 5)[b"2"], txn).get()
    dying.shutdown()

    taken_over = received(official, b, 4)
    assert list(taken_over) == [b"0", b"1", b"3", b"4"]
    b.acknowledgeCumulative(taken_over[b"4"])  # returns before it is sent
    broker.wait_until(lambda: stats(broker)["msgBacklog"] == 1)
    txn.abort().get()
    broker.wait_until(lambda: sent_to(broker, "B") == 5)
    producer.send(b"5")
    further = received(official, b, 1)
    assert list(further) == [b"5"]  # message 2, which arrived before, was dropped
    b.acknowledgeCumulative(further[b"5"])
    b.close()

    producer.send(b"6")
    successor = worker(official, "C")
    assert list(received(official, successor, 2)) == [b"2", b"6"]
