"""The proxy between a pipeline and its broker: what it reports, and where exactly it stops."""

import threading
from collections.abc import Iterator

import pytest

from pybroker.client import Client, InitialPosition, MessageId, PulsarException
from pybroker.eos_check.connection_trace import Event
from pybroker.eos_check.faults import Passing, Phase, Step, Victim
from pybroker.eos_check.proxy import Proxy
from pybroker.testing import RunningBroker, broker

LIMIT_S = 60.0
SEND = Step("SEND", "out")


class Watch:
    """Records what passes a proxy. It strikes at `at`, once."""

    def __init__(self, at: Passing | None = None) -> None:
        self.events: list[Event] = []
        self.passings: list[Passing] = []
        self.struck = threading.Event()
        self._at = at

    def passing(self, passing: Passing) -> Victim | None:
        self.passings.append(passing)
        if passing != self._at or self.struck.is_set():
            return None
        self.struck.set()
        return Victim.PIPELINE


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    with broker() as one:
        yield one


def values(running: RunningBroker) -> list[bytes]:
    found = []
    with Client(running.service_url) as client:
        reader = client.create_reader("out", MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next().data())
    return found


def test_a_client_works_through_the_proxy_and_each_step_is_seen(running):
    watch = Watch()
    with Proxy(watch.passing, watch.events.append) as proxy:
        proxy.forward_to(running.service_url)
        with Client(proxy.url, enable_transaction=True) as client:
            producer = client.create_producer("in")
            consumer = client.subscribe("in", "s", initial_position=InitialPosition.Earliest)
            producer.send(b"one")
            message = consumer.receive(timeout_millis=30_000)
            with client.new_transaction() as txn:
                client.create_producer("out").send(b"two", txn=txn)
                consumer.acknowledge(message, txn=txn)
    assert values(running) == [b"two"]
    steps = {str(each.step) for each in watch.passings if each.phase is Phase.AFTER}
    assert steps >= {"SUBSCRIBE in", "PRODUCER out", "SEND out", "NEW_TXN", "ACK in", "COMMIT"}
    assert any(event.what == "MESSAGE" and event.topic == "in" for event in watch.events)


def test_a_proxy_closes_beside_an_open_connection(running):
    """It leaves no failed callback, as tests/conftest.py checks."""
    watch = Watch()
    with Proxy(watch.passing, watch.events.append) as proxy:
        proxy.forward_to(running.service_url)
        client = Client(proxy.url)
        client.create_producer("out").send(b"one")
    client.close()
    assert values(running) == [b"one"]


@pytest.mark.parametrize(("phase", "stored"), [(Phase.BEFORE, []), (Phase.AFTER, [b"one"])])
def test_a_strike_is_exactly_before_or_after_a_command(running, phase, stored):
    watch = Watch(Passing(SEND, phase))
    with Proxy(watch.passing, watch.events.append) as proxy:
        proxy.forward_to(running.service_url)
        client = Client(proxy.url)
        producer = client.create_producer("out", send_timeout_millis=500)
        with pytest.raises(PulsarException):  # no connection is accepted until the proxy resumes
            producer.send(b"one")
        assert watch.struck.wait(LIMIT_S)
        assert values(running) == stored
        client.close()


def test_connections_are_accepted_again_after_a_strike(running):
    watch = Watch(Passing(SEND, Phase.BEFORE))
    with Proxy(watch.passing, watch.events.append) as proxy:
        proxy.forward_to(running.service_url)
        with Client(proxy.url) as client:
            producer = client.create_producer("out")
            producer.send_async(b"one")
            assert watch.struck.wait(LIMIT_S)
            proxy.forward_to(running.service_url)
            producer.flush()  # the client connects and resends
    assert values(running) == [b"one"]


def test_nothing_passes_while_it_is_paused(running):
    watch = Watch()
    with Proxy(watch.passing, watch.events.append) as proxy:
        proxy.forward_to(running.service_url)
        with Client(proxy.url) as client:
            producer = client.create_producer("out")
            with proxy.paused():
                producer.send_async(b"one")
                assert values(running) == []
                assert Passing(SEND, Phase.BEFORE) not in watch.passings
            producer.flush()
    assert values(running) == [b"one"]


def test_messages_are_as_large_as_the_broker_allows():
    large = b"x" * (6 * 1024 * 1024)
    with (
        broker(max_message_size=8 * 1024 * 1024) as running,
        Proxy(Watch().passing, [].append) as proxy,
    ):
        proxy.forward_to(running.service_url)
        with Client(proxy.url) as client:
            client.create_producer("out").send(large)
        assert values(running) == [large]


def test_a_client_with_tls_is_noticed(running):
    with Proxy(Watch().passing, [].append) as proxy:
        proxy.forward_to(running.service_url)
        with Client(proxy.url) as client:
            client.create_producer("out")
        assert not proxy.saw_tls
        with (
            Client(proxy.url.replace("pulsar:", "pulsar+ssl:"), operation_timeout_seconds=1) as tls,
            pytest.raises(PulsarException),
        ):
            tls.create_producer("out")
        assert proxy.saw_tls
