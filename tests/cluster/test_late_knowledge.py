"""Administrators use any broker, and a broker learns a little late what was done at another."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from credentials import TOKEN_SETTINGS, token
from rest import Rest
from txn_cluster import COORDINATOR, TxnCluster, hears_when_asked

from pybroker.base.errors import AuthorizationError, NotAllowed
from pybroker.base.names import TopicName
from pybroker.broker.schemas.compatibility import StoredSchema
from pybroker.client.topic_questions import TopicQuestion
from pybroker.wire import pulsar_api_pb2 as pb

pytestmark = pytest.mark.slow  # two brokers for each test

TENANT: Final = "v2/tenants/acme", b'{"allowedClusters": ["standalone"]}'
NAMESPACE: Final = "v2/namespaces/acme/shop", b""
TOPIC: Final = "v2/persistent/acme/shop/orders/partitions", b"2"
SUBSCRIPTION: Final = "v2/persistent/acme/shop/orders/subscription/billing", b""


ORDERS: Final = TopicName.parse("orders")
SECURED: Final = {
    "authorization_enabled": True,
    "super_user_roles": ("broker",),
    "broker_client_authentication_plugin": (
        "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    ),
    "broker_client_authentication_parameters": f"token:{token('broker')}",
    **TOKEN_SETTINGS,
}


class World:
    """Broker two hears late what broker one does."""

    def __init__(self, role: str = "", **settings: Any) -> None:
        self.cluster = TxnCluster(0, serves_http=True, **settings)
        one, two = self.cluster.start("one"), self.cluster.start("two")
        self.one, self.two = Rest(self.cluster, one, role), Rest(self.cluster, two, role)

    def two_serves(self, *names: TopicName) -> "World":
        """From before it hears late: a broker that takes a bundle catches up."""
        for name in names:
            self.cluster.take(self.two.broker, name)
        hears_when_asked(self.two.broker)
        return self

    def create(self) -> None:
        self.one.do("PUT", "v2/persistent/public/default/orders/partitions", b"2")


@pytest.fixture
def unmet() -> Iterator[World]:
    """Broker two does not hear late yet."""
    world = World()
    yield world
    world.cluster.close()


@pytest.fixture
def world(unmet: World) -> World:
    return unmet.two_serves()


@pytest.fixture
def secured() -> Iterator[World]:
    world = World("broker", **SECURED)
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


def test_a_partition_that_exists_is_never_refused(unmet: World) -> None:
    """Clients give up after NotAllowed."""
    parts = [ORDERS.partition_at(number) for number in range(2)]
    world = unmet.two_serves(*parts)
    world.create()
    call, client = world.cluster.call, world.cluster.client_at(world.one.broker)
    call(client.create_producer("orders"))
    call(client.subscribe("orders", "billing"))
    assert all(world.two.broker.ownership.owns(part) for part in parts)


def test_no_topic_is_created_beside_partitions_of_the_same_name(unmet: World) -> None:
    world = unmet.two_serves(ORDERS)
    world.create()
    topics = world.two.broker.broker.topics

    async def use() -> None:
        with pytest.raises(NotAllowed, match="Found partitioned metadata"):
            await topics.require(ORDERS)

    world.cluster.world.call(world.two.broker.node, use())


def test_a_transaction_takes_partitions_that_its_coordinator_has_not_heard_of(
    unmet: World,
) -> None:
    parts = [ORDERS.partition_at(number) for number in range(2)]
    for part in parts:
        unmet.cluster.take(unmet.one.broker, part)
    world = unmet.two_serves(COORDINATOR)
    world.create()
    client = world.cluster.client_at(world.one.broker)

    async def spend() -> None:
        txn = await client.new_transaction()
        consumer = await client.subscribe("orders", "billing")
        producer = await client.create_producer("orders")
        await producer.send(b"order", txn=txn)
        await txn.commit()
        assert (await consumer.receive()).data() == b"order"

    world.cluster.call(spend())


def test_a_schema_that_another_partition_s_producer_added_is_found(unmet: World) -> None:
    unmet.cluster.take(unmet.one.broker, ORDERS.partition_at(0))
    world = unmet.two_serves(ORDERS)
    world.create()
    schema = StoredSchema("orders", pb.Schema.String, b"", {})
    one, client = world.one.broker, world.cluster.client_at(world.one.broker)
    world.cluster.world.call(one.node, one.broker.topics.schemas.add(ORDERS, schema))
    found = world.cluster.call(client.get_schema("orders"))
    assert found is not None and found.type == pb.Schema.String


def test_the_digest_of_a_schema_includes_what_another_broker_has_just_added(unmet: World) -> None:
    world = unmet.two_serves(ORDERS)
    world.create()
    schema = StoredSchema("orders", pb.Schema.String, b"", {})
    one, client = world.one.broker, world.cluster.client_at(world.two.broker)
    world.cluster.world.call(one.node, one.broker.topics.schemas.add(ORDERS, schema))
    asked = client.ask_topics([TopicQuestion("orders")], schema_only=True)
    (state,) = world.cluster.call(asked)
    assert state.schema_digest


def test_the_topics_of_a_new_namespace_are_listed(world: World) -> None:
    for path, body in (TENANT, NAMESPACE, TOPIC):
        world.one.do("PUT", path, body)
    client = world.cluster.client_at(world.two.broker)
    assert len(world.cluster.call(client.get_topics_of_namespace("acme/shop"))) == 2


def test_what_was_granted_at_one_broker_is_permitted_at_any_other_at_once(secured: World) -> None:
    secured.cluster.take(secured.one.broker, ORDERS)
    world = secured.two_serves(TopicName.parse("bills"))
    client = world.cluster.client_at(world.two.broker, "alice")
    granted = "v2/persistent/public/default/{}/permissions/alice"
    with pytest.raises(AuthorizationError):
        world.cluster.call(client.create_producer("bills"))
    for topic in ("bills", "orders"):
        world.one.do("POST", granted.format(topic), b'["produce"]')
    world.cluster.call(client.create_producer("bills"))


def test_who_was_made_an_admin_at_one_broker_is_one_at_any_other_at_once(secured: World) -> None:
    world = secured.two_serves()
    alice = Rest(world.cluster, world.two.broker, "alice")
    assert alice.ask("PUT", "v2/namespaces/acme/shop").status == 404
    tenant = b'{"allowedClusters": ["standalone"], "adminRoles": ["alice"]}'
    world.one.do("PUT", "v2/tenants/acme", tenant)
    alice.do("PUT", "v2/namespaces/acme/shop")
