"""A topic's deduplication is switched off and on: nothing is lost, and every send is answered."""

import json
from typing import Any

import httpx
import pytest

import pybroker.testing
from pybroker.base.configuration.config import BrokerConfig
from pybroker.client import Client, Consumer, InitialPosition

SOON_MS = 5000


def switch(admin: httpx.Client, topic: str, on: bool) -> None:
    """In force when it returns, because the topic is reloaded."""
    path = f"/admin/v2/persistent/{topic}/deduplicationEnabled"
    answer = admin.post(path, content=json.dumps(on))
    assert answer.status_code == 204, answer.text


def received(consumer: Consumer, count: int) -> list[bytes]:
    messages = [consumer.receive(timeout_millis=SOON_MS) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return [message.data() for message in messages]


@pytest.mark.parametrize("on_before", [False, True])
def test_a_producer_that_began_its_numbers_anew_meanwhile_loses_nothing(
    admin: httpx.Client, client: Client, topic: str, on_before: bool
) -> None:
    """Without deduplication the broker tells a new producer that it has not sent anything."""
    switch(admin, topic, on_before)
    consumer = client.subscribe(topic, "all", initial_position=InitialPosition.Earliest)
    with client.create_producer(topic, producer_name="p") as producer:
        for number in range(10):
            producer.send(b"first life %d" % number)
    switch(admin, topic, False)
    producer = client.create_producer(topic, producer_name="p")
    producer.send(b"second life 0")
    switch(admin, topic, True)
    producer.send(b"second life 1")  # the first life used this number
    assert received(consumer, 12)[-2:] == [b"second life 0", b"second life 1"]
    assert producer.send(b"a copy", sequence_id=1).entry_id() == -1


@pytest.mark.parametrize("aborted", [False, True])
def test_a_message_comes_again_whose_transaction_ended_while_deduplication_was_off(
    aborted: bool,
) -> None:
    config = BrokerConfig(
        managed_ledger_max_entries_per_ledger=20,
        managed_ledger_min_ledger_rollover_time_minutes=0,
    )
    topic = "public/default/orders"
    with (
        pybroker.testing.broker(config=config, http=True) as broker,
        httpx.Client(base_url=broker.admin_url) as admin,
        Client(broker.service_url, enable_transaction=True) as client,
    ):
        assert admin.put(f"/admin/v2/persistent/{topic}").status_code == 204
        switch(admin, topic, True)
        txn: Any = client.new_transaction()
        with client.create_producer(topic, producer_name="p") as producer:
            producer.send(b"in the transaction", txn=txn, sequence_id=2)
        switch(admin, topic, False)
        txn.abort() if aborted else txn.commit()
        with client.create_producer(topic, producer_name="q") as other:
            for _ in range(50):  # the marker is deleted with its ledger
                other.send(b"x")
        broker.trim(f"persistent://{topic}")
        switch(admin, topic, True)
        with client.create_producer(topic, producer_name="p") as producer:
            producer.send(b"again", sequence_id=2)  # answered, not timed out
            producer.send(b"new", sequence_id=3)
