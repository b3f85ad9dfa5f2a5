"""A receipt is lost, and the segment is sealed before the client comes back: with deduplication the
message is stored once, in the sealed segment or in its child.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client, InitialPosition, Timeout
from pybroker.testing import RunningBroker

_numbers = count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with pybroker.testing.broker(
        http=True, faults=True, broker_deduplication_enabled=True
    ) as broker:
        yield broker


@pytest.mark.parametrize("change", ["split/0", "rebucket/0?bucketCount=8"])
@pytest.mark.parametrize("name", ["shop", None], ids=["named", "with a name from the broker"])
def test_what_a_sealed_segment_has_stored_does_not_go_to_its_child(
    broker: RunningBroker, name: str | None, change: str
):
    local = f"split-{next(_numbers)}"
    topic, segment = f"topic://public/default/{local}", f"segment://public/default/{local}/*-0"
    rest = f"{broker.admin_url}/admin/v2/scalable/public/default/{local}"
    httpx.put(rest, params={"numInitialSegments": 1}).raise_for_status()
    with Client(broker.service_url) as client, ThreadPoolExecutor() as pool:
        consumer = client.create_queue_consumer(
            topic, "s", initial_position=InitialPosition.Earliest
        )
        producer = client.create_producer(topic, producer_name=name)
        producer.send(b"before", partition_key="k")
        lost = broker.faults.inject("publish.before_receipt", "cut", topic=segment, once=True)
        back = broker.faults.inject("producer.open.before", "hold", topic=segment, once=True)
        sending = pool.submit(producer.send, b"once", partition_key="k")
        lost.wait_for_hit()
        back.wait_for_hit()
        later = pool.submit(producer.send, b"later", partition_key="k")
        httpx.post(f"{rest}/{change}", timeout=30).raise_for_status()
        back.release()
        sending.result(30)
        later.result(30)
        received = []
        while True:
            try:
                message = consumer.receive(timeout_millis=5_000 if len(received) < 3 else 300)
            except Timeout:
                break
            received.append(message.data())
            consumer.acknowledge(message)
    assert received == [b"before", b"once", b"later"]
