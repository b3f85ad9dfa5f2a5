"""Deletions of what two brokers serve: interrupted, repeated, or carried out by both at once."""

import asyncio
from collections.abc import Iterator
from functools import partial
from unittest.mock import AsyncMock

import pytest
from two_brokers import ORDERS, SHOP, TwoBrokers, bundles_of
from txn_cluster import TxnBroker

from managed_ledger.storage.backend import KeyAt
from pybroker.admin.over_brokers import asking as asking_module
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.other_brokers import Reply
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster.boundaries import Boundaries

pytestmark = pytest.mark.slow  # two brokers for each test

CARTS = f"v2/persistent/{SHOP}/carts/partitions"


@pytest.fixture
def brokers() -> Iterator[TwoBrokers]:
    brokers = TwoBrokers(0)
    yield brokers
    brokers.cluster.close()


def stock(brokers: TwoBrokers) -> None:
    """The namespace SHOP with a partitioned topic and others, on both brokers."""
    brokers.rest.do("PUT", f"v2/namespaces/{SHOP}")
    brokers.cluster.until(lambda: brokers.two.broker.topics.tenants.has_namespace(SHOP))
    brokers.other_rest.do("PUT", CARTS, b"4")
    for number in range(4):
        brokers.other_rest.do("PUT", f"v2/persistent/{SHOP}/item-{number}")
        name = TopicName.parse(f"persistent://{SHOP}/carts-partition-{number}")
        brokers.cluster.call(brokers.cluster.send(brokers.two, str(name), b"old"))


def begin(brokers: TwoBrokers, what: str) -> None:
    """Broker one begins a deletion, comes so far, and dies."""
    tenants, call = brokers.one.broker.topics.tenants, brokers.cluster.world.call
    if what == "partitions":
        call(brokers.one.node, tenants.doom_partitions(TopicName.parse(f"{SHOP}/carts")))
    else:
        call(brokers.one.node, tenants.mark_going(SHOP, force=what != "an empty namespace"))
    if what == "a namespace without its record":
        for path in (CARTS, *(f"v2/persistent/{SHOP}/item-{number}" for number in range(4))):
            brokers.rest.do("DELETE", path, force="true")
        call(brokers.one.node, tenants.delete_namespace(SHOP))
    brokers.cluster.crash(brokers.one)


def marked(brokers: TwoBrokers) -> bool:
    return bool(brokers.two.broker.topics.tenants.marks(SHOP))


@pytest.mark.parametrize("what", ["a namespace", "a namespace without its record"])
def test_the_deletion_of_a_namespace_whose_broker_died_is_finished_by_another(
    brokers: TwoBrokers, what: str
) -> None:
    stock(brokers)
    begin(brokers, what)
    other = brokers.other_rest
    refused = other.ask("PUT", f"v2/namespaces/{SHOP}")
    assert refused.status == 409 and b"is being deleted" in refused.body
    brokers.cluster.until(lambda: not marked(brokers))
    assert f"/admin/local-policies/{SHOP}" not in brokers.cluster.life.tree.nodes
    other.do("PUT", f"v2/namespaces/{SHOP}")
    assert other.get(f"v2/namespaces/{SHOP}/topics", mode="ALL") == []
    other.do("PUT", CARTS, b"3")
    brokers.cluster.world.sleep(60.0)
    assert other.get(CARTS)["partitions"] == 3


def test_the_deletion_of_a_namespace_whose_broker_died_is_finished_by_the_next_request(
    brokers: TwoBrokers,
) -> None:
    stock(brokers)
    begin(brokers, "a namespace without its record")
    brokers.other_rest.do("DELETE", f"v2/namespaces/{SHOP}")
    assert not marked(brokers)
    assert brokers.other_rest.ask("DELETE", f"v2/namespaces/{SHOP}").status == 404


def test_the_deletion_of_an_empty_namespace_whose_broker_died_spares_one_with_topics(
    brokers: TwoBrokers,
) -> None:
    stock(brokers)
    begin(brokers, "an empty namespace")
    brokers.cluster.until(lambda: marked(brokers))
    brokers.cluster.until(lambda: not marked(brokers))
    assert len(brokers.two.broker.ledgers.names(f"{SHOP}/")) == 8
    brokers.other_rest.do("PUT", f"v2/persistent/{SHOP}/another")


def test_the_deletion_of_partitions_whose_broker_died_is_finished_by_another(
    brokers: TwoBrokers,
) -> None:
    stock(brokers)
    begin(brokers, "partitions")
    refused = brokers.other_rest.ask("PUT", CARTS, b"3")
    assert refused.status == 409 and b"is being deleted" in refused.body
    brokers.cluster.until(lambda: brokers.other_rest.ask("PUT", CARTS, b"3").is_done)
    assert len(brokers.other_rest.get(f"v2/namespaces/{SHOP}/topics")) == 7
    name = f"persistent://{SHOP}/carts-partition-0"
    assert brokers.cluster.call(brokers.cluster.read(brokers.two, name)) == []


def test_who_only_continues_a_deletion_deletes_nothing_that_was_created_anew(
    brokers: TwoBrokers,
) -> None:
    stock(brokers)
    for path in (CARTS, f"v2/namespaces/{SHOP}"):
        for rest in (brokers.rest, brokers.other_rest):
            rest.ask("DELETE", path, onlyDoomed="true", force="true")
    assert len(brokers.rest.get(f"v2/namespaces/{SHOP}/topics")) == 8


def test_a_namespace_whose_bundles_are_split_meanwhile_is_deleted(brokers: TwoBrokers) -> None:
    """The broker knows of the split late, so it asks for a bundle that is not there any more."""
    stock(brokers)
    bundles = brokers.one.membership.bundles
    before = brokers.cluster.world.call(brokers.one.node, bundles.served_of(SHOP))
    for bundle in bundles_of(brokers, SHOP):
        middle = f"[{(bundle.low + bundle.high) // 2}]".encode()
        brokers.rest.do("PUT", f"v2/namespaces/{bundle}/split", middle)
    with pytest.MonkeyPatch.context() as patch:
        now, known = bundles.served_of, [before]

        async def late(namespace: str) -> list[Bundle]:
            return known.pop() if known else await now(namespace)

        patch.setattr(bundles, "served_of", late)
        brokers.rest.do("DELETE", f"v2/namespaces/{SHOP}", force="true")
    assert not known
    assert not brokers.one.broker.topics.tenants.has_namespace(SHOP)


def test_what_fails_in_the_middle_is_finished_later(brokers: TwoBrokers) -> None:
    stock(brokers)
    tenants, failing = brokers.one.broker.topics.tenants, ServiceNotReady("ZooKeeper is busy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tenants, "delete_namespace", AsyncMock(side_effect=failing))
        assert brokers.rest.ask("DELETE", f"v2/namespaces/{SHOP}", force="true").status == 503
    assert not tenants.takes_topics(SHOP)
    brokers.cluster.until(lambda: not marked(brokers))
    assert not tenants.has_namespace(SHOP)


def test_a_tenant_with_a_built_in_namespace_is_not_deleted_in_part(brokers: TwoBrokers) -> None:
    stock(brokers)
    assert brokers.rest.ask("DELETE", "v2/tenants/public", force="true").status == 405
    assert brokers.rest.get("v2/namespaces/public") == ["public/default", SHOP]
    brokers.rest.do("PUT", "v2/persistent/public/default/another")
    assert len(brokers.rest.get(f"v2/namespaces/{SHOP}/topics")) == 8


def test_a_deletion_that_a_crash_interrupted_is_finished_by_the_next_request(
    brokers: TwoBrokers,
) -> None:
    brokers.publish()
    topics = brokers.one.broker.topics
    name = TopicName.parse("orders")
    brokers.cluster.world.call(brokers.one.node, topics.partitioned.doom(name))
    assert brokers.other_rest.ask("PUT", f"{ORDERS}/partitions", b"3").status == 409
    brokers.other_rest.do("DELETE", f"{ORDERS}/partitions", force="true")
    assert brokers.rest.get("v2/persistent/public/default") == []


@pytest.mark.parametrize("what", ["partitions", "namespace"])
def test_who_deletes_slowly_spares_what_was_created_anew(brokers: TwoBrokers, what: str) -> None:
    """Meanwhile another request has finished the deletion."""
    rest, other = brokers.rest, brokers.other_rest
    rest.do("PUT", f"v2/namespaces/{SHOP}")
    brokers.cluster.until(lambda: brokers.two.broker.topics.tenants.has_namespace(SHOP))
    path = CARTS if what == "partitions" else f"v2/namespaces/{SHOP}"
    rest.do("PUT", CARTS, b"4")
    # The first request only gets as far as its mark.
    ask, may_go_on, begun = brokers.one.membership.others.ask, asyncio.Event(), asyncio.Event()
    here = asking_module.Asking._here

    async def late(work: object, *told: object) -> object:
        begun.set()
        await may_go_on.wait()
        return await work(*told)  # type: ignore[operator]

    brokers.one.membership.others.ask = partial(late, ask)  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking_module.Asking, "_here", lambda *told: late(here, *told))
        slow = brokers.cluster.client.create_task(
            rest._ask(brokers.one.http_url, "DELETE", f"/admin/{path}?force=true", b""), name="slow"
        )
        brokers.cluster.until(begun.is_set)
    other.do("DELETE", path, force="true")
    if what == "namespace":
        other.do("PUT", path)
    other.do("PUT", CARTS, b"4")
    names = [TopicName.parse(f"persistent://{SHOP}/carts-partition-{n}") for n in range(4)]
    for name in names:  # the client is redirected to the broker that serves it
        brokers.cluster.call(brokers.cluster.send(brokers.two, str(name), b"new"))
    may_go_on.set()
    brokers.cluster.until(slow.done)
    assert slow.result().status in (204, 404), slow.result().body
    for name in names:
        assert brokers.cluster.call(brokers.cluster.read(brokers.two, str(name))) == [b"new"]


def test_who_deletes_a_namespace_slowly_leaves_no_bundles_of_it(brokers: TwoBrokers) -> None:
    """Meanwhile another request has finished the deletion. Looking a topic up divides the namespace
    into bundles again.
    """
    stock(brokers)
    lists, may_go_on, begun = brokers.one.broker.topics.lists, asyncio.Event(), asyncio.Event()
    get = lists.get

    async def late(namespace: str) -> object:
        found = await get(namespace)
        begun.set()
        await may_go_on.wait()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "get", late)
        path = f"/admin/v2/namespaces/{SHOP}?force=true"
        slow = brokers.cluster.client.create_task(
            brokers.rest._ask(brokers.one.http_url, "DELETE", path, b""), name="slow"
        )
        brokers.cluster.until(begun.is_set)
    brokers.other_rest.do("DELETE", f"v2/namespaces/{SHOP}", force="true")
    may_go_on.set()
    brokers.cluster.until(slow.done)
    assert slow.result().status == 404
    brokers.cluster.until(lambda: not bundles_of(brokers, SHOP))
    assert f"/admin/local-policies/{SHOP}" not in brokers.cluster.life.tree.nodes


def test_a_namespace_that_is_deleted_as_soon_as_it_is_created_leaves_no_bundles(
    brokers: TwoBrokers,
) -> None:
    """The broker that creates it has not divided it yet."""
    divide, there = Boundaries.divide, brokers.two.broker.topics.tenants.has_namespace

    async def late(boundaries: Boundaries, namespace: str, bundles: int) -> None:
        may_go_on.set()
        await gone.wait()
        await divide(boundaries, namespace, bundles)

    may_go_on, gone, path = asyncio.Event(), asyncio.Event(), f"/admin/v2/namespaces/{SHOP}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Boundaries, "divide", late)
        slow = brokers.cluster.client.create_task(
            brokers.rest._ask(brokers.one.http_url, "PUT", path, b'{"bundles": {"numBundles": 7}}'),
            name="slow",
        )
        brokers.cluster.until(may_go_on.is_set)
        brokers.cluster.until(lambda: there(SHOP))
        brokers.other_rest.do("DELETE", path)
        gone.set()
        brokers.cluster.until(slow.done)
    assert slow.result().is_done
    assert not brokers.one.broker.topics.tenants.has_namespace(SHOP)
    assert f"/admin/local-policies/{SHOP}" not in brokers.cluster.life.tree.nodes


@pytest.mark.parametrize("goes_again", [False, True])
def test_who_ends_a_deletion_late_spares_a_new_namespace_and_does_not_end_its_deletion(
    brokers: TwoBrokers, goes_again: bool
) -> None:
    stock(brokers)
    forget, may_go_on, begun = Boundaries.forget, asyncio.Event(), asyncio.Event()

    async def late(boundaries: Boundaries, namespace: str, only_while: KeyAt) -> None:
        if not begun.is_set():
            begun.set()
            await may_go_on.wait()
        await forget(boundaries, namespace, only_while)

    tenants = brokers.one.broker.topics.tenants
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Boundaries, "forget", late)
        path = f"/admin/v2/namespaces/{SHOP}?force=true"
        slow = brokers.cluster.client.create_task(
            brokers.rest._ask(brokers.one.http_url, "DELETE", path, b""), name="slow"
        )
        brokers.cluster.until(begun.is_set)
        brokers.other_rest.do("DELETE", f"v2/namespaces/{SHOP}")
        brokers.other_rest.do("PUT", f"v2/namespaces/{SHOP}", b'{"bundles": {"numBundles": 7}}')
        if goes_again:
            marking = brokers.two.broker.topics.tenants.mark_going(SHOP, force=True)
            brokers.cluster.world.call(brokers.two.node, marking)
        brokers.cluster.until(lambda: tenants.has_namespace(SHOP))
        brokers.cluster.until(lambda: bool(tenants.marks(SHOP)) == goes_again)
        may_go_on.set()
        brokers.cluster.until(slow.done)
    assert slow.result().status == 404
    assert bool(tenants.marks(SHOP)) == goes_again
    assert f"/admin/local-policies/{SHOP}" in brokers.cluster.life.tree.nodes
    assert brokers.other_rest.get(f"v2/namespaces/{SHOP}")["bundles"]["numBundles"] == 7


@pytest.mark.parametrize("what", ["partitions", "namespace", "both"])
def test_two_requests_that_delete_the_same_at_once_succeed_or_find_nothing(
    brokers: TwoBrokers, what: str
) -> None:
    namespace = f"v2/namespaces/{SHOP}"
    paths = {"partitions": (CARTS,) * 2, "namespace": (namespace,) * 2, "both": (CARTS, namespace)}
    stock(brokers)
    for gap_ms in (0, 1, 2, 5, 10, 30):
        brokers.rest.ask("PUT", namespace)
        brokers.other_rest.ask("PUT", CARTS, b"4")
        replies = at_once(brokers, "DELETE", *paths[what], gap_s=gap_ms / 1000)
        assert {reply.status for reply in replies} <= {204, 404}, (gap_ms, replies)


def test_two_requests_that_unload_a_namespace_at_once_succeed(brokers: TwoBrokers) -> None:
    stock(brokers)
    for gap_ms in (0, 1, 2, 5):
        for number in range(4):
            name = f"persistent://{SHOP}/carts-partition-{number}"
            brokers.cluster.call(brokers.cluster.send(brokers.two, name, b"new"))
        path = f"v2/namespaces/{SHOP}/unload"
        replies = at_once(brokers, "PUT", path, path, gap_s=gap_ms / 1000)
        assert {reply.status for reply in replies} == {204}, (gap_ms, replies)


def at_once(
    brokers: TwoBrokers, method: str, path: str, other_path: str, gap_s: float
) -> list[Reply]:
    """The answers of both brokers."""

    async def ask(broker: TxnBroker, path: str, wait_s: float) -> Reply:
        await asyncio.sleep(wait_s)
        target = f"/admin/{path}?force=true"
        return await brokers.rest._ask(broker.http_url, method, target, b"")

    async def both() -> list[Reply]:
        asking = ask(brokers.one, path, 0.0), ask(brokers.two, other_path, gap_s)
        return await asyncio.gather(*asking)

    found: list[Reply] = brokers.cluster.call(both())
    return found
