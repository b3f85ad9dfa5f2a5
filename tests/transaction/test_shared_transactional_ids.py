"""Transactional ids shared by two brokers with the same metadata."""

import asyncio
from typing import Any

import pytest
from txn_world import World, in_world, in_world_with

from pybroker.base.errors import NotAllowed
from pybroker.transaction.coordinator.sessions.transactional_ids import (
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


@in_world
async def test_a_broker_that_is_late_does_not_let_expire_what_was_begun_anew(world: World) -> None:
    """The new record has the same version as the one that the late broker would delete."""
    one, late = two_brokers(world)
    other = TransactionalId("alice", "other")
    await one.begin(other, "")
    await one.begin(ID, "")
    await asyncio.sleep(8 * DAY_S)
    assert await one.expire(other)  # epochs start at 2 from now on
    table, connected = world.storage.metadata, asyncio.Event()

    class Late:
        """The metadata as the late broker sees it: its writes are delayed."""

        get = staticmethod(table.get)

        def put(self, *put: Any) -> Any:
            return asyncio.ensure_future(self._later(table.put, put))

        def delete(self, *deleted: Any) -> Any:
            return asyncio.ensure_future(self._later(table.delete, deleted))

        async def _later(self, change: Any, arguments: Any) -> Any:
            await connected.wait()
            return await change(*arguments)

    late._metadata = Late()  # type: ignore[assignment]
    expiring = asyncio.ensure_future(late.expire(ID))
    await asyncio.sleep(0)
    assert await one.expire(ID)
    anew = await one.begin(ID, "")
    assert anew == (ID, 2)
    connected.set()
    assert not await expiring
    assert await one.begin(ID, "") == (ID, 3)
    assert one.is_fenced(anew)


@in_world_with(max_transactional_ids_per_principal=3)
async def test_an_id_counts_once_while_it_begins_and_after_that(world: World) -> None:
    ids, names = two_brokers(world)[0], [TransactionalId("alice", each) for each in "abcd"]
    counted: list[int] = []
    world.storage.metadata.watch("", lambda key: counted.append(ids._of_owner["alice"]))
    world.storage.holding = True
    beginning = [asyncio.ensure_future(ids.begin(each, "")) for each in names]
    await asyncio.sleep(0.1)
    world.storage.release()
    results = await asyncio.gather(*beginning, return_exceptions=True)
    assert [isinstance(each, NotAllowed) for each in results] == [False] * 3 + [True]
    assert counted == [3] * 3
    assert await ids.begin(names[0], "") == (names[0], 2)


@in_world
async def test_a_session_that_begins_while_a_use_is_noted_is_not_overtaken_by_that(
    world: World,
) -> None:
    ids, _ = two_brokers(world)
    await ids.begin(ID, "")
    await asyncio.sleep(2 * DAY_S)
    world.storage.holding = True
    noting = asyncio.ensure_future(ids.used(ID))
    await asyncio.sleep(0.1)
    beginning = asyncio.ensure_future(ids.begin(ID, ""))
    await asyncio.sleep(0.1)
    world.storage.release()
    assert await beginning == (ID, 2)
    await noting
