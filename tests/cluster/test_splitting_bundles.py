"""Events of a bundle and of its node in ZooKeeper while it is being split."""

import asyncio
from collections.abc import Awaitable

import pytest
from cluster_world import ClusterWorld, Member

from managed_ledger.storage.zookeeper.errors import ConnectionLoss, ZooKeeperError
from managed_ledger.storage.zookeeper.operations import Operation
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName
from pybroker.broker.brokers.ownership import Bundle
from pybroker.cluster.balancing import Balancing, BundleSize
from pybroker.cluster.bundle_ownership import FormerBundle, path_of

ORDERS = TopicName.parse("persistent://public/default/orders")
DIVISION = "/admin/local-policies/public/default"


def test_who_unloads_a_bundle_that_is_being_split_learns_of_it(world: ClusterWorld) -> None:
    member = world.member("a")
    world.call(member, member.ownership.lookup(ORDERS, True))
    (bundle,) = member.ownership.owned()
    middle = (bundle.low + bundle.high) // 2
    splitting = member.node.create_task(member.ownership.split(bundle, middle), name="split")
    world.until(lambda: bundle in member.ownership._splitting)
    with pytest.raises(FormerBundle):
        world.call(member, member.ownership.release(bundle))
    assert splitting.done() and len(member.ownership.owned()) == 2


def _splits_when(member: Member, meanwhile: Awaitable[None], loses: bool) -> asyncio.Task[None]:
    """Split; `meanwhile` runs before the split reaches ZooKeeper, or after a lost answer."""
    (bundle,) = member.ownership.owned()
    multi = member.zookeeper.multi

    async def delayed(operations: list[Operation]) -> list[int]:
        member.zookeeper.multi = multi  # type: ignore[method-assign]
        if not loses:
            await meanwhile
            return await multi(operations)
        await multi(operations)
        await meanwhile
        raise ConnectionLoss("the answer is lost")

    member.zookeeper.multi = delayed  # type: ignore[method-assign]
    middle = (bundle.low + bundle.high) // 2
    work = _tried(member.ownership.split(bundle, middle))
    return member.node.create_task(work, name="split")


def test_a_bundle_whose_node_is_deleted_while_it_is_being_split_is_not_served_any_more(
    world: ClusterWorld,
) -> None:
    member, other = world.member("a"), world.member("b")
    world.call(member, member.ownership.lookup(ORDERS, True))
    (bundle,) = member.ownership.owned()

    async def take_away() -> None:
        await member.zookeeper.delete(path_of(bundle))  # as another client might
        await asyncio.sleep(1.0)  # until the broker knows

    splitting = _splits_when(member, take_away(), loses=False)
    world.until(splitting.done)
    world.until(lambda: not member.ownership.owns(ORDERS))
    world.until(lambda: [what for what, _ in member.events] == ["came", "goes"])
    assert world.call(other, other.ownership.lookup(ORDERS, True)) is None


@pytest.mark.parametrize("divided", [False, True])
def test_a_split_whose_answer_is_lost_leaves_no_node_without_a_broker(
    world: ClusterWorld, divided: bool
) -> None:
    """The division is deleted meanwhile, or not."""
    member, other = world.member("a"), world.member("b")
    world.call(member, member.ownership.lookup(ORDERS, True))

    async def forget() -> None:
        if divided:
            await member.zookeeper.delete(DIVISION)
        await asyncio.sleep(1.0)

    splitting = _splits_when(member, forget(), loses=True)
    world.until(splitting.done)
    world.life.world.sleep(1.0)
    served = {path_of(bundle) for bundle in member.ownership.owned()}
    assert {path for path in world.life.tree.nodes if "_0x" in path} == served
    assert len(served) == (0 if divided else 2)
    assert (member.ownership.owns(ORDERS), other.ownership.owns(ORDERS)) == (not divided, False)


async def _tried(work: Awaitable[None]) -> None:
    try:
        await work
    except (ServiceNotReady, ZooKeeperError):
        return


def test_a_bundle_that_was_split_meanwhile_does_not_keep_others_from_being_divided(
    world: ClusterWorld,
) -> None:
    member = world.member("a")
    for name in ("orders", "copies", "events", "users"):
        world.call(member, member.ownership.lookup(TopicName.parse(name), True))
    bundles = member.ownership.owned()
    assert len(bundles) > 1
    tried: list[Bundle] = []

    async def split(bundle: Bundle, at: int) -> None:
        tried.append(bundle)
        raise FormerBundle(bundle)

    member.ownership.split = split  # type: ignore[method-assign]
    config = BrokerConfig(
        load_balancer_namespace_bundle_max_topics=1, load_balancer_shedding_enabled=False
    )
    balancing = Balancing(
        member.ownership,
        member.ownership._boundaries,
        lambda bundle: BundleSize([bundle.low, bundle.high - 1], 0),
        config,
    )
    world.call(member, balancing.balance())
    assert tried == bundles


@pytest.mark.parametrize(
    "hashes, parts",
    [
        ([7, 7, 7], [[7, 7, 7]]),
        ([0, 7, 7, 7], [[0], [7, 7, 7]]),
        ([0, 0, 0, 7], [[0, 0, 0], [7]]),
        ([0, 7, 7, 7, 8, 9], [[0], [7, 7, 7], [8], [9]]),
    ],
)
def test_topics_of_one_hash_as_the_segments_of_a_scalable_topic_divide_no_bundle(
    world: ClusterWorld, hashes: list[int], parts: list[list[int]]
) -> None:
    """Their number counts, but halves of the range cannot part them, however narrow they are."""
    member = world.member("a")
    world.call(member, member.ownership.lookup(ORDERS, True))
    (whole,) = member.ownership.owned()

    def within(bundle: Bundle) -> list[int]:
        return [each for each in hashes if bundle.low <= whole.low + each < bundle.high]

    balancing = Balancing(
        member.ownership,
        member.ownership._boundaries,
        lambda bundle: BundleSize([whole.low + each for each in within(bundle)], 0),
        BrokerConfig(
            load_balancer_namespace_bundle_max_topics=1, load_balancer_shedding_enabled=False
        ),
    )
    for _ in range(len(hashes) + 1):
        world.call(member, balancing.balance())
    assert [within(each) for each in sorted(member.ownership.owned())] == parts
