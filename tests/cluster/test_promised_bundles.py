"""A bundle goes to the broker that an administrator named, whichever broker clients ask."""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
from cluster_world import ClusterWorld, Member
from rest import Rest
from txn_cluster import TxnBroker, TxnCluster

from managed_ledger.storage.zookeeper.errors import NoAuth
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster import promises
from pybroker.cluster.placement import chosen

NAMES = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(40)]


class World:
    """Three brokers with HTTP; the first serves the bundle of `name`."""

    def __init__(self) -> None:
        self.cluster = TxnCluster(0, serves_http=True)
        self.one, self.two, self.three = map(self.cluster.start, ("one", "two", "three"))
        self.name = TopicName.parse(self.cluster.topic_of(self.one))
        self.cluster.call(self.cluster.send(self.one, str(self.name), b"x"))
        self.bundle = next(each for each in self.one.ownership.owned() if each.holds(self.name))

    def unload(self, asked: TxnBroker, destination: TxnBroker) -> Any:
        path = f"v2/namespaces/{self.bundle.namespace}/{self.bundle.range}/unload"
        named = destination.membership.broker_id
        return Rest(self.cluster, asked).ask("PUT", path, destinationBroker=named)

    def lookup(self, asked: TxnBroker) -> Any:
        return self.cluster.world.call(asked.node, asked.ownership.lookup(self.name, True))


@pytest.fixture
def brokers() -> Iterator[World]:
    world = World()
    yield world
    world.cluster.close()


def released(
    world: ClusterWorld, member: Member, name: TopicName, destination: Member | None
) -> None:
    named = "" if destination is None else f"{destination.name}:8080"
    world.call(member, member.ownership.release(bundle_of(member, name), named))


def bundle_of(member: Member, name: TopicName) -> Bundle:
    return next(each for each in member.ownership.owned() if each.holds(name))


def taken(world: ClusterWorld, member: Member, name: TopicName) -> Bundle:
    """Let a member take the bundle; afterwards all live members know the owner and each other."""
    world.life.world.sleep(0.5)
    assert world.call(member, member.ownership.lookup(name, True)) is None
    world.life.world.sleep(0.5)
    return bundle_of(member, name)


def given_back(world: ClusterWorld, member: Member, bundle: Bundle) -> None:
    world.until(lambda: bundle not in member.ownership._states)


def sent_to(world: ClusterWorld, asked: Member, name: TopicName, authoritative: bool) -> str:
    found = world.call(asked, asked.ownership.lookup(name, authoritative))
    return asked.name if found is None else found.address.http_url.split("/")[2].split(":")[0]


# --- lookups at all brokers


@pytest.mark.parametrize("authoritative", [False, True])
def test_every_broker_sends_clients_to_the_one_that_was_named(
    world: ClusterWorld, authoritative: bool
) -> None:
    """Even the broker that would otherwise take the bundle."""
    members = {name: world.member(name) for name in ("a", "b", "c")}
    a, c = members["a"], members["c"]
    counts = {f"{name}:8080": 0 for name in members}
    world.call(a, a._boundaries.of(NAMES[0]))
    of_c = next(
        name for name in NAMES if chosen(str(a._boundaries.bundle_of(name)), counts) == "c:8080"
    )
    taken(world, a, of_c)
    world.call(a, a.ownership.release(bundle_of(a, of_c), "b:8080"))
    bundle = c._boundaries.bundle_of(of_c)
    assert bundle is not None
    world.until(lambda: not any(m.ownership.remote_place(bundle) for m in members.values()))
    assert sent_to(world, c, of_c, authoritative) == "b"
    assert sent_to(world, members["b"], of_c, False) == "b", "it takes it"
    assert sent_to(world, a, of_c, authoritative) == "b"


def test_after_its_time_a_promise_holds_nobody_back(world: ClusterWorld) -> None:
    a, b, c = map(world.member, ("a", "b", "c"))
    taken(world, a, NAMES[0])
    released(world, a, NAMES[0], b)
    world.life.world.sleep(1)
    assert sent_to(world, c, NAMES[0], True) == "b"
    world.life.world.sleep(promises.PROMISE_S)
    assert sent_to(world, c, NAMES[0], True) == "c"
    assert not a.ownership._promises._own and not c.brokers._promises


def test_a_promise_ends_when_the_bundle_is_taken_and_with_the_broker_that_made_it(
    world: ClusterWorld,
) -> None:
    a, b, c = map(world.member, ("a", "b", "c"))
    bundle = taken(world, a, NAMES[0])
    released(world, a, NAMES[0], b)
    taken(world, b, NAMES[0])
    assert not a.ownership._promises._own and not c.brokers._promises
    released(world, b, NAMES[0], a)
    world.until(lambda: bool(c.brokers.told(str(bundle))))
    b.node.crash()
    world.until(lambda: not c.brokers.told(str(bundle)))
    assert sent_to(world, c, NAMES[0], True) == "c"


def test_a_bundle_that_moves_faster_than_brokers_learn_goes_where_it_was_sent_last(
    world: ClusterWorld,
) -> None:
    a, b = map(world.member, ("a", "b"))
    taken(world, a, NAMES[0])
    a.ownership._owner_changed = lambda path: None  # type: ignore[method-assign]
    a.ownership._owners._changed = None
    released(world, a, NAMES[0], b)
    taken(world, b, NAMES[0])
    assert a.ownership._promises._own, "it has not noticed that the bundle was taken"
    released(world, b, NAMES[0], a)
    world.life.world.sleep(0.5)
    assert sent_to(world, b, NAMES[0], False) == "a"
    assert sent_to(world, a, NAMES[0], True) == "a"


def test_of_several_destinations_the_last_one_counts(world: ClusterWorld) -> None:
    a, b, c = map(world.member, ("a", "b", "c"))
    for last in (c, None):
        bundle = taken(world, a, NAMES[0])
        a.holds = functools.partial(asyncio.sleep, 12.0)  # longer than a promise lasts
        for destination in (b, last):
            named = "" if destination is None else f"{destination.name}:8080"
            asking = a.node.create_task(a.ownership.release(bundle, named), name="unload")
            world.life.world.sleep(1)
            asking.cancel()  # the client hangs up
        a.holds = None
        given_back(world, a, bundle)
        world.life.world.sleep(0.5)
        a.ownership.withdraw(bundle, "b:8080")  # as the failed request does
        assert sent_to(world, a, NAMES[0], True) == ("a" if last is None else last.name)
        if last is not None:
            assert sent_to(world, b, NAMES[0], True) == last.name
            taken(world, c, NAMES[0])
            released(world, c, NAMES[0], a)


def test_a_bundle_is_given_back_even_if_nobody_can_be_told_where_it_goes(
    world: ClusterWorld, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = map(world.member, ("a", "b"))
    taken(world, a, NAMES[0])
    a.brokers.tell = AsyncMock(side_effect=NoAuth("/loadbalance"))  # type: ignore[method-assign]
    released(world, a, NAMES[0], b)
    assert "cannot tell other brokers its destination" in caplog.text
    taken(world, b, NAMES[0])


def test_of_very_many_promises_the_latest_are_told(world: ClusterWorld) -> None:
    """The value of a node has a limit: a larger one would end the connection to ZooKeeper."""
    a, b = map(world.member, ("a", "b"))
    world.life.world.sleep(0.5)
    bundles = [Bundle(f"public/n{number}", 0, 0xFFFFFFFF) for number in range(1001)]

    async def promise_all() -> None:
        for bundle in bundles:
            a.ownership._promises.make(bundle, "b:8080", 1.0)
        await a.ownership._promises.tell()

    world.call(a, promise_all())
    world.until(lambda: bool(b.brokers.told(str(bundles[-1]))))
    assert [bool(b.brokers.told(str(each))) for each in bundles] == [False] + 1000 * [True]


# --- answers to the administrator


def test_a_bundle_that_was_moved_can_be_moved_back_at_once(brokers: World) -> None:
    for asked, destination in ((brokers.one, brokers.two), (brokers.two, brokers.one)) * 2:
        reply = brokers.unload(asked, destination)
        assert reply.is_done, (reply.status, reply.body)
        assert destination.ownership.owns(brokers.name)


def test_any_broker_takes_a_bundle_when_the_one_that_was_named_cannot(brokers: World) -> None:
    brokers.two.crash()
    reply = brokers.unload(brokers.one, brokers.two)
    assert reply.status == 409 and b"did not take it" in reply.body, reply.body
    assert brokers.two.membership.broker_id in brokers.three.membership.brokers(), "for a while"
    brokers.cluster.world.sleep(0.5)  # much less than a promise lasts
    assert brokers.lookup(brokers.three) is None


def test_the_broker_that_was_named_may_learn_late_that_the_bundle_was_given_back(
    brokers: World,
) -> None:
    refresh = brokers.two.ownership._owners._refresh
    request = refresh.request

    def later() -> None:
        asyncio.get_running_loop().call_later(1.0, request)

    refresh.request = later  # type: ignore[method-assign]
    reply = brokers.unload(brokers.one, brokers.two)
    assert reply.is_done, (reply.status, reply.body)
    assert brokers.two.ownership.owns(brokers.name)
