"""Administrators use any broker, and a broker learns a little late what was done at another."""

from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
from rest import Rest
from txn_cluster import TxnBroker, TxnCluster

pytestmark = pytest.mark.slow  # two brokers for each test

TENANT: Final = "v2/tenants/acme", b'{"allowedClusters": ["standalone"]}'
NAMESPACE: Final = "v2/namespaces/acme/shop", b""
TOPIC: Final = "v2/persistent/acme/shop/orders/partitions", b"2"
SUBSCRIPTION: Final = "v2/persistent/acme/shop/orders/subscription/billing", b""


class World:
    def __init__(self) -> None:
        self.cluster = TxnCluster(0, serves_http=True)
        one, two = self.cluster.start("one"), self.cluster.start("two")
        self.one, self.two = Rest(self.cluster, one), Rest(self.cluster, two)
        _hears_when_asked(two)


def _hears_when_asked(broker: TxnBroker) -> None:
    """The broker learns nothing from others until it must catch up."""
    metadata = cast(Any, broker.broker._backend)._metadata
    request, caught_up = metadata._refresh.request, metadata.caught_up
    metadata._refresh.request = lambda: None

    async def catch_up() -> None:
        metadata._refresh.request = request
        await caught_up()
        metadata._refresh.request = lambda: None

    metadata.caught_up = catch_up


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.cluster.close()


def test_what_was_created_at_one_broker_is_found_at_any_other_at_once(world: World) -> None:
    for path, body in (TENANT, NAMESPACE, TOPIC):
        world.one.do("PUT", path, body)
        world.two.get(path)


def test_what_belongs_to_something_new_can_be_created_at_any_broker(world: World) -> None:
    for asked, (path, body) in zip(
        (world.one, world.two, world.one, world.two),
        (TENANT, NAMESPACE, TOPIC, SUBSCRIPTION),
        strict=True,
    ):
        asked.do("PUT", path, body)


def test_what_was_deleted_at_one_broker_can_be_created_again_at_any_other(world: World) -> None:
    for path, body in (TENANT, NAMESPACE):
        world.one.do("PUT", path, body)
        world.two.get(path)
    world.one.do("DELETE", NAMESPACE[0])
    world.two.do("PUT", *NAMESPACE)
    world.one.do("DELETE", NAMESPACE[0])
    world.one.do("DELETE", TENANT[0])
    world.two.do("PUT", *TENANT)


def test_what_was_created_at_one_broker_can_be_deleted_at_any_other_at_once(world: World) -> None:
    for path, body in (TENANT, NAMESPACE, TOPIC):
        world.one.do("PUT", path, body)
    world.two.do("DELETE", TOPIC[0])
    world.one.do("DELETE", NAMESPACE[0])
    world.two.do("DELETE", TENANT[0])


def test_what_no_broker_knows_is_not_found(world: World) -> None:
    assert world.two.ask("GET", NAMESPACE[0]).status == 404
    world.one.do("PUT", *TENANT)
    assert world.two.ask("PUT", *TENANT).status == 409


def test_messages_that_the_topic_refuses_are_refused_once(world: World) -> None:
    """The handler has freed them: it cannot be called again."""
    topic = "persistent/public/default/orders"
    client = world.cluster.client_at(world.two.broker)
    world.cluster.call(client.create_producer(f"persistent://{topic[11:]}", producer_name="mine"))
    body = b'{"producerName": "mine", "messages": [{"payload": "p"}]}'
    assert world.two.ask("POST", f"/topics/{topic}", body).status == 409


def test_a_change_reaches_the_partitions_that_were_just_added_at_another_broker(
    world: World,
) -> None:
    orders, billing = "v2/persistent/public/default/orders", "subscription/billing"
    world.one.do("PUT", f"{orders}/partitions", b"2")
    world.two.get(f"{orders}/partitions")
    world.one.do("POST", f"{orders}/partitions", b"4")
    world.two.do("PUT", f"{orders}/{billing}", b"")
    for number in range(4):
        there = world.one.get(f"{orders}-partition-{number}/subscriptions")
        assert there == ["billing"], number
