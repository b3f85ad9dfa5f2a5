"""`pybroker.testing.broker()`: its guarantees to other projects' tests."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import httpx
import pytest

import pybroker.testing
from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker, running_broker
from pybroker.testing.broker_process import BrokerProcess

TOPIC = "persistent://public/default/t"


def publish(broker: RunningBroker | BrokerProcess, payload: bytes) -> None:
    client = Client(broker.service_url)
    client.create_producer(TOPIC).send(payload)
    client.close()


def read_one(broker: RunningBroker) -> bytes:
    client = Client(broker.service_url)
    consumer = client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    payload: bytes = consumer.receive(timeout_millis=30_000).data()
    client.close()
    return payload


def test_there_is_no_http_unless_asked_for() -> None:
    with pybroker.testing.broker() as broker:
        assert broker.service_url.startswith("pulsar://localhost:")
        assert broker.admin_url == ""


@pytest.mark.parametrize("how", ["restart", "kill_and_restart"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
def test_a_restart_keeps_addresses_and_messages(tmp_path: Path, how: str, on_disk: bool) -> None:
    data_dir = tmp_path / "data" if on_disk else None
    with pybroker.testing.broker(data_dir=data_dir, http=True) as broker:
        addresses = (broker.service_url, broker.admin_url)
        publish(broker, b"kept")
        getattr(broker, how)()
        assert (broker.service_url, broker.admin_url) == addresses
        assert read_one(broker) == b"kept"


async def storage_of(broker: Any) -> Any:
    return broker._backend


def write_in_the_last_turn_of_a_loop(storage: Any) -> None:
    loop = asyncio.new_event_loop()
    loop.call_soon(lambda: storage.metadata.put("late", b""))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_does_not_wait_for_what_the_last_life_left(how: str) -> None:
    with pybroker.testing.broker() as broker:
        publish(broker, b"kept")
        storage = broker.call(storage_of)
        getattr(broker, how)()
        write_in_the_last_turn_of_a_loop(storage)
        broker.start()
        assert read_one(broker) == b"kept"


def test_a_broker_that_does_not_start_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: RunningBroker) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    with pybroker.testing.broker() as broker:
        broker.stop()
        with monkeypatch.context() as changed:
            changed.setattr(running_broker, "_START_TIMEOUT_S", 0.01)
            changed.setattr(RunningBroker, "_serve", never)
            with pytest.raises(TimeoutError, match=r"did not start within 0.01 s: .*never"):
                broker.start()
        broker.start()
        publish(broker, b"after all")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a port for its owner")
@pytest.mark.slow
def test_nobody_else_is_given_its_ports_while_it_is_down(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as process,
        pybroker.testing.broker(http=True) as broker,
    ):
        process.kill()
        broker.stop()
        for each in (broker, process):
            for url in (each.service_url, each.admin_url):
                address = ("127.0.0.1", urlsplit(url).port)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(address)
                with socket.socket() as other, pytest.raises(OSError, match="in use"):
                    other.bind(address)
            each.start()
            publish(each, b"served")


def test_a_data_directory_outlives_its_broker(tmp_path: Path) -> None:
    with pybroker.testing.broker(data_dir=tmp_path / "data") as broker:
        publish(broker, b"kept")
    with pybroker.testing.broker(data_dir=tmp_path / "data") as broker:
        assert read_one(broker) == b"kept"


def acknowledge_in_a_transaction(broker: RunningBroker) -> None:
    """The commit is durable in the pending-ack log; the cursor is written much later."""
    client = Client(broker.service_url, enable_transaction=True)
    consumer = client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest)
    message = consumer.receive(timeout_millis=30_000)
    with client.new_transaction() as txn:
        consumer.acknowledge(message, txn)
    client.close()


@pytest.mark.parametrize("over_http", [False, True], ids=["testing", "admin"])
def test_a_backlog_counts_what_a_transaction_acknowledged_before_a_crash(over_http: bool) -> None:
    with pybroker.testing.broker(http=True) as broker:
        publish(broker, b"acknowledged")
        acknowledge_in_a_transaction(broker)
        broker.kill_and_restart()
        if over_http:
            stats = httpx.get(f"{broker.admin_url}/admin/v2/persistent/public/default/t/stats")
            backlog = stats.json()["subscriptions"]["s"]["msgBacklog"]
        else:
            backlog = broker.backlog(TOPIC, "s")
        assert backlog == 0


def test_two_brokers_know_nothing_of_each_other() -> None:
    with pybroker.testing.broker() as one, pybroker.testing.broker() as other:
        publish(one, b"one")
        publish(other, b"other")
        assert (read_one(one), read_one(other)) == (b"one", b"other")


def test_settings_are_fields_of_the_configuration() -> None:
    with pybroker.testing.broker(cluster_name="east") as broker:

        async def cluster(running: Any) -> str:
            name: str = running.topics.tenants.tenant("public")["allowedClusters"][0]
            return name

        assert broker.call(cluster) == "east"


def test_a_stopped_broker_cannot_be_looked_into() -> None:
    with pybroker.testing.broker() as broker:
        broker.stop()
        with pytest.raises(RuntimeError, match="call start"):
            broker.backlog(TOPIC, "s")


def test_a_configured_address_is_advertised_instead_of_localhost() -> None:
    with pybroker.testing.broker(advertised_address="127.0.0.1") as broker:
        assert broker.service_url.startswith("pulsar://127.0.0.1:")


def test_a_client_of_localhost_connects_once() -> None:
    with pybroker.testing.broker() as broker:
        port = broker.service_url.rpartition(":")[2]
        client = Client(f"pulsar://localhost:{port}")
        client.create_producer(TOPIC)
        connections = broker.call(count_sessions)
        client.close()
    assert connections == 1


async def count_sessions(running: Any) -> int:
    return len(running.server.sessions)
