"""A topic that is deleted while it is made scalable is one or the other, on all brokers."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import pytest
from test_migration_over_brokers import MIGRATE, NAME, ORDERS, Pair, theirs
from txn_cluster import TxnBroker, hears_when_asked

from managed_ledger.position import EARLIEST
from pybroker.base.errors import PulsarError, ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import Conflict, MadeScalable, migration_key
from pybroker.broker.scalable.migration import Migration

PARTITIONS: Final = "v2/persistent/public/default/orders/partitions"


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    pair.serve_elsewhere()
    yield pair
    pair.cluster.close()


@pytest.fixture
def undivided() -> Iterator[Pair]:
    """A topic without partitions, at another broker than its scalable one would be."""
    pair = Pair(partitions=0)
    if pair.one.ownership.owns(ORDERS):
        pair.one, pair.two = pair.two, pair.one
        pair.rest, pair.other_rest = pair.other_rest, pair.rest
    pair.cluster.take(pair.one, NAME)
    yield pair
    pair.cluster.close()


def on(pair: Pair, broker: TxnBroker, work: Coroutine[Any, Any, Any]) -> Any:
    return pair.cluster.world.call(broker.node, work)


def is_there(pair: Pair) -> bool:
    """The ordinary topic, as a whole; False: nothing of it. On every broker."""
    found = set()
    for each in pair.cluster.brokers:
        on(pair, each, each.ownership.refreshed())
        topics, ledgers = each.broker.topics, each.broker.ledgers
        assert not topics.deletions.concerns(ORDERS)
        found |= {ledgers.exists(part.ledger_name) for part in pair.parts}
        if pair.parts != [ORDERS]:
            found.add(topics.tenants.partitions(ORDERS) == len(pair.parts))
    (there,) = found
    return there


def is_scalable(pair: Pair) -> bool:
    found = set()
    for each in pair.cluster.brokers:
        on(pair, each, each.ownership.refreshed())
        found.add(each.broker.topics.tenants.has_scalable_topic(NAME))
    (scalable,) = found
    return scalable


def decide_only(pair: Pair) -> None:
    """The migration is decided, and broker two does not hear of it."""
    others: Any = pair.one.broker.topics.others_of_parts
    leave = others.leave

    async def once(name: TopicName) -> None:
        others.leave = leave
        raise ServiceNotReady("it does not answer")

    others.leave = once
    hears_when_asked(pair.two)
    assert pair.rest.ask("POST", MIGRATE, force="true").status == 503


def test_what_was_made_scalable_is_not_deleted_as_an_ordinary_topic(pair: Pair) -> None:
    pair.rest.do("POST", MIGRATE)
    for rest in (pair.rest, pair.other_rest):
        for force in ("true", "false"):
            assert rest.ask("DELETE", PARTITIONS, force=force).status == 409
        assert rest.ask("POST", PARTITIONS, b"8").status == 409
        assert not rest.broker.broker.topics.tenants.doomed_partitions(ORDERS)
    pair.check_is_scalable()


def test_a_namespace_is_deleted_with_what_was_made_scalable_there() -> None:
    pair = Pair(partitions=0)
    rest, other = pair.rest, pair.other_rest
    rest.do("PUT", "v2/namespaces/public/shop")
    other.do("PUT", "v2/persistent/public/shop/orders/partitions", b"4")
    for number in range(4):
        pair.send(f"persistent://public/shop/orders-partition-{number}", b"before")
    other.do("PUT", "v2/persistent/public/shop/carts")
    for local in ("orders", "carts"):
        rest.do("POST", f"v2/scalable/public/shop/{local}/migrate", force="true")
    other.do("DELETE", "v2/namespaces/public/shop", force="true")
    assert rest.ask("GET", "v2/namespaces/public/shop").status == 404
    assert not pair.one.broker.ledgers.names("public/shop/")
    pair.cluster.close()


def test_a_partition_is_not_deleted_after_the_decision_of_which_its_broker_has_not_heard(
    pair: Pair,
) -> None:
    part = TopicName.parse(theirs(pair))
    decide_only(pair)
    with pytest.raises(MadeScalable):
        on(pair, pair.two, pair.two.broker.topics.delete(part, force=True))
    pair.rest.do("POST", MIGRATE)
    pair.check_is_scalable()


def test_a_topic_is_not_deleted_after_the_decision_of_which_its_broker_has_not_heard(
    undivided: Pair,
) -> None:
    decide_only(undivided)
    with pytest.raises(MadeScalable):
        on(undivided, undivided.two, undivided.two.broker.topics.delete(ORDERS, force=True))
    undivided.rest.do("POST", MIGRATE)
    undivided.check_is_scalable()


@pytest.mark.parametrize("what", ["partitions", "properties", "doom"])
def test_no_change_is_decided_after_the_decision_of_which_the_broker_has_not_heard(
    pair: Pair, what: str
) -> None:
    decide_only(pair)
    partitioned = pair.two.broker.topics.partitioned
    changes = {
        "partitions": lambda: partitioned.declare(ORDERS, 8),
        "properties": lambda: partitioned.change_properties(ORDERS, lambda _: {"a": "b"}),
        "doom": lambda: partitioned.doom(ORDERS),
    }
    with pytest.raises(Conflict):
        on(pair, pair.two, changes[what]())
    pair.rest.do("POST", MIGRATE)
    pair.check_is_scalable()


def test_a_subscription_that_is_made_after_the_decision_is_on_all_new_segments(pair: Pair) -> None:
    part = theirs(pair)
    decide_only(pair)

    async def subscribe() -> None:
        topic = await pair.two.broker.topics.get(part)
        assert topic is not None
        await topic.subscription("late", EARLIEST, {}, create=True)

    on(pair, pair.two, subscribe())
    pair.rest.do("POST", MIGRATE)
    for topic in pair.segments()[4:]:
        pair.send(topic, b"after")
        assert pair.read(topic, "late") == [b"after"]


def test_what_was_granted_and_where_the_broker_has_not_heard_of_it_comes_along(pair: Pair) -> None:
    hears_when_asked(pair.one)
    permissions = pair.two.broker.topics.permissions
    on(pair, pair.two, permissions.grant_on_topic(ORDERS, "ann", ["consume"]))
    pair.rest.do("POST", MIGRATE)
    granted = pair.one.broker.topics.permissions.grants("public/default").topics
    assert granted[str(NAME)] == granted[str(ORDERS)]


def test_what_is_granted_at_the_moment_of_the_migration_is_on_both_names(pair: Pair) -> None:
    """Broker two has not heard of it, and one has already looked at what was granted before."""
    decide_only(pair)
    pair.rest.do("POST", MIGRATE)
    permissions = pair.two.broker.topics.permissions
    on(pair, pair.two, permissions.grant_on_topic(ORDERS, "ann", ["consume"]))
    on(pair, pair.one, pair.one.ownership.refreshed())
    on(pair, pair.one, pair.one.broker.topics.permissions.grant_on_topic(NAME, "bob", ["consume"]))
    on(pair, pair.two, permissions.grant_on_topic(TopicName.parse("any"), "eve", ["produce"]))
    for each in (pair.one, pair.two):
        on(pair, each, each.ownership.refreshed())
        granted = each.broker.topics.permissions.grants("public/default").topics
        assert granted[str(NAME)] == granted[str(ORDERS)]
        assert sorted(granted[str(NAME)]) == ["ann", "bob"]


def meanwhile(pair: Pair, work: Coroutine[Any, Any, Any]) -> None:
    """Broker two does this after broker one has announced the migration, before it decides."""
    ownership: Any = pair.one.ownership
    refreshed, metadata = ownership.refreshed, pair.one.broker._backend.metadata

    async def late() -> None:
        await refreshed()
        if metadata.get(migration_key(ORDERS)) is not None:
            ownership.refreshed = refreshed
            pair.cluster.world.after(0.0, pair.two.node.create_task, work)
            await asyncio.sleep(2.0)

    ownership.refreshed = late


def test_a_topic_that_was_deleted_meanwhile_is_not_made_scalable(undivided: Pair) -> None:
    meanwhile(undivided, undivided.two.broker.topics.delete(ORDERS, force=True))
    assert undivided.rest.ask("POST", MIGRATE, force="true").status == 404
    assert not is_scalable(undivided) and not is_there(undivided)
    assert undivided.rest.ask("POST", MIGRATE, force="true").status == 404


def test_a_topic_whose_partitions_are_deleted_meanwhile_is_not_made_scalable(pair: Pair) -> None:
    meanwhile(pair, pair.two.broker.topics.partitioned.doom(ORDERS))
    assert pair.rest.ask("POST", MIGRATE, force="true").status == 404
    pair.cluster.until(lambda: not pair.one.broker.topics.tenants.doomed_partitions(ORDERS))
    pair.cluster.world.sleep(10.0)
    assert not is_scalable(pair) and not is_there(pair)


def test_a_topic_that_got_partitions_meanwhile_is_made_scalable_with_them(pair: Pair) -> None:
    meanwhile(pair, pair.two.broker.topics.partitioned.declare(ORDERS, 6))
    assert pair.rest.ask("POST", MIGRATE, force="true").status in (204, 409)
    if not is_scalable(pair):
        pair.rest.do("POST", MIGRATE, force="true")
    assert len(pair.segments()) == 12


def test_an_announcement_that_a_dead_broker_has_left_keeps_nobody_from_anything(
    pair: Pair,
) -> None:
    metadata = pair.one.broker._backend.metadata

    async def announce() -> None:
        await metadata.put(migration_key(ORDERS), b"{}")

    on(pair, pair.one, announce())
    pair.other_rest.do("POST", PARTITIONS, b"6")
    on(pair, pair.one, announce())
    pair.other_rest.do("DELETE", PARTITIONS, force="true")
    assert not is_there(pair)


def left_announcement(pair: Pair, what: Coroutine[Any, Any, Any] | None = None) -> None:
    """By broker one, which does `what` before. Broker two has heard of neither."""
    metadata = pair.one.broker._backend.metadata
    hears_when_asked(pair.two)
    on(pair, pair.one, pair.one.ownership.refreshed())
    if what is not None:
        on(pair, pair.one, what)

    async def announce() -> None:
        await metadata.put(migration_key(ORDERS), b"{}")

    on(pair, pair.one, announce())


def test_an_announcement_of_which_a_broker_has_not_heard_keeps_it_from_nothing(pair: Pair) -> None:
    left_announcement(pair)
    on(pair, pair.two, pair.two.broker.topics.partitioned.declare(ORDERS, 6))
    left_announcement(pair)
    pair.other_rest.do("PUT", "v2/persistent/public/default/orders/properties", b'{"a": "b"}')
    left_announcement(pair)
    other = TopicName.parse("persistent://public/default/other")
    on(pair, pair.two, pair.two.broker.topics.create_partitioned(other, 3))
    left_announcement(pair)
    pair.other_rest.do("DELETE", PARTITIONS, force="true")
    assert not is_there(pair)


@pytest.mark.parametrize("is_heard", [True, False])
def test_properties_are_changed_of_a_topic_as_large_as_it_is_by_then(
    pair: Pair, is_heard: bool
) -> None:
    """Not as it was when the request arrived: the last partitions would be gone."""
    left_announcement(pair, pair.one.broker.topics.partitioned.declare(ORDERS, 6))
    two = pair.two.broker
    if is_heard:
        on(pair, pair.two, two._backend.metadata.refresh(migration_key(ORDERS)))
    on(pair, pair.two, two.topics.partitioned.change_properties(ORDERS, lambda _: {"a": "b"}))
    on(pair, pair.one, pair.one.ownership.refreshed())
    for each in (pair.one, pair.two):
        tenants = each.broker.topics.tenants
        assert tenants.partitions(ORDERS) == 6
        assert tenants.partitioned_properties(ORDERS) == {"a": "b"}


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1])
@pytest.mark.parametrize("who", ["owner", "other"])
@pytest.mark.parametrize("first", ["migration", "deletion"])
def test_a_topic_is_deleted_or_made_scalable_whoever_dies_meanwhile(
    pair: Pair, after_s: float, who: str, first: str
) -> None:
    cluster, owner = pair.cluster, pair.owner()
    topics, metadata = owner.broker.topics, owner.broker._backend.metadata
    migration = Migration(topics, topics.scalable, metadata, topics._clock)
    doom = pair.two.broker.topics.partitioned.doom(ORDERS)

    async def tried(work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except PulsarError:
            return

    works = [(owner, migration.migrate(NAME, force=True)), (pair.two, doom)]
    for broker, work in works if first == "migration" else reversed(works):
        broker.node.start(tried(work))
        cluster.world.sleep(0.002)
    cluster.world.sleep(after_s)
    cluster.crash(owner if who == "owner" else pair.two)
    cluster.world.sleep(90.0)  # others finish what was begun
    cluster.take(cluster.brokers[0], NAME)
    pair.rest = pair.other_rest if who == "owner" else pair.rest
    if is_scalable(pair):
        assert pair.rest.ask("POST", MIGRATE, force="true").status in (204, 409)
        pair.check_is_scalable()
    elif is_there(pair):  # neither was decided
        for index, part in enumerate(pair.parts):
            assert pair.read(str(part), "away") == [b"before %d" % index]


def test_two_changes_of_a_topic_at_one_broker_are_one_after_the_other(pair: Pair) -> None:
    topics = pair.two.broker.topics

    async def twice() -> None:
        dooms = (topics.tenants.doom_partitions(ORDERS) for _ in range(2))
        await asyncio.gather(*(topics.change(ORDERS, each) for each in dooms))
        await asyncio.sleep(1.0)

    on(pair, pair.two, twice())
    assert not pair.cluster.world.failures
