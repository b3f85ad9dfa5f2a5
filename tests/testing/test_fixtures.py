"""The fixtures of pybroker.pytest_plugin: which broker, namespace and topic a test is given."""

import pytest

from pybroker.client import Client, InitialPosition
from pybroker.testing import RunningBroker, VirtualClock

pytestmark = pytest.mark.pulsar_broker(clusterName="of-the-module")


def cluster(broker: RunningBroker) -> str:
    async def look(running: object) -> str:
        name: str = running.topics.tenants.tenant("public")["allowedClusters"][0]  # type: ignore[attr-defined]
        return name

    return broker.call(look)


def test_each_scope_has_its_broker(
    pulsar_broker: RunningBroker,
    pulsar_broker_module: RunningBroker,
    pulsar_broker_shared: RunningBroker,
) -> None:
    brokers = (pulsar_broker, pulsar_broker_module, pulsar_broker_shared)
    assert len({broker.service_url for broker in brokers}) == 3


def test_a_module_s_settings_are_its_broker_s(pulsar_broker_module: RunningBroker) -> None:
    assert cluster(pulsar_broker_module) == "of-the-module"


@pytest.mark.pulsar_broker(clusterName="of-the-test")
def test_a_test_s_settings_count_most_and_are_its_own_broker_s(
    pulsar_broker: RunningBroker,
    pulsar_broker_module: RunningBroker,
    pulsar_broker_shared: RunningBroker,
) -> None:
    names = [cluster(pulsar_broker), cluster(pulsar_broker_module), cluster(pulsar_broker_shared)]
    assert names == ["of-the-test", "of-the-module", "standalone"]


def pays(client: Client, topic: str) -> None:
    """Pays in a transaction, whatever else the broker holds."""
    orders = client.subscribe(topic, "billing", initial_position=InitialPosition.Earliest)
    with client.new_transaction() as txn:
        client.create_producer(topic).send(b"one lamp", txn=txn)
    assert orders.receive(timeout_millis=10_000).data() == b"one lamp"


@pytest.mark.parametrize("order", ["a b", "c/d", "é"])
def test_a_client_and_a_topic_need_no_broker_to_be_named(
    order: str, pulsar_client: Client, pulsar_topic: str
) -> None:
    pays(pulsar_client, pulsar_topic)


def test_they_belong_to_the_broker_that_is_named(
    pulsar_broker_shared: RunningBroker,
    pulsar_client: Client,
    pulsar_topic: str,
    pulsar_clock: VirtualClock,
) -> None:
    pays(pulsar_client, pulsar_topic)
    assert pulsar_broker_shared.backlog(pulsar_topic, "billing") == 1
    assert pulsar_clock is pulsar_broker_shared.clock


def test_of_several_brokers_it_is_the_narrowest_one(
    pulsar_broker_shared: RunningBroker,
    pulsar_broker_module: RunningBroker,
    pulsar_clock: VirtualClock,
) -> None:
    assert pulsar_clock is pulsar_broker_module.clock


def test_a_topic_s_namespace_has_the_test_s_name(pulsar_namespace: str, pulsar_topic: str) -> None:
    assert pulsar_namespace == "public/test_a_topic_s_namespace_has_the_test_s_name-1"
    assert pulsar_topic == f"persistent://{pulsar_namespace}/topic"


def test_a_namespace_is_new_also_where_others_made_some(pulsar_broker: RunningBroker) -> None:
    async def create(running: object) -> None:
        await running.topics.tenants.create_namespace("public/test-1", {})  # type: ignore[attr-defined]

    pulsar_broker.call(create)
    assert [pulsar_broker.new_namespace() for _ in range(2)] == ["public/test-2", "public/test-3"]
