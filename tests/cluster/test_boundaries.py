"""The division of namespaces into bundles, on a simulated ZooKeeper."""

import json
from contextlib import suppress

import pytest
from cluster_world import BUNDLES, METADATA, ClusterWorld

from managed_ledger.errors import BadVersion
from managed_ledger.storage.backend import KeyAt
from managed_ledger.storage.bookkeeper.key_paths import path_of
from managed_ledger.storage.zookeeper.client import ZooKeeper
from managed_ledger.storage.zookeeper.errors import ConnectionLoss, NoNode
from managed_ledger.storage.zookeeper.operations import Operation
from pybroker.base.errors import MetadataError
from pybroker.base.names import TopicName
from pybroker.broker.namespaces.tenants import GOING, NotFound

ORDERS = TopicName.parse("persistent://public/default/orders")
SHOP = "acme/shop"
DIVISION, POLICIES = f"/admin/local-policies/{SHOP}", f"/admin/policies/{SHOP}"
MARK = KeyAt(f"{GOING}{SHOP}/1", 0)


def test_bundles_are_divided_once_for_all_brokers(world: ClusterWorld) -> None:
    first, second = world.member("a"), world.member("b")
    second._boundaries._default = b'{"bundles": {"boundaries": ["0x0", "0xffffffff"]}}'
    tasks = [
        each.node.create_task(each._boundaries.of(ORDERS), name="of") for each in (first, second)
    ]
    world.until(lambda: all(task.done() for task in tasks))
    assert tasks[0].result() == tasks[1].result()


def test_a_namespace_that_is_gone_is_not_divided_any_more(world: ClusterWorld) -> None:
    member = world.member("a")
    name = TopicName.parse("acme/shop/orders")
    for path in (POLICIES, path_of(METADATA, MARK.key)):
        world.life.tree.make(path)
    assert world.call(member, member.ownership.lookup(name, True)) is None
    world.call(member, member.zookeeper.delete(POLICIES))
    world.call(member, member._boundaries.forget(SHOP, MARK))
    with pytest.raises(NotFound):
        world.call(member, member.ownership.lookup(name, True))
    assert DIVISION not in world.life.tree.nodes


@pytest.mark.parametrize("is_answered", [True, False])
def test_who_ends_the_deletion_of_a_namespace_late_leaves_the_division_of_a_new_one(
    world: ClusterWorld, is_answered: bool
) -> None:
    """Another broker has finished the deletion. The answer to the late broker may be lost."""
    member, multi = world.member("a"), ZooKeeper.multi
    world.life.tree.make(DIVISION)

    async def lost(zookeeper: ZooKeeper, operations: list[Operation]) -> list[int]:
        with suppress(NoNode):
            await multi(zookeeper, operations)
        raise ConnectionLoss("the answer is lost")

    with pytest.MonkeyPatch.context() as patch:
        if not is_answered:
            patch.setattr(ZooKeeper, "multi", lost)
        with pytest.raises(BadVersion):
            world.call(member, member._boundaries.forget(SHOP, MARK))
    assert DIVISION in world.life.tree.nodes


def test_the_division_of_a_deleted_namespace_is_deleted_although_the_answer_is_lost(
    world: ClusterWorld,
) -> None:
    member, multi = world.member("a"), ZooKeeper.multi
    for path in (DIVISION, path_of(METADATA, MARK.key)):
        world.life.tree.make(path)

    async def lost(zookeeper: ZooKeeper, operations: list[Operation]) -> list[int]:
        await multi(zookeeper, operations)
        raise ConnectionLoss("the answer is lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZooKeeper, "multi", lost)
        world.call(member, member._boundaries.forget(SHOP, MARK))
    assert DIVISION not in world.life.tree.nodes


def test_a_namespace_that_is_deleted_while_it_is_divided_leaves_no_division(
    world: ClusterWorld,
) -> None:
    member, other, multi = world.member("a"), world.member("b"), ZooKeeper.multi
    world.life.tree.make(POLICIES)

    async def late(zookeeper: ZooKeeper, operations: list[Operation]) -> list[int]:
        with suppress(NoNode):
            await other.zookeeper.delete(POLICIES)
        return await multi(zookeeper, operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZooKeeper, "multi", late)
        with pytest.raises(NotFound):
            world.call(member, member._boundaries.divide(SHOP, 3))
    assert DIVISION not in world.life.tree.nodes


def test_a_namespace_is_divided_as_requested_even_if_it_is_divided_already(
    world: ClusterWorld,
) -> None:
    member = world.member("a")
    world.life.tree.make(POLICIES)
    for bundles in (3, 3, 5):
        world.call(member, member._boundaries.divide(SHOP, bundles))
        assert len(world.call(member, member._boundaries.current(SHOP))) == bundles
    assert world.life.tree.nodes[DIVISION].version == 1


def test_what_apache_pulsar_wrote_beside_the_bundles_stays(world: ClusterWorld) -> None:
    path = "/admin/local-policies/public/default"
    world.life.tree.make(path)
    world.life.tree.nodes[path].value = b'{"bundles": null, "namespaceAntiAffinityGroup": "x"}'
    member = world.member("a")
    world.owner(member, ORDERS)
    stored = json.loads(world.life.tree.nodes[path].value)
    assert stored["namespaceAntiAffinityGroup"] == "x"
    assert stored["bundles"]["numBundles"] == BUNDLES


@pytest.mark.parametrize(
    "value", [b"nothing", b"[" * 100_000, b"[]", b'{"bundles": {"boundaries": ["0x1", "0x0"]}}']
)
def test_boundaries_that_cannot_be_read_are_refused(world: ClusterWorld, value: bytes) -> None:
    path = "/admin/local-policies/public/default"
    world.life.tree.make(path)
    world.life.tree.nodes[path].value = value
    member = world.member("a")
    with pytest.raises(MetadataError, match="boundaries"):
        world.owner(member, ORDERS)
