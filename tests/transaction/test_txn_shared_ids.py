"""Transactional ids that several brokers share: each knows what the others have written."""

import asyncio
from dataclasses import replace

import pytest
from txn_world import World, in_world

from pybroker.base.errors import NotAllowed
from pybroker.transaction.coordinator import transactional_ids
from pybroker.transaction.coordinator.transactional_ids import (
    Overtaken,
    SessionRef,
    TransactionalId,
    TransactionalIds,
)

ORDERS, BILLS, MAILS = (TransactionalId("alice", name) for name in ("orders", "bills", "mails"))


def two_brokers(world: World, most: int = 0) -> tuple[TransactionalIds, TransactionalIds]:
    known = world.coordinators.ids
    config = replace(
        world.config,
        max_transactional_ids_per_principal=most,
        transactional_id_expiration_ms=1000,
    )
    one, two = (TransactionalIds(known._metadata, known._clock, config) for _ in range(2))
    for ids in (one, two):
        ids.share()
        ids.load()
    return one, two


@in_world
async def test_a_session_that_began_at_another_broker_fences_here(world: World) -> None:
    one, two = two_brokers(world)
    assert not one.are_any
    first = await one.begin(ORDERS, "first")
    assert one.are_any and two.are_any
    assert two.get(ORDERS) == one.get(ORDERS) is not None
    assert await two.begin(ORDERS, "second") == SessionRef(ORDERS, 2)
    assert one.is_fenced(first)
    assert one.get(ORDERS) == two.get(ORDERS)


@in_world
async def test_of_two_brokers_that_begin_at_once_one_is_overtaken(world: World) -> None:
    one, two = two_brokers(world)
    for epoch in (1, 2):
        made = await asyncio.gather(
            one.begin(ORDERS, "a"), two.begin(ORDERS, "b"), return_exceptions=True
        )
        assert SessionRef(ORDERS, epoch) in made
        assert sum(isinstance(each, Overtaken) for each in made) == 1


@in_world
async def test_ids_of_all_brokers_count_once_until_they_expire(world: World) -> None:
    one, two = two_brokers(world, most=2)
    for _ in range(3):
        await one.begin(ORDERS, "")
    await two.begin(BILLS, "")
    for ids in (one, two):
        with pytest.raises(NotAllowed, match="already 2 transactional ids"):
            await ids.begin(MAILS, "")
    await asyncio.sleep(2)
    assert await one.expire(ORDERS)
    assert (two.get(ORDERS), len(two)) == (None, 1)
    await two.begin(MAILS, "")
    with pytest.raises(NotAllowed, match="already 2 transactional ids"):
        await one.begin(ORDERS, "")


@in_world
async def test_no_broker_assigns_the_epoch_of_an_expired_id_again(world: World) -> None:
    one, two = two_brokers(world)
    for _ in range(3):
        await one.begin(ORDERS, "")
    await asyncio.sleep(2)
    assert await one.expire(ORDERS)
    assert await two.begin(ORDERS, "") == SessionRef(ORDERS, 4)
    _, later = two_brokers(world)
    assert await later.begin(BILLS, "") == SessionRef(BILLS, 4)


@in_world
async def test_an_id_that_is_used_elsewhere_meanwhile_does_not_expire(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ORDERS, "")
    await asyncio.sleep(2)
    world.storage.holding = True
    expiring = asyncio.ensure_future(one.expire(ORDERS))
    beginning = asyncio.ensure_future(two.begin(ORDERS, ""))
    await asyncio.sleep(0.1)
    world.storage.release()
    await asyncio.wait([expiring, beginning])
    begun = not beginning.exception()
    assert expiring.result() is not begun, "one of the two comes first"
    assert (one.get(ORDERS) is not None) == begun == (two.get(ORDERS) is not None)


@in_world
async def test_a_record_that_cannot_be_read_changes_nothing(world: World) -> None:
    one, two = two_brokers(world)
    await one.begin(ORDERS, "")
    before = two.get(ORDERS)
    await one._metadata.put(transactional_ids._key(ORDERS), b"\xff")
    assert two.get(ORDERS) == before
