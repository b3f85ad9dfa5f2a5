"""The official Java client with properties that request uncommitted messages."""

from collections.abc import Iterator
from typing import Any

import pytest
from official_java import OfficialClient, official_client

import pybroker.testing

pytestmark = [pytest.mark.java, pytest.mark.feature("transactions")]


@pytest.fixture(scope="module")
def official() -> Iterator[OfficialClient]:
    with (
        pybroker.testing.broker() as broker,
        official_client(broker.service_url) as client,
    ):
        yield client


def subscription(official: OfficialClient) -> dict[str, Any]:
    properties = official._jvm.java.util.HashMap()
    properties.put("isolation.level", "read_uncommitted")
    return {"subscriptionProperties": properties}


def reader(official: OfficialClient) -> dict[str, Any]:
    """A consumer that acts as a reader, because Java's readers have no properties."""
    mode = official.api.SubscriptionMode.NonDurable
    return {"subscriptionMode": mode, "property": ("isolation.level", "read_uncommitted")}


@pytest.mark.parametrize("settings_of", [subscription, reader])
def test_it_is_given_what_is_open_and_not_what_was_aborted(
    official: OfficialClient, settings_of: Any
) -> None:
    topic = f"isolated-{settings_of.__name__}"
    early = official.consumer(topic, "early", **settings_of(official))
    careful = official.consumer(topic, "careful")
    producer = official.producer(topic)
    aborted, committed = official.transaction(), official.transaction()
    producer.newMessage(aborted).value(b"aborted").send()
    assert official.receive(early).getData() == b"aborted"
    aborted.abort().get()
    early.redeliverUnacknowledgedMessages()
    producer.newMessage(committed).value(b"committed").send()
    assert official.receive(early).getData() == b"committed"
    committed.commit().get()
    assert official.receive(careful).getData() == b"committed"
