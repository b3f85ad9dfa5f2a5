"""Bundle ownership: races, redirects, expiry and release, on a simulated ZooKeeper."""

import asyncio
import json
from collections.abc import Awaitable

import pytest
from cluster_world import BUNDLES, TIMEOUT_MS, ClusterWorld, Member
from sim_ledger import until
from sim_zookeeper import ADDRESS

from managed_ledger.errors import DirectoryInUse
from managed_ledger.storage.bookkeeper import move_lock
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.session import SessionState
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import BrokerAddress
from pybroker.cluster.bundle_ownership import path_of
from pybroker.cluster.node_values import (
    boundaries_value,
    equal_boundaries,
    owner_of,
    owner_value,
)

NAMES = [TopicName.parse(f"persistent://public/default/t{number}") for number in range(40)]
ORDERS = NAMES[0]


def owners(world: ClusterWorld, members: list[Member], name: TopicName) -> list[Member]:
    """The members that serve the topic, after lookups until one of them serves it."""
    asked, authoritative = members[0], False
    for _ in range(10):
        found = world.call(asked, asked.ownership.lookup(name, authoritative))
        if found is None:
            break
        asked = next(each for each in members if each.place.address == found.address)
        authoritative = not found.serves
    return [each for each in members if each.ownership.owns(name)]


def test_each_topic_has_one_owner_and_everybody_names_it(world: ClusterWorld) -> None:
    members = [world.member(name) for name in ("a", "b", "c")]
    for name in NAMES:
        (owner,) = owners(world, members, name)
        for each in members:
            expected = None if each is owner else owner.place.address.broker_url
            world.until(lambda each=each, name=name: knows(each, name))
            assert world.owner(each, name) == expected
    shares = [len(each.ownership.owned()) for each in members]
    assert sum(shares) == BUNDLES and max(shares) <= 2


def knows(member: Member, name: TopicName) -> bool:
    """Whether the member's mirror shows the owner of the bundle."""
    bundle = member._boundaries.bundle_of(name)
    owns = member.ownership.owns(name)
    return bundle is not None and (owns or member.ownership.remote_place(bundle) is not None)


def test_no_broker_joins_a_cluster_whose_data_are_being_moved(world: ClusterWorld) -> None:
    """Nor is such a broker listed: the move would wait for it to stop."""
    member = world.member("a")
    world.call(member, member.stop())
    mover = world.life.node("mover")
    zookeeper = ZooKeeper(ADDRESS, world.life.world.stream("mover"), TIMEOUT_MS)
    world.life.world.call(mover, zookeeper.open())
    world.life.world.call(mover, move_lock.hold(zookeeper))
    with pytest.raises(DirectoryInUse, match="start brokers afterwards"):
        world.member("b")
    assert world.life.world.call(mover, zookeeper.children(move_lock.BROKERS_PATH)) == []
    world.life.world.call(mover, zookeeper.close())
    world.member("c")


def test_of_two_that_take_a_bundle_at_once_one_gets_it(world: ClusterWorld) -> None:
    first, second = world.member("a"), world.member("b")
    tasks = [
        each.node.create_task(each.ownership.lookup(ORDERS, True), name="lookup")
        for each in (first, second)
    ]
    world.until(lambda: all(task.done() for task in tasks))
    found = [task.result() for task in tasks]
    assert sorted(each is None for each in found) == [False, True]
    (loser,) = (each for each in found if each is not None)
    winner = first if found[0] is None else second
    assert loser.address == winner.place.address and loser.serves
    assert [each.ownership.owns(ORDERS) for each in (first, second)].count(True) == 1


def test_two_lookups_at_once_take_a_bundle_once(world: ClusterWorld) -> None:
    member = world.member("a")
    world.call(member, member.ownership.range_of(ORDERS))  # so that the lookups need not wait
    asking = [
        member.node.create_task(member.ownership.lookup(ORDERS, True), name="lookup")
        for _ in range(2)
    ]
    world.until(lambda: all(task.done() for task in asking))
    assert [task.result() for task in asking] == [None, None]
    assert [what for what, _ in member.events] == ["came"]
    assert not world.life.world.failures


def test_a_broker_that_should_not_take_a_bundle_names_the_one_that_should(
    world: ClusterWorld,
) -> None:
    first, second = world.member("a"), world.member("b")
    world.until(lambda: len(first.brokers.all()) == len(second.brokers.all()) == 2)
    found = [world.call(each, each.ownership.lookup(ORDERS, False)) for each in (first, second)]
    # A broker that was asked first, and should not take the bundle, has taken nothing.
    (taker,) = [each for each, told in zip((first, second), found, strict=True) if told is None]
    other = second if taker is first else first
    assert not other.ownership.owned() and len(taker.ownership.owned()) == 1
    if found[0] is not None:
        assert not found[0].serves


def test_a_bundle_is_served_only_when_the_metadata_has_caught_up(world: ClusterWorld) -> None:
    member = world.member("a")
    late = asyncio.Event()
    member.ownership._caught_up = late.wait  # type: ignore[assignment]
    asking = member.node.create_task(member.ownership.owner_of(ORDERS), name="lookup")
    world.life.world.sleep(1.0)
    assert not asking.done() and not member.ownership.owns(ORDERS) and not member.events
    world.call(member, _set(late))
    world.until(asking.done)
    assert member.ownership.owns(ORDERS) and [what for what, _ in member.events] == ["came"]


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_the_bundles_of_a_killed_broker_go_to_others_when_its_session_ends(
    world: ClusterWorld,
) -> None:
    first, second = world.member("a"), world.member("b")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    world.until(lambda: knows(second, ORDERS))
    killed_s = world.life.world.now
    first.node.crash()
    assert world.owner(second, ORDERS) == first.place.address.broker_url
    bundle = second._boundaries.bundle_of(ORDERS)
    assert bundle is not None
    world.until(lambda: second.ownership.remote_place(bundle) is None)
    world.until(lambda: list(second.brokers.all()) == ["b:8080"])
    assert world.life.world.now - killed_s < TIMEOUT_MS / 1000 + 1
    assert world.owner(second, ORDERS) is None and second.ownership.owns(ORDERS)


def test_without_a_connection_nothing_is_owned_for_sure(world: ClusterWorld) -> None:
    member = world.member("a")
    world.owner(member, ORDERS)
    connection = member.zookeeper._connection
    assert connection is not None
    world.call(member, _cut(member))
    assert member.zookeeper.state is SessionState.SUSPENDED
    assert not member.ownership.owns(ORDERS)
    with pytest.raises(ServiceNotReady, match="not connected to ZooKeeper"):
        world.owner(member, ORDERS)
    world.until(lambda: member.ownership.owns(ORDERS))
    assert [what for what, _ in member.events] == ["came"]


async def _cut(member: Member) -> None:
    connection = member.zookeeper._connection
    assert connection is not None and connection._transport is not None
    connection._transport.abort()
    await until(lambda: member.zookeeper.state is not SessionState.CONNECTED)


def test_a_session_that_was_ended_by_force_serves_nothing(world: ClusterWorld) -> None:
    first, second = world.member("a"), world.member("b")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    world.until(lambda: knows(second, ORDERS))
    world.life.tree.sessions[first.zookeeper.session_id].heard_s = -1e9
    world.until(lambda: first.zookeeper.state is SessionState.EXPIRED)
    assert not first.ownership.owns(ORDERS)
    world.until(lambda: list(second.brokers.all()) == ["b:8080"])
    world.until(lambda: not second.ownership._owners.nodes.get(_path(second)))
    assert world.owner(second, ORDERS) is None


def _path(member: Member) -> str:
    bundle = member._boundaries.bundle_of(ORDERS)
    assert bundle is not None
    return path_of(bundle)


def test_a_broker_that_stops_gives_its_bundles_back_when_they_are_closed(
    world: ClusterWorld,
) -> None:
    first, second = world.member("a"), world.member("b")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    closed = asyncio.Event()

    async def slow() -> None:
        await closed.wait()

    first.holds = slow
    stopping = first.node.create_task(first.stop(), name="stop")
    world.until(lambda: list(second.brokers.all()) == ["b:8080"])
    world.life.world.sleep(1.0)
    assert not stopping.done() and not first.ownership.owns(ORDERS)
    assert world.owner(second, ORDERS) == first.place.address.broker_url
    with pytest.raises(ServiceNotReady, match="being released"):
        world.owner(first, ORDERS)
    world.call(first, _set(closed))
    world.until(stopping.done)
    world.until(lambda: not second.ownership._owners.nodes.get(_path(second)))
    assert world.owner(second, ORDERS) is None


def test_a_bundle_comes_back_only_when_its_topics_are_closed(world: ClusterWorld) -> None:
    """Closing takes longer than a release waits: topics that are still loaded are out of date."""
    first, second = world.member("a"), world.member("b")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    closed = asyncio.Event()

    async def slow() -> None:
        await closed.wait()

    first.holds = slow
    (bundle,) = first.ownership.owned()
    world.call(first, first.ownership.release(bundle))
    world.until(lambda: second.ownership.remote_place(bundle) is None)
    assert world.call(second, second.ownership.lookup(ORDERS, True)) is None
    world.until(lambda: first.ownership.remote_place(bundle) is not None)
    assert world.owner(first, ORDERS) == second.place.address.broker_url
    world.call(second, second.ownership.release(bundle))
    world.until(lambda: first.ownership.remote_place(bundle) is None)
    with pytest.raises(ServiceNotReady, match="being released"):
        world.call(first, first.ownership.lookup(ORDERS, True))
    world.call(first, _set(closed))
    world.until(lambda: first.events[-1][0] == "goes")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    assert [what for what, _ in first.events] == ["came", "goes", "came"]


def test_what_one_part_cannot_close_does_not_keep_the_others_open(world: ClusterWorld) -> None:
    member = world.member("a")
    assert world.call(member, member.ownership.lookup(ORDERS, True)) is None

    async def fails() -> None:
        raise ServiceNotReady("its ledger is fenced")

    member.holds = fails
    closed: list[object] = []

    async def goes(bundle: object) -> None:
        closed.append(bundle)

    member.ownership.on_change(lambda bundle: None, goes)
    bundles = member.ownership.owned()
    world.call(member, member.ownership.release(bundles[0]))
    assert closed == bundles


def test_a_broker_that_stops_sends_clients_elsewhere(world: ClusterWorld) -> None:
    first, second = world.member("a"), world.member("b")
    world.until(lambda: len(first.brokers.all()) == 2)
    world.call(first, first.brokers.leave())
    world.call(first, first.ownership.give_all_back())
    for authoritative in (False, True):
        found = world.call(first, first.ownership.lookup(ORDERS, authoritative))
        assert found.address == second.place.address and not found.serves
    assert not first.ownership.owned()


def test_a_stopped_broker_alone_has_nobody_to_name(world: ClusterWorld) -> None:
    member = world.member("a")
    world.call(member, member.brokers.leave())
    world.call(member, member.ownership.give_all_back())
    with pytest.raises(ServiceNotReady, match="this broker is stopping"):
        world.owner(member, ORDERS)


def test_a_node_that_another_client_deletes_ends_the_ownership(world: ClusterWorld) -> None:
    first, second = world.member("a"), world.member("b")
    assert world.call(first, first.ownership.lookup(ORDERS, True)) is None
    world.call(second, second.zookeeper.delete(_path(first)))
    world.until(lambda: not first.ownership.owns(ORDERS))
    world.until(lambda: [what for what, _ in first.events] == ["came", "goes"])
    world.until(lambda: not second.ownership._owners.nodes.get(_path(second)))
    assert world.call(second, second.ownership.lookup(ORDERS, True)) is None


def test_a_restarted_broker_waits_for_the_end_of_its_earlier_session(world: ClusterWorld) -> None:
    first = world.member("a")
    first.node.crash()
    killed_s = world.life.world.now
    again = world.member("a")
    assert world.life.world.now - killed_s > TIMEOUT_MS / 2000
    assert world.owner(again, ORDERS) is None


DIVISION = "/admin/local-policies/public/default"


@pytest.mark.parametrize("value", [b"", boundaries_value(equal_boundaries(3))])
def test_bundles_of_a_former_division_are_given_back(world: ClusterWorld, value: bytes) -> None:
    member, other = world.member("a"), world.member("b")
    for name in NAMES:
        world.call(member, member.ownership.lookup(name, True))
    former = member.ownership.owned()
    assert len(former) == BUNDLES
    changing = other.zookeeper.set(DIVISION, value) if value else other.zookeeper.delete(DIVISION)
    world.call(other, changing)
    world.until(lambda: not member.ownership.owned())
    world.until(lambda: not [path for path in world.life.tree.nodes if "_0x" in path])
    assert sorted(bundle for what, bundle in member.events if what == "goes") == sorted(former)
    world.call(member, member.ownership.lookup(ORDERS, True))
    assert member.ownership.owns(ORDERS)


def test_bundles_stay_where_they_are_while_their_division_cannot_be_read(
    world: ClusterWorld,
) -> None:
    member, other = world.member("a"), world.member("b")
    world.call(member, member.ownership.lookup(ORDERS, True))
    good = world.life.tree.nodes[DIVISION].value
    world.call(other, other.zookeeper.set(DIVISION, b"damaged"))
    world.until(lambda: not member.ownership.owns(ORDERS))
    world.call(other, other.zookeeper.set(DIVISION, good))
    world.until(lambda: member.ownership.owns(ORDERS))
    assert [what for what, _ in member.events] == ["came"]


def test_owners_values_are_apache_pulsars_own(world: ClusterWorld) -> None:
    member = world.member("a")
    world.owner(member, ORDERS)
    assert json.loads(world.life.tree.nodes[_path(member)].value) == {
        "nativeUrl": "pulsar://a:6650",
        "nativeUrlTls": None,
        "httpUrl": "http://a:8080",
        "httpUrlTls": None,
        "disabled": False,
        "advertisedListeners": {},
    }
    assert owner_of(owner_value(member.place)) == member.place


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"nativeUrl": 7}', b"\xff", b"[" * 99_999])
def test_a_node_that_names_no_broker_has_no_owner(value: bytes) -> None:
    assert owner_of(value) is None


def test_an_address_may_lack_urls() -> None:
    found = owner_of(b'{"nativeUrl": "pulsar://x:1", "advertisedListeners": {"l": null}}')
    assert found is not None and found.address == BrokerAddress("pulsar://x:1")


def test_no_two_sessions_own_a_bundle_whatever_breaks(world: ClusterWorld) -> None:
    """Connections break, brokers are killed and sessions end, while clients look up topics."""
    rng, tree = world.life.world.stream("chaos"), world.life.tree
    members = {name: world.member(name) for name in "abc"}
    started = 0
    for _ in range(60):
        name = rng.choice(list(members))
        member = members[name]
        what = rng.choice(("ask", "ask", "ask", "cut", "kill", "expire", "release", "split"))
        if what == "ask" and member.zookeeper.state is SessionState.CONNECTED:
            topic, taken = rng.choice(NAMES), rng.random() < 0.5
            member.node.create_task(_ask(member, topic, taken), name="ask")
        elif what == "release" and member.ownership.owned():
            bundle = rng.choice(member.ownership.owned())
            work = member.ownership.release(bundle)
            member.node.create_task(_tried(work), name="release")
        elif what == "split" and member.ownership.owned():
            bundle = rng.choice(member.ownership.owned())
            at = rng.randrange(bundle.low + 1, bundle.high)
            member.node.create_task(_tried(member.ownership.split(bundle, at)), name="split")
        elif what == "cut" and world.life.world.network.connections:
            rng.choice(world.life.world.network.connections).break_off(ConnectionResetError("cut"))
        elif what == "expire":
            if (session := tree.sessions.get(member.zookeeper.session_id)) is not None:
                session.heard_s = -1e9
        elif what == "kill" and rng.random() < 0.3:
            member.node.crash()
        if member.node.dead or member.zookeeper.state is SessionState.EXPIRED:
            started += 1
            members[name] = world.member(name)
        world.life.world.sleep(rng.choice((0.0, 0.001, 0.05, 0.5)))
        _judge(world, list(members.values()))
    assert started


def _judge(world: ClusterWorld, members: list[Member]) -> None:
    tree = world.life.tree
    for member in members:
        if member.node.dead or member.zookeeper.session_id not in tree.sessions:
            continue
        splitting = member.ownership._splitting  # the halves are not in use yet
        for bundle in member.ownership.owned():
            if any(each.low <= bundle.low and bundle.high <= each.high for each in splitting):
                continue
            node = tree.nodes.get(path_of(bundle))
            assert node is not None and node.owner == member.zookeeper.session_id, bundle


async def _ask(member: Member, topic: TopicName, authoritative: bool) -> None:
    try:
        await member.ownership.lookup(topic, authoritative)
    except ServiceNotReady:
        return


async def _tried(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        return
