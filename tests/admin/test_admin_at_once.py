"""Simultaneous requests of administrators, or while clients connect, under a virtual clock."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from topics_world import World, run
from virtual_loop import LoopClock

from managed_ledger.position import EARLIEST, Position
from pybroker.admin.finding import delete_namespace
from pybroker.admin.routes import transaction
from pybroker.admin.routes.bundle import BundleRoutes
from pybroker.admin.routes.namespace import NamespaceRoutes
from pybroker.admin.routes.storage import StorageRoutes
from pybroker.admin.routes.subscription import SubscriptionRoutes
from pybroker.admin.routes.transaction import TransactionRoutes
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import COORDINATOR_ASSIGN, TopicName
from pybroker.broker.brokers.clusters import FAILURE_DOMAINS, Clusters
from pybroker.broker.namespaces.tenants import Conflict, NotFound
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.kept import PROPERTIES
from pybroker.broker.schemas.compatibility import TYPE_NAMES, StoredSchema
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

SHOP = "public/shop"
PARTS = {"tenant": "public", "namespace": "default"}
ORDERS = TopicName.parse("persistent://public/shop/orders")
PAYMENTS = TopicName.parse("persistent://public/shop/payments")


def services(world: World, **others: Any) -> Any:
    given = {"topics": world.topics, "config": BrokerConfig(), "permissions": None}
    given |= {"permissions_applied": None, "bundles": None, "brokers": None}
    return SimpleNamespace(**given, clock=LoopClock(), broker_id="broker", **others)


def asked(**parts: str | int) -> Any:
    scope = {"path": "/admin/v2/persistent"}
    return SimpleNamespace(path_params=PARTS | parts, query_params={}, scope=scope)


def test_properties_of_a_namespace_that_are_set_at_once_are_all_there() -> None:
    async def scenario(world: World) -> None:
        routes = NamespaceRoutes(services(world))
        requests = [asked(key=key, value=value) for key, value in (("a", "1"), ("b", "2"))]
        await asyncio.gather(*map(routes.set_property, requests))
        policies = world.topics.policies
        assert policies.set_of_namespace("public/default", PROPERTIES) == {"a": "1", "b": "2"}
        answers = await asyncio.gather(
            routes.remove_property(asked(key="a")), routes.remove_property(asked(key="b"))
        )
        assert [answer.body for answer in answers] == [b"1", b"2"]
        assert not policies.set_of_namespace("public/default", PROPERTIES)

    run(scenario)


def test_the_number_of_coordinators_never_decreases_when_another_broker_raises_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read_json(request: Any) -> Any:
        return request

    monkeypatch.setattr(transaction, "read_json", read_json)

    async def scenario(world: World) -> None:
        coordinators = SimpleNamespace(count=16)
        routes = TransactionRoutes(services(world, coordinators=coordinators))
        counts: list[Any] = [20, 18]
        outcomes = await asyncio.gather(*map(routes.raise_count, counts), return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), HTTPException]
        assert coordinators.count == 20
        assert world.tenants.partitions(COORDINATOR_ASSIGN) == 20

    run(scenario)


def test_a_subscription_that_goes_from_one_partition_meanwhile_is_deleted_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, loading, disk_answers = Topic.open, asyncio.Event(), asyncio.Event()

    async def slow_load(*what: Any) -> Topic:
        loading.set()
        await disk_answers.wait()
        return await load(*what)

    async def scenario(world: World) -> None:
        name = TopicName.parse("orders")
        await world.topics.create_partitioned(name, 2)
        for index in range(2):
            topic = await world.topic(name.partition_at(index))
            await topic.subscription("s", EARLIEST, {}, create=True)
        await world.topics.unload(name.partition_at(1))
        monkeypatch.setattr(Topic, "open", slow_load)
        routes = SubscriptionRoutes(services(world))
        request = asked(domain="persistent", topic="orders", subscription="s")
        deleting = asyncio.ensure_future(routes.delete(request))
        await loading.wait()
        await (await world.topic(name.partition_at(0))).delete_subscription("s")
        disk_answers.set()
        await deleting
        assert not (await world.topic(name.partition_at(1))).subscriptions

    run(scenario)


async def shop(world: World) -> tuple[Topic, Topic]:
    await world.tenants.create_namespace(SHOP, {})
    return await world.topic(ORDERS), await world.topic(PAYMENTS)


def test_no_topic_comes_again_while_its_namespace_is_deleted() -> None:
    """A disconnected client that reconnects at once must not recreate it."""

    async def scenario(world: World) -> None:
        await shop(world)
        deleting = asyncio.ensure_future(delete_namespace(world.topics, SHOP))
        while world.exists(ORDERS):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
        with pytest.raises(NotFound):
            await world.topics.require(ORDERS)
        with pytest.raises(NotFound):
            await world.topics.create_partitioned(ORDERS, 2)
        await deleting
        assert world.factory.names(SHOP) == []

    run(scenario)


def test_a_topic_that_goes_by_itself_does_not_stop_its_namespaces_deletion() -> None:
    async def scenario(world: World) -> None:
        await shop(world)
        deleting = asyncio.ensure_future(delete_namespace(world.topics, SHOP))
        await world.topics.delete(PAYMENTS)
        await deleting
        assert not world.tenants.has_namespace(SHOP)

    run(scenario)


def test_a_schema_that_is_being_added_goes_with_its_namespace() -> None:
    """Even if its topic never existed: the next namespace of that name would inherit the schema."""

    async def scenario(world: World) -> None:
        await world.tenants.create_namespace(SHOP, {})
        schemas, schema = world.topics.schemas, StoredSchema("", TYPE_NAMES.index("STRING"), b"")
        await schemas.add(PAYMENTS, schema)
        adding = asyncio.ensure_future(schemas.add(ORDERS, schema))
        await asyncio.sleep(0)
        await delete_namespace(world.topics, SHOP)
        await asyncio.wait([adding])
        with pytest.raises(ServiceNotReady):
            await schemas.add(ORDERS, schema)
        await world.tenants.create_namespace(SHOP, {})
        assert [await schemas.all(name) for name in (PAYMENTS, ORDERS)] == [[], []]

    run(scenario)


@pytest.mark.parametrize("force", [True, False])
def test_a_topic_that_is_being_made_is_one_of_its_namespace(force: bool) -> None:
    async def scenario(world: World) -> None:
        await world.tenants.create_namespace(SHOP, {})
        making = asyncio.ensure_future(world.topic(ORDERS))
        await asyncio.sleep(0)
        deleting = asyncio.ensure_future(delete_namespace(world.topics, SHOP, force))
        await asyncio.wait([making, deleting])
        assert isinstance(deleting.exception(), type(None) if force else Conflict)
        assert world.exists(ORDERS) is world.tenants.has_namespace(SHOP) is not force

    run(scenario)


def test_what_is_written_down_of_a_cluster_at_once_is_all_there() -> None:
    async def scenario(world: World) -> None:
        clusters = Clusters(world.backend.metadata, "standalone")
        creating = [
            clusters.create("east", {"serviceUrl": url}) for url in ("http://a", "http://b")
        ]
        made = await asyncio.gather(*creating, return_exceptions=True)
        assert [type(each) for each in made] == [type(None), Conflict]
        assert clusters.data("east") == {"serviceUrl": "http://a"}

        def domain(others: dict[str, Any]) -> dict[str, Any]:
            return {"brokers": [], "others": sorted(others)}

        names = ("rack-1", "rack-2")
        await asyncio.gather(
            *(clusters.put_part("east", FAILURE_DOMAINS, name, domain) for name in names),
            clusters.update("east", {"serviceUrl": "http://c"}),
        )
        found = clusters.parts("east", FAILURE_DOMAINS)
        assert [each["others"] for each in found.values()] == [[], ["rack-1"]]
        assert clusters.data("east") == {"serviceUrl": "http://c"}

    run(scenario)


@pytest.mark.parametrize("work", ["expire", "clear", "truncate"])
def test_a_subscription_that_goes_while_another_is_moved_does_not_stop_the_work(
    monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    skip_to = Subscription.skip_to

    async def scenario(world: World) -> None:
        topic = await world.topic()
        subscriptions = [await topic.subscription(n, EARLIEST, {}, create=True) for n in "abc"]
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
        await topic.ledger.append_one(build_entry(metadata, b"x"))

        async def slow_skip(subscription: Subscription, position: Position) -> None:
            await skip_to(subscription, position)
            if subscription.name == "a":
                await topic.delete_subscription("b")

        monkeypatch.setattr(Subscription, "skip_to", slow_skip)
        request = asked(domain="persistent", topic="orders", age_s=0)
        if work == "expire":
            await SubscriptionRoutes(services(world)).expire_all(request)
        elif work == "clear":
            await BundleRoutes(services(world)).clear_backlog(request)
        else:
            await StorageRoutes(services(world)).truncate(request)
        assert [each.backlog for each in subscriptions[::2]] == [0, 0]

    run(scenario)
