"""A disk that fills up: producers are told, in order, and continue when there is room."""

import queue
from collections.abc import Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

import pybroker.testing
from managed_ledger.storage import fullness
from managed_ledger.storage.embedded.os_disk import OsDisk
from pybroker.client import Client, Result
from pybroker.client.errors import ProducerBlockedQuotaExceededException
from pybroker.testing import RunningBroker

TOLD_WITHIN_S = 20  # otherwise the application waits as long as the disk is full


class Disk:
    """The broker's disk; a test says whether it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        free_bytes = OsDisk.free_bytes
        monkeypatch.setattr(
            OsDisk, "free_bytes", lambda disk: 10_000_000 if self.is_full else free_bytes(disk)
        )


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def broker(disk: Disk, tmp_path: Path) -> Iterator[RunningBroker]:
    with pybroker.testing.broker(data_dir=tmp_path / "data", http=True) as running:
        yield running
        disk.is_full = False


def test_the_official_client_tells_the_application_and_goes_on_later(
    disk: Disk, broker: RunningBroker
) -> None:
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    consumer = client.subscribe("orders", "s")
    producer = client.create_producer("orders", block_if_queue_full=True)
    stored = [b"before"]
    producer.send(b"before")
    disk.is_full = True
    told: queue.Queue[object] = queue.Queue()
    producer.send_async(b"refused", lambda result, _: told.put(result))
    blocked = pulsar.Result.ProducerBlockedQuotaExceededException
    assert told.get(timeout=TOLD_WITHIN_S) == blocked
    for number in range(3):
        with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
            producer.send(f"refused {number}".encode())
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer("others")
    disk.is_full = False
    for number in range(100):
        try:
            producer.send(f"after {number}".encode())
        except pulsar.ProducerBlockedQuotaExceededException:
            continue
        stored.append(f"after {number}".encode())
        break
    assert [consumer.receive(10_000).data() for _ in stored] == stored
    client.close()


def test_what_was_sent_behind_a_refused_message_does_not_overtake_it(
    disk: Disk, broker: RunningBroker
) -> None:
    """All fail, or all from one message on are stored: there is no gap among the stored ones."""
    client = Client(broker.service_url)
    consumer = client.subscribe("orders", "s")
    producer = client.create_producer("orders", batching_enabled=False)
    producer.send(b"0")
    outcomes: dict[int, object] = {}
    disk.is_full = True
    for number in range(1, 200):
        disk.is_full = number < 100

        def sent(result: object, _: object, number: int = number) -> None:
            outcomes[number] = result

        producer.send_async(str(number).encode(), sent)
    broker.wait_until(lambda: len(outcomes) == 199, 30)
    stored = [number for number, result in outcomes.items() if result is Result.Ok]
    assert stored == list(range(200 - len(stored), 200))
    refusals = {type(result) for result in outcomes.values() if result is not Result.Ok}
    assert refusals <= {ProducerBlockedQuotaExceededException}
    received = [int(consumer.receive(10_000).data()) for _ in (0, *stored)]
    assert received == [0, *stored]
    client.close()


@pytest.mark.slow
def test_health_ready_and_metrics_say_that_the_disk_is_full(
    disk: Disk, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fullness, "OVER_AFTER_S", 0.1)
    brokers = f"{broker.admin_url}/admin/v2/brokers"
    assert httpx.get(f"{brokers}/health").text == "ok"
    assert "pybroker_storage_full{" in httpx.get(f"{broker.admin_url}/metrics").text
    disk.is_full = True

    def unwell() -> bool:
        answers = [httpx.get(f"{brokers}/{path}") for path in ("health", "ready")]
        return all(each.status_code == 503 and "nearly full" in each.text for each in answers)

    broker.wait_until(unwell)

    def measured() -> bool:
        text = httpx.get(f"{broker.admin_url}/metrics").text
        full = 'pybroker_storage_full{cluster="standalone"} 1' in text
        return full and 'pybroker_storage_free_bytes{cluster="standalone"} 10000000' in text

    broker.wait_until(measured)
    disk.is_full = False
    broker.wait_until(lambda: httpx.get(f"{brokers}/ready").status_code == 200, 30)
