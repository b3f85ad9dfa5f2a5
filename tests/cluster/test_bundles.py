"""Bundles are split, moved and released while clients continue."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from documents import ROOT, blocks
from rest import Rest
from txn_cluster import TxnBroker, TxnCluster

from managed_ledger.storage.zookeeper.operations import Node
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster.bundles import ClusterBundles
from pybroker.cluster.promises import PROMISE_S
from pybroker.commands.admin.main import group_parser
from pybroker.commands.admin.rest import Rest as CommandRest

NAMESPACE = "public/default"
DIVISION = f"/admin/local-policies/{NAMESPACE}"
BUNDLES = f"v2/namespaces/{NAMESPACE}"


class World:
    def __init__(self, **settings: Any) -> None:
        self.cluster = TxnCluster(0, serves_http=True, **settings)
        self.one, self.two = self.cluster.start("one"), self.cluster.start("two")
        self.rest, self.other_rest = Rest(self.cluster, self.one), Rest(self.cluster, self.two)

    def bundle_of(self, broker: TxnBroker, name: TopicName) -> Bundle:
        return next(each for each in broker.ownership.owned() if each.holds(name))

    def topics_of(self, broker: TxnBroker, count: int) -> list[TopicName]:
        """Loaded topics in one bundle of this broker, some in each half."""
        first = TopicName.parse(self.cluster.topic_of(broker))
        bundle = self.bundle_of(broker, first)
        names = (TopicName.parse(f"{broker.name}-{number}") for number in range(10_000))
        found = [next(names_of) for names_of in [filter(bundle.holds, names)] * count]
        for name in found:
            self.cluster.call(self.cluster.send(broker, str(name), b"x"))
        return found


def _division_known_to(broker: TxnBroker) -> tuple[tuple[int, ...], Node]:
    boundaries = broker.ownership._boundaries
    node = boundaries.node(NAMESPACE)
    assert node is not None
    return boundaries.known(NAMESPACE), node


def _believes(world: World, broker: TxnBroker, division: tuple[tuple[int, ...], Node]) -> None:
    """The broker forgets a later division."""
    boundaries = broker.ownership._boundaries
    world.cluster.until(lambda: boundaries.known(NAMESPACE) != division[0])
    boundaries._known[NAMESPACE], boundaries._mirror.nodes[DIVISION] = division


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.cluster.close()


def test_a_bundle_is_divided_and_its_topics_stay_open(world: World) -> None:
    names = world.topics_of(world.one, 8)
    bundle = world.bundle_of(world.one, names[0])
    before = [world.one.broker.topics.serving(name) for name in names]
    version = world.rest.get(f"{BUNDLES}/bundles")
    world.other_rest.do("PUT", f"{BUNDLES}/{bundle.range}/split")  # redirected
    assert [world.one.broker.topics.serving(name) for name in names] == before
    halves = {world.bundle_of(world.one, name) for name in names}
    assert len(halves) == 2 and bundle not in world.one.ownership.owned()
    assert {each.low for each in halves} | {each.high for each in halves} >= set(bundle[1:])
    for half in halves:
        assert len([name for name in names if half.holds(name)]) == 4
    for rest in (world.rest, world.other_rest):
        bundles = rest.get(f"{BUNDLES}/bundles")
        assert bundles["numBundles"] == version["numBundles"] + 1
        assert set(bundles["boundaries"]) > set(version["boundaries"])
        assert rest.get(f"v2/namespaces/{NAMESPACE}")["bundles"] == bundles
    world.cluster.call(world.cluster.send(world.two, str(names[0]), b"x"))
    assert world.rest.ask("PUT", f"{BUNDLES}/{bundle.range}/split").status == 404


def test_a_bundle_is_divided_where_it_is_said(world: World) -> None:
    names = world.topics_of(world.one, 1)
    bundle = world.bundle_of(world.one, names[0])
    outside = json.dumps([bundle.high]).encode()
    assert world.rest.ask("PUT", f"{BUNDLES}/{bundle.range}/split", outside).status == 412
    places = [bundle.low + 1000, bundle.low + 2000]
    world.rest.do("PUT", f"{BUNDLES}/{bundle.range}/split", json.dumps(places).encode())
    bounds = world.rest.get(f"{BUNDLES}/bundles")["boundaries"]
    assert {f"0x{place:08x}" for place in places} <= set(bounds)


def test_a_broker_that_knows_only_the_former_division_takes_nothing_of_it(world: World) -> None:
    names = world.topics_of(world.one, 4)
    bundle = world.bundle_of(world.one, names[0])
    division = _division_known_to(world.two)
    world.rest.do("PUT", f"{BUNDLES}/{bundle.range}/split", unload="true")
    _believes(world, world.two, division)
    found = world.cluster.world.call(
        world.two.node, world.two.ownership.lookup(names[0], authoritative=True)
    )
    assert found is None
    assert bundle not in world.two.ownership.owned()
    assert world.bundle_of(world.two, names[0]) != bundle


def test_a_namespace_is_unloaded_also_where_the_asked_broker_does_not_know_of_a_split(
    world: World,
) -> None:
    names = world.topics_of(world.one, 4)
    bundle, division = world.bundle_of(world.one, names[0]), _division_known_to(world.two)
    world.rest.do("PUT", f"{BUNDLES}/{bundle.range}/split")
    _believes(world, world.two, division)
    world.other_rest.do("PUT", f"{BUNDLES}/unload")
    assert not any(map(world.one.broker.topics.serving, names))


def test_halves_of_a_bundle_that_is_split_while_its_namespace_is_unloaded_are_unloaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = world.topics_of(world.one, 4)
    bundle = world.bundle_of(world.one, names[0])
    served_of, splits = ClusterBundles.served_of, [bundle]

    async def before_a_split(bundles: ClusterBundles, namespace: str) -> list[Bundle]:
        found = await served_of(bundles, namespace)
        for each in splits:
            await world.one.ownership.split(each, (each.low + each.high) // 2)
        splits.clear()
        return found

    monkeypatch.setattr(ClusterBundles, "served_of", before_a_split)
    world.rest.do("PUT", f"{BUNDLES}/unload")
    assert not splits and not any(map(world.one.broker.topics.serving, names))


def test_half_of_a_bundle_is_found_by_a_broker_that_does_not_know_of_the_split(
    world: World,
) -> None:
    (name,) = world.topics_of(world.one, 1)
    bundle, division = world.bundle_of(world.one, name), _division_known_to(world.two)
    world.rest.do("PUT", f"{BUNDLES}/{bundle.range}/split", unload="false")
    half = world.bundle_of(world.one, name)
    _believes(world, world.two, division)
    world.other_rest.do("PUT", f"{BUNDLES}/{half.range}/unload")
    assert world.one.broker.topics.serving(name) is None


def test_a_bundle_moves_to_the_broker_that_is_named_without_errors_at_clients(
    world: World,
) -> None:
    name = world.topics_of(world.one, 1)[0]
    bundle, cluster = world.bundle_of(world.one, name), world.cluster
    other = world.two.membership.broker_id
    client = cluster.client_at(world.one)
    producer = cluster.call(client.create_producer(str(name)))
    consumer = cluster.call(cluster.consumer(world.one, str(name), "kept"))
    cluster.call(producer.send(b"before"))
    path = f"{BUNDLES}/{bundle.range}/unload"
    world.other_rest.do("PUT", path, destinationBroker=other)
    assert world.two.ownership.owns(name)
    cluster.call(producer.send(b"behind"))
    received = [cluster.call(consumer.receive()).data() for _ in range(3)]
    assert received == [b"x", b"before", b"behind"]
    refusal = world.rest.ask("PUT", path, destinationBroker="nobody:1")
    assert refusal.status == 412 and other.encode() in refusal.body


def test_whoever_looks_a_promised_bundle_up_is_sent_to_the_broker_that_was_named(
    world: World,
) -> None:
    one, other = world.one, world.two.membership.broker_id
    name = world.topics_of(one, 1)[0]
    call = functools.partial(world.cluster.world.call, one.node)
    release = one.ownership.release(world.bundle_of(one, name), other)
    call(release)
    found = call(one.ownership.lookup(name, authoritative=True))
    assert found is not None and not found.serves
    assert found.address == one.ownership.brokers.all()[other].address
    world.cluster.world.sleep(PROMISE_S)
    assert call(one.ownership.lookup(name, authoritative=True)) is None, "nobody took it"


def test_a_bundle_with_too_many_topics_is_divided() -> None:
    world = World(load_balancer_namespace_bundle_max_topics=6)
    names = world.topics_of(world.one, 8)
    bundle = world.bundle_of(world.one, names[0])
    world.cluster.world.sleep(70)
    assert bundle not in world.one.ownership.owned()
    for half in {world.bundle_of(world.one, name) for name in names}:
        assert len([name for name in names if half.holds(name)]) == 4
    world.cluster.close()


@pytest.mark.slow
def test_a_bundle_with_too_many_consumers_is_divided_up_to_the_limit() -> None:
    world = World(
        load_balancer_namespace_bundle_max_sessions=3, load_balancer_namespace_maximum_bundles=5
    )
    names = world.topics_of(world.one, 4)
    for name in names:
        world.cluster.call(world.cluster.consumer(world.one, str(name), "kept"))
    world.cluster.world.sleep(200)
    assert world.rest.get(f"{BUNDLES}/bundles")["numBundles"] == 5
    world.cluster.close()


@pytest.mark.slow
def test_a_broker_that_joins_gets_its_share() -> None:
    world = World(default_number_of_namespace_bundles=16)
    topics = [f"orders-{number}" for number in range(40)]

    async def publish(broker: TxnBroker) -> None:
        for topic in topics:
            await world.cluster.send(broker, topic, b"x")

    world.cluster.call(publish(world.one))
    three = world.cluster.start("three")
    world.cluster.world.sleep(900)
    world.cluster.call(publish(three))  # lookups assign the released bundles
    counts = sorted(three.ownership.counts().values())
    assert counts[0] >= 3 and counts[-1] <= 8, counts
    world.cluster.world.sleep(300)
    assert sorted(three.ownership.counts().values()) == counts, "it has come to rest"
    world.cluster.close()


def test_the_documented_commands_do_what_they_say() -> None:
    """Sends the commands' requests to a simulated broker: the tool itself opens real sockets."""
    world = World(cluster_name="east")
    documented = next(b.text for b in blocks(ROOT / "docs/cluster.md") if "split-bundle" in b.text)

    class Asked(CommandRest):
        def ask(self, verb: str, path: str, body: Any = None, query: Any = None) -> Any:
            return world.rest.do(verb, f"v2/{path}", **(query or {}))

    answers = []
    for line in documented.splitlines():
        group, *words = line.split()[2:]
        chosen = group_parser(group).parse_args(words)
        answers.append(chosen.command_of_group.execute(Asked("http://127.0.0.1:1"), chosen))
    assert answers[0]["numBundles"] == 4 and len(answers[3]) == 2
    assert world.rest.get(f"{BUNDLES}/bundles")["numBundles"] == 5
    world.cluster.close()
