"""Transactional ids that several brokers share: two of them with the same metadata."""

import asyncio

import pytest
from txn_world import World, in_world, in_world_with

from pybroker.base.errors import NotAllowed
from pybroker.transaction.coordinator.transactional_ids import (
    Overtaken,
    SessionRef,
    TransactionalId,
    TransactionalIds,
)

ID = TransactionalId("alice", "orders")
DAY_S = 86_400.0


def two_brokers(world: World) -> list[TransactionalIds]:
    brokers = []
    for _ in range(2):
        ids = TransactionalIds(world.storage.metadata, world.clock, world.config)
        ids.share()
        ids.load()
        brokers.append(ids)
    return brokers


@in_world
async def test_all_brokers_know_an_epoch_that_one_has_recorded(world: World) -> None:
    one, two = two_brokers(world)
    assert await one.begin(ID, "a") == (ID, 1)
    assert await two.begin(ID, "b") == (ID, 2)
    assert one.is_fenced(SessionRef(ID, 1))
    assert one.get(ID) == two.get(ID)


@in_world
async def test_of_two_brokers_that_begin_at_once_one_is_overtaken(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ID, "")
    begun = await asyncio.gather(one.begin(ID, "a"), two.begin(ID, "b"), return_exceptions=True)
    assert begun[0] == (ID, 2)
    assert isinstance(begun[1], Overtaken)
    assert await two.begin(ID, "b") == (ID, 3)


@in_world
async def test_a_use_that_another_broker_notes_at_once_does_no_harm(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ID, "")
    await asyncio.sleep(2 * DAY_S)
    await asyncio.gather(one.used(ID), two.used(ID), two.begin(ID, "b"), return_exceptions=True)
    assert await one.begin(ID, "") >= (ID, 2)
    assert one.get(ID) == two.get(ID)


@in_world
async def test_an_epoch_is_not_given_again_by_another_broker(world: World) -> None:
    one, two = two_brokers(world)
    for _ in range(3):
        await one.begin(ID, "")
    await asyncio.sleep(8 * DAY_S)
    assert await one.expire(ID)
    assert two.get(ID) is None
    assert await two.begin(ID, "") == (ID, 4)


@in_world
async def test_a_floor_that_two_brokers_raise_does_not_go_down(world: World) -> None:
    one, two = two_brokers(world)
    other = TransactionalId("alice", "other")
    for _ in range(3):
        await one.begin(ID, "")
    await two.begin(other, "")
    await asyncio.sleep(8 * DAY_S)
    await asyncio.gather(one.expire(ID), two.expire(other))
    for ids in (one, two):
        await ids.expire(ID)
        await ids.expire(other)
    assert await two.begin(other, "") == (other, 4)


@in_world
async def test_an_id_that_another_broker_uses_meanwhile_stays(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ID, "")
    await asyncio.sleep(8 * DAY_S)
    using = asyncio.ensure_future(two.used(ID))
    expired = await one.expire(ID)
    await using
    assert (one.get(ID) is None) == (two.get(ID) is None) == expired
    assert await two.begin(ID, "") == (ID, 2)


@in_world_with(max_transactional_ids_per_principal=2)
async def test_ids_of_all_brokers_count(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ID, "")
    await two.begin(TransactionalId("alice", "other"), "")
    for ids in (one, two):
        with pytest.raises(NotAllowed, match="already 2"):
            await ids.begin(TransactionalId("alice", "third"), "")
        assert (await ids.begin(ID, "")).epoch > 1
    await asyncio.sleep(8 * DAY_S)
    assert await two.expire(ID)
    assert await one.begin(TransactionalId("alice", "third"), "")


@in_world
async def test_an_id_that_cannot_be_read_stays_as_it_was(world: World) -> None:
    one, _ = two_brokers(world)
    await one.begin(ID, "")
    (key,) = world.storage.metadata.keys("transactional-ids/")
    await world.storage.metadata.put(key, b"\xff")
    assert one.is_fenced(SessionRef(ID, 0))
    assert len(one) == 1
