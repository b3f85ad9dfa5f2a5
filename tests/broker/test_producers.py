"""Producers: access modes, epochs and names. Tests can delay the storing of an epoch."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from pybroker.base.errors import (
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
    TopicTerminated,
)
from pybroker.broker.persistent.producers import AccessMode, Producer, Producers, ProducerState

SHARED, EXCLUSIVE = AccessMode.SHARED, AccessMode.EXCLUSIVE
WAIT, FENCING = AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING


@dataclass
class Owner:
    closed: list[str] = field(default_factory=list)

    def close_producer(self, producer: Producer, reason: str) -> None:
        self.closed.append(producer.name)


class Epochs:
    """Stores at once, or after `release` if `hold` was called; fails while there is an `error`."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.error: Exception | None = None
        self._fails_once = False
        self._free = asyncio.Event()
        self._free.set()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def fail_once(self, error: Exception) -> None:
        self.error, self._fails_once = error, True

    async def store(self, epoch: int) -> None:
        await self._free.wait()
        if (error := self.error) is not None:
            if self._fails_once:
                self.error = None
            raise error
        self.stored.append(epoch)


class World:
    def __init__(self) -> None:
        self.epochs = Epochs()
        self.producers = Producers("orders", None, self.epochs.store)
        self.granted: list[str] = []
        self.refused: list[str] = []

    def make(
        self, name: str, mode: AccessMode = SHARED, owner: Owner | None = None, **fields: Any
    ) -> Producer:
        return Producer(1, name, owner or Owner(), access_mode=mode, **fields)

    async def add(self, producer: Producer) -> bool:
        def granted(error: PulsarError | None) -> None:
            (self.granted if error is None else self.refused).append(producer.name)

        return await self.producers.add(producer, granted)

    async def added(self, name: str, mode: AccessMode = SHARED, **fields: Any) -> Producer:
        producer = self.make(name, mode, **fields)
        await self.add(producer)
        return producer


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        await scenario(World())

    asyncio.run(go())


def test_shared_producers_write_side_by_side() -> None:
    async def scenario(world: World) -> None:
        first, second = await world.added("a"), await world.added("b")
        assert first.state is second.state is ProducerState.WRITING
        assert world.epochs.stored == []

    run(scenario)


@pytest.mark.parametrize("mode", [EXCLUSIVE, FENCING, WAIT])
def test_an_exclusive_producer_alone_owns_the_topic(mode: AccessMode) -> None:
    async def scenario(world: World) -> None:
        owner = await world.added("a", mode)
        assert (owner.state, owner.topic_epoch) == (ProducerState.WRITING, 0)
        assert world.epochs.stored == [0]
        with pytest.raises(ProducerBusy):
            await world.added("b")
        with pytest.raises(ProducerFenced):
            await world.added("c", EXCLUSIVE)

    run(scenario)


def test_waiting_producers_get_in_one_after_the_other() -> None:
    async def scenario(world: World) -> None:
        first = await world.added("a")
        second, third = await world.added("b", WAIT), await world.added("c", WAIT)
        assert second.state is third.state is ProducerState.WAITING
        await world.producers.remove(first)
        assert world.granted == ["b"]
        await world.producers.remove(second)
        assert world.granted == ["b", "c"]
        assert third.topic_epoch == 1

    run(scenario)


def test_waiters_are_not_overtaken() -> None:
    async def scenario(world: World) -> None:
        await world.added("a")
        await world.added("b", WAIT)
        with pytest.raises(ProducerBusy):
            await world.added("c")

    run(scenario)


def test_who_fences_drives_out_everybody() -> None:
    async def scenario(world: World) -> None:
        owner = Owner()
        others = [
            await world.added("a", owner=owner),
            await world.added("b", owner=owner),
            await world.added("c", WAIT, owner=owner),
        ]
        newest = await world.added("d", FENCING)
        assert newest.state is ProducerState.WRITING
        assert {other.state for other in others} == {ProducerState.FENCED}
        assert (owner.closed, world.refused) == (["a", "b"], ["c"])
        assert world.producers.all() == [newest]

    run(scenario)


def test_who_is_fenced_before_its_epoch_is_durable_never_writes() -> None:
    async def scenario(world: World) -> None:
        world.epochs.hold()
        slow, fast = world.make("slow", EXCLUSIVE), world.make("fast", FENCING)
        adding = [asyncio.ensure_future(world.add(producer)) for producer in (slow, fast)]
        await asyncio.sleep(0)
        world.epochs.release()
        outcomes = await asyncio.gather(*adding, return_exceptions=True)
        assert isinstance(outcomes[0], ProducerFenced)
        assert outcomes[1] is True
        assert (slow.state, fast.state) == (ProducerState.FENCED, ProducerState.WRITING)
        assert fast.topic_epoch == 1

    run(scenario)


def test_who_leaves_before_its_epoch_is_durable_is_not_granted() -> None:
    async def scenario(world: World) -> None:
        first = await world.added("a")
        second, third = await world.added("b", WAIT), await world.added("c", WAIT)
        world.epochs.hold()
        leaving = asyncio.ensure_future(world.producers.remove(first))
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(world.producers.remove(second))
        await asyncio.sleep(0)
        world.epochs.release()
        await asyncio.gather(leaving, gone)
        assert world.granted == ["c"]
        assert third.state is ProducerState.WRITING

    run(scenario)


def test_a_waiter_that_cannot_be_admitted_delays_no_later_one() -> None:
    async def scenario(world: World) -> None:
        first = await world.added("a")
        await world.added("b", WAIT)
        third = await world.added("c", WAIT)
        world.epochs.hold()
        leaving = asyncio.ensure_future(world.producers.remove(first))
        await asyncio.sleep(0)
        world.epochs.fail_once(OSError("disk full"))
        world.epochs.release()
        await leaving  # succeeds: the failure is the waiter's
        assert (world.granted, world.refused) == (["c"], ["b"])
        assert third.state is ProducerState.WRITING

    run(scenario)


def test_who_waits_for_one_that_did_not_get_in_gets_in() -> None:
    async def scenario(world: World) -> None:
        world.epochs.hold()
        entering = asyncio.ensure_future(world.added("a", EXCLUSIVE))
        await asyncio.sleep(0)
        second = await world.added("b", WAIT)
        world.epochs.fail_once(OSError("disk full"))
        world.epochs.release()
        with pytest.raises(OSError, match="disk full"):
            await entering
        assert world.granted == ["b"]
        assert second.state is ProducerState.WRITING

    run(scenario)


def test_who_is_fenced_while_its_epoch_is_stored_is_told_so() -> None:
    async def scenario(world: World) -> None:
        first = await world.added("a")
        await world.added("b", WAIT)
        world.epochs.hold()
        entering = asyncio.ensure_future(world.producers.remove(first))
        await asyncio.sleep(0)
        fencing = asyncio.ensure_future(world.added("c", FENCING))
        await asyncio.sleep(0)
        world.epochs.release()
        await asyncio.gather(entering, fencing)
        assert (world.granted, world.refused) == ([], ["b"])

    run(scenario)


def test_an_epoch_that_cannot_be_stored_leaves_the_topic_free() -> None:
    async def scenario(world: World) -> None:
        world.epochs.error = OSError("disk full")
        with pytest.raises(OSError, match="disk full"):
            await world.added("a", EXCLUSIVE)
        world.epochs.error = None
        assert (await world.added("b")).state is ProducerState.WRITING

    run(scenario)


def test_a_reconnection_replaces_an_older_one_even_while_it_waits() -> None:
    async def scenario(world: World) -> None:
        dead = Owner()
        first = await world.added("a")
        await world.added("b", WAIT, owner=dead)
        again = await world.added("b", WAIT, epoch=1)
        assert (dead.closed, world.refused) == ([], ["b"])
        await world.producers.remove(first)
        assert again.state is ProducerState.WRITING

    run(scenario)


@pytest.mark.parametrize("mode", [SHARED, WAIT])
def test_a_name_in_use_is_busy_for_every_client(mode: AccessMode) -> None:
    async def scenario(world: World) -> None:
        owner = Owner()
        await world.added("a", owner=owner)
        with pytest.raises(ProducerBusy):
            await world.added("a", mode, owner=owner)

    run(scenario)


def test_an_exclusive_owner_that_reconnects_stays_the_owner() -> None:
    async def scenario(world: World) -> None:
        first = await world.added("a", EXCLUSIVE)
        await world.added("b", WAIT)
        again = await world.added("a", EXCLUSIVE, epoch=1, topic_epoch=0)
        assert first.state is ProducerState.FENCED
        assert (again.state, again.topic_epoch) == (ProducerState.WRITING, 1)
        assert world.granted == []

    run(scenario)


def test_an_older_topic_epoch_was_fenced() -> None:
    async def scenario(world: World) -> None:
        for name in ("a", "b"):
            await world.producers.remove(await world.added(name, EXCLUSIVE))
        with pytest.raises(ProducerFenced):
            await world.added("a", EXCLUSIVE, topic_epoch=0)
        assert (await world.added("c", topic_epoch=0)).state is ProducerState.WRITING

    run(scenario)


def test_no_client_joins_a_topic_that_closes() -> None:
    async def scenario(world: World) -> None:
        owner = Owner()
        await world.added("a", owner=owner)
        await world.added("b", WAIT, owner=owner)
        world.producers.disconnect_all(ServiceNotReady("unloaded"))
        assert (owner.closed, world.refused) == (["a"], ["b"])
        assert len(world.producers) == 0
        with pytest.raises(ServiceNotReady, match="unloaded"):
            await world.added("c")

    run(scenario)


def test_waiters_are_refused_when_none_can_be_admitted_any_more() -> None:
    async def scenario(world: World) -> None:
        owner = Owner()
        await world.added("a", owner=owner)
        await world.added("b", WAIT, owner=owner)
        world.producers.disconnect_all(TopicTerminated("terminated"))
        assert (owner.closed, world.refused) == (["a"], ["b"])

    run(scenario)


def test_who_becomes_owner_while_the_topic_closes_comes_again() -> None:
    async def scenario(world: World) -> None:
        world.epochs.hold()
        adding = asyncio.ensure_future(world.added("a", EXCLUSIVE))
        await asyncio.sleep(0)
        world.producers.disconnect_all(ServiceNotReady("unloaded"))
        world.epochs.release()
        with pytest.raises(ServiceNotReady):
            await adding

    run(scenario)


def test_removing_twice_removes_once() -> None:
    async def scenario(world: World) -> None:
        old = await world.added("a")
        await world.producers.remove(old)
        new = await world.added("a")
        await world.producers.remove(old)
        assert world.producers.all() == [new]

    run(scenario)
