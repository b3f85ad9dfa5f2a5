"""Topics in bundles of other brokers; the bundle of a name."""

import asyncio

import pytest
from topics_world import ORDERS, World, run

from pybroker.base.listeners import Listeners
from pybroker.base.names import TopicName, pending_ack_log
from pybroker.broker.brokers.bundle_release import release_topics
from pybroker.broker.brokers.ownership import (
    ALONE,
    LAST_HASH,
    BrokerAddress,
    Bundle,
    NotServedHere,
    OnAcquired,
    OnReleased,
    OtherOwner,
    hash_of,
)
from pybroker.broker.namespaces.tenants import Conflict, partitions_key
from pybroker.broker.topics import Topics
from pybroker.transaction.coordinator.log.transaction_log import log_name

OTHER = BrokerAddress("pulsar://other:6650")


class Some:
    """Owns the topics in its bundles."""

    def __init__(self, *bundles: Bundle) -> None:
        self.bundles = set(bundles)

    def owns(self, name: TopicName) -> bool:
        return any(each.holds(name) for each in self.bundles)

    async def owner_of(self, name: TopicName) -> BrokerAddress | None:
        return None if self.owns(name) else OTHER

    async def lookup(self, name: TopicName, authoritative: bool) -> OtherOwner | None:
        return None if self.owns(name) else OtherOwner(OTHER, Listeners(), True)

    async def range_of(self, name: TopicName) -> str:
        return "0x00000000_0xffffffff"

    async def refreshed(self) -> None:
        """No other broker writes here."""

    def on_change(self, acquired: OnAcquired, released: OnReleased) -> None:
        """The tests change ownership themselves."""


def halves(namespace: str = "public/default") -> tuple[Bundle, Bundle]:
    return Bundle(namespace, 0, 1 << 31), Bundle(namespace, 1 << 31, LAST_HASH)


def test_each_topic_is_in_exactly_one_bundle_of_its_namespace() -> None:
    lower, upper = halves()
    for number in range(200):
        name = TopicName.parse(f"t{number}")
        assert lower.holds(name) != upper.holds(name)
        assert not any(each.holds(name) for each in halves("public/other"))


def test_the_last_bundle_holds_the_last_hash() -> None:
    name = TopicName.parse("e0bgeqd")
    assert hash_of(name) == LAST_HASH
    lower, upper = halves()
    assert upper.holds(name) and not lower.holds(name)
    assert str(upper) == "public/default/0x80000000_0xffffffff"


def test_a_broker_that_is_alone_serves_everything() -> None:
    async def scenario(world: World) -> None:
        assert world.topics.ownership is ALONE
        assert ALONE.owns(ORDERS) and await ALONE.owner_of(ORDERS) is None
        await world.topic()

    run(scenario)


def test_a_topic_of_another_broker_is_neither_loaded_nor_created_nor_deleted() -> None:
    async def scenario(world: World) -> None:
        world.topics.ownership = Some()
        for work in (world.topic, lambda: world.topics.delete(ORDERS)):
            with pytest.raises(NotServedHere, match="redo the lookup"):
                await work()
        assert not world.exists()

    run(scenario)


def test_a_name_that_another_broker_has_just_freed_is_free() -> None:
    async def scenario(world: World) -> None:
        class Behind(Some):
            async def refreshed(self) -> None:
                await world.backend.metadata.delete(partitions_key(ORDERS))

        await world.topics.create_partitioned(ORDERS, 3)
        world.topics.ownership = Some()
        with pytest.raises(Conflict):
            await world.topics.create_partitioned(ORDERS, 4)
        world.topics.ownership = Behind()
        await world.topics.create_partitioned(ORDERS, 4)
        assert world.topics.tenants.partitions(ORDERS) == 4

    run(scenario)


def test_a_bundle_given_back_takes_its_topics_with_it() -> None:
    async def scenario(world: World) -> None:
        names = [TopicName.parse(f"t{number}") for number in range(8)]
        lower, upper = halves()
        owned = world.topics.ownership = Some(lower, upper)
        for name in names:
            await world.topic(name)
        owned.bundles.remove(lower)
        await release_topics(world.topics, world.factory, lower)
        await _only(world.topics, [name for name in names if upper.holds(name)])

    run(scenario)


def test_a_topic_that_is_being_loaded_when_its_bundle_goes_is_closed() -> None:
    async def scenario(world: World) -> None:
        lower, upper = halves()
        owned = world.topics.ownership = Some(lower, upper)
        world.topics._start_loading(ORDERS)
        owned.bundles.clear()
        await release_topics(world.topics, world.factory, lower if lower.holds(ORDERS) else upper)
        await _only(world.topics, [])

    run(scenario)


def test_a_log_that_a_topic_left_open_goes_with_its_bundle(caplog) -> None:
    async def scenario(world: World) -> None:
        lower, upper = halves()
        owned = world.topics.ownership = Some(lower, upper)
        mine, other = (lower, upper) if lower.holds(ORDERS) else (upper, lower)
        await world.topic()
        forgotten = await world.factory.open(pending_ack_log(ORDERS, "s"))
        coordinators = await world.factory.open(log_name(0))
        await release_topics(world.topics, world.factory, other)
        assert not forgotten.closed
        owned.bundles.remove(mine)
        await release_topics(world.topics, world.factory, mine)
        assert forgotten.closed
        assert not coordinators.closed

    run(scenario)
    assert [each.message for each in caplog.records] == [
        f"{pending_ack_log(ORDERS, 's')} was still open after its topic was released"
    ]


def test_an_opening_that_nobody_waits_for_ends_before_its_bundle_is_another_brokers() -> None:
    async def scenario(world: World) -> None:
        lower, upper = halves()
        opening = asyncio.ensure_future(world.factory.open(ORDERS.ledger_name))
        await asyncio.sleep(0)
        opening.cancel()
        await release_topics(world.topics, world.factory, lower if lower.holds(ORDERS) else upper)
        assert world.factory._opening == {}
        assert world.factory.open_count == 0

    run(scenario)


async def _only(topics: Topics, names: list[TopicName]) -> None:
    assert sorted(topics.loaded_names()) == sorted(names)
