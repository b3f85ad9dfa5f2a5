"""Entries that are not in memory: what is read, how often, and what is kept."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from dispatch_fakes import FakeTopic, with_topic

from managed_ledger.errors import CorruptStorage
from managed_ledger.position import Position
from pybroker.broker.dispatch import entry_fetcher
from pybroker.broker.dispatch.entry_fetcher import EntryFetcher

PLENTY = 10**6


def at(entry_id: int) -> Position:
    return Position(0, entry_id)


class World:
    """A topic of ten entries, on disk only."""

    def __init__(self, topic: FakeTopic) -> None:
        self.topic = topic
        self.resumed = 0
        self.damaged: list[CorruptStorage] = []
        self.fetcher = EntryFetcher(topic.ledger, topic.tasks, self.resume, self.found_damage)

    def resume(self) -> None:
        self.resumed += 1

    def found_damage(self, damage: CorruptStorage, at: Position | None) -> None:
        self.damaged.append(damage)

    def ids(self, first: int, up_to: int = 9, most: int = 100) -> list[int] | None:
        """The ids of the entries that are available at once; None if none are."""
        run = self.fetcher.fetch(at(first), at(up_to), most, PLENTY)
        if run is None:
            return None
        assert len(run.entries) == len(run.message_counts)
        return list(range(run.first_entry_id, run.first_entry_id + len(run.entries)))

    async def read(self, first: int, up_to: int = 9) -> list[int] | None:
        assert self.ids(first, up_to) is None
        await self.topic.settled()
        return self.ids(first, up_to)

    @property
    def reads(self) -> int:
        reads: int = self.topic.ledger.reads
        return reads


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def go(topic: FakeTopic) -> None:
        await topic.publish(10)
        topic.ledger.warm = False
        await scenario(World(topic))

    with_topic(go)


def test_one_read_is_under_way_at_a_time() -> None:
    async def scenario(world: World) -> None:
        assert (world.ids(0), world.ids(0), world.ids(5)) == (None, None, None)
        await world.topic.settled()
        assert (world.reads, world.resumed) == (1, 1)
        assert world.ids(0) == list(range(10))

    run(scenario)


def test_what_was_read_is_cut_to_what_is_asked_for() -> None:
    async def scenario(world: World) -> None:
        assert await world.read(2) == [2, 3, 4, 5, 6, 7, 8, 9]
        assert world.ids(3, 5) == [3, 4, 5]
        assert world.ids(3, 9, most=2) == [3, 4]
        assert world.reads == 1

    run(scenario)


def test_right_behind_what_was_read_another_read_begins() -> None:
    async def scenario(world: World) -> None:
        assert await world.read(0, 4) == [0, 1, 2, 3, 4]
        assert await world.read(5) == [5, 6, 7, 8, 9]
        assert world.reads == 2

    run(scenario)


def test_what_is_asked_for_behind_it_frees_what_was_read() -> None:
    async def scenario(world: World) -> None:
        assert await world.read(0, 4) == [0, 1, 2, 3, 4]
        world.topic.ledger.warm = True
        assert world.ids(5, 5) == [5]
        world.topic.ledger.warm = False
        assert world.ids(0) is None

    run(scenario)


@pytest.mark.parametrize(("position", "kept"), [(5, True), (9, True), (10, False), (11, False)])
def test_what_was_read_is_kept_until_all_of_it_is_passed(position: int, kept: bool) -> None:
    async def scenario(world: World) -> None:
        await world.read(2)
        world.fetcher.passed(at(position))
        assert (world.ids(4) is not None) is kept

    run(scenario)


def test_what_is_dropped_is_read_again() -> None:
    async def scenario(world: World) -> None:
        await world.read(0)
        world.fetcher.drop()
        assert await world.read(0) == list(range(10))
        assert world.reads == 2

    run(scenario)


def test_what_is_dropped_while_it_is_read_does_not_come() -> None:
    async def scenario(world: World) -> None:
        assert world.ids(0, 4) is None
        await asyncio.sleep(0)
        assert world.reads == 1
        world.fetcher.drop()
        await world.topic.settled()
        assert (world.ids(0, 4), world.resumed) == (None, 1)

    run(scenario)


def test_a_disk_that_does_not_answer_is_asked_again_after_a_pause() -> None:
    async def scenario(world: World) -> None:
        world.topic.ledger.failures = 1
        assert world.ids(0) is None
        for _ in range(20):
            await asyncio.sleep(0)
        assert (world.reads, world.resumed) == (1, 0)

    run(scenario)


def test_after_the_pause_a_waiter_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_fetcher, "READ_RETRY_S", 0)

    async def scenario(world: World) -> None:
        world.topic.ledger.failures = 1
        assert world.ids(0) is None
        await world.topic.settled()
        assert world.resumed == 1
        assert await world.read(0) == list(range(10))

    run(scenario)
