"""Applications of the official Java client learn that a namespace has no room for a transaction."""

from collections.abc import Iterator
from typing import Any

import pytest
from official_java import OfficialClient, java_gateway
from py4j.protocol import Py4JJavaError
from raw_client import RawClient

import pybroker.testing
from pybroker.base.names import TxnId
from pybroker.testing import RunningBroker

pytestmark = [pytest.mark.java, pytest.mark.feature("transactions")]

TIMEOUT_MS = 60_000
NO_ROOM = "1 active transactions take part in public/default"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Any]:
    with java_gateway() as gateway:
        yield gateway


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    limits = {"max_active_transactions_per_namespace": 1, "transaction_coordinators": 1}
    with pybroker.testing.broker(**limits) as broker:
        yield broker


@pytest.fixture
def official(gateway: Any, broker: RunningBroker) -> Iterator[OfficialClient]:
    official = OfficialClient(gateway, broker.service_url)
    yield official
    official.shutdown()


def refusal_of(official: OfficialClient, producer: Any, txn: Any) -> str:
    """The error that the application gets, within a time in which the client repeats a SEND."""
    sent = producer.newMessage(txn).value(b"no room").sendAsync()
    with pytest.raises(Py4JJavaError) as refused:
        sent.get(*official.ms(10_000))
    return str(refused.value.java_exception)


def test_the_application_hears_why_a_topic_was_not_added(official: OfficialClient) -> None:
    producer = official.producer("t")
    producer.newMessage(official.transaction()).value(b"fits").send()
    assert NO_ROOM in refusal_of(official, producer, official.transaction())


def test_the_application_hears_why_a_message_did_not_join(
    gateway: Any, official: OfficialClient, broker: RunningBroker
) -> None:
    with RawClient(broker.service_url) as raw:
        first, second = (raw.new_txn(TIMEOUT_MS, spans_namespace="public/default") for _ in "12")
        raw.create_producer("persistent://public/default/t")
        raw.publish(b"fits", 0, first)
        txn = shared(gateway, official, second, "u")
        refusal = refusal_of(official, official.producer("u"), txn)
    assert NO_ROOM in refusal
    assert "NotAllowedException" in refusal


def shared(gateway: Any, official: OfficialClient, txn_id: TxnId, topic: str) -> Any:
    """A transaction of another client, for use by the Java client. The topic is marked as added, so
    that the Java client does not add it.
    """
    java, impl = gateway.jvm.java, "org.apache.pulsar.client.impl.transaction.TransactionImpl"
    (constructor,) = java.lang.Class.forName(impl).getDeclaredConstructors()
    constructor.setAccessible(True)
    numbers = (TIMEOUT_MS, txn_id.least, txn_id.most)
    arguments = gateway.new_array(java.lang.Object, 4)
    arguments[0] = official.client
    for place, number in enumerate(numbers, 1):
        arguments[place] = java.lang.Long.valueOf(str(number))
    txn = constructor.newInstance(arguments)
    added = txn.getClass().getDeclaredField("registerPartitionMap")
    added.setAccessible(True)
    added.get(txn).put(topic, java.util.concurrent.CompletableFuture.completedFuture(None))
    return txn
