"""The reader that leaves out delayed entries, alone, over a log that records requests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from virtual_loop import LoopClock, run_virtually

from managed_ledger.housekeeper import Housekeeper
from pybroker.broker.dispatch import delayed
from pybroker.broker.dispatch.delayed import DelayPolicy, Delays, UndelayedReader
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.dispatch.delayed_index import FRESH_BYTES
from pybroker.broker.dispatch.delivery import MAX_RUN_ENTRIES, Delivery
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


class Log:
    """Stands in for the EntryReader: entries of ledger 0, in memory."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.entries: list[bytes] = []
        self.position = 0
        self.asked: list[int] = []
        self.most_messages: int | None = None
        self.rewinds = 0

    def add(self, *delays_s: float | None) -> None:
        for delay_s in delays_s:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
            if delay_s is not None:
                metadata.deliver_at_time = self._clock.now_ms() + round(delay_s * 1000)
            self.entries.append(build_entry(metadata, b""))

    def delivery(self, first: int, stop: int) -> Delivery:
        entries = self.entries[first:stop]
        return Delivery(0, range(first, first + len(entries)), entries, [1] * len(entries))

    def at_most(self, messages: int, size_bytes: int) -> tuple[int, int]:
        return min(messages, self.most_messages or messages), size_bytes

    def peek(self, max_messages: int, max_bytes: int) -> Delivery | None:
        self.asked.append(max_messages)
        if self.position == len(self.entries):
            return None
        return self.delivery(self.position, self.position + max_messages)

    def pass_over(self, delivery: Delivery) -> None:
        self.position = delivery.entry_ids[-1] + 1

    advance = pass_over

    def rewind(self) -> None:
        self.rewinds += 1
        self.position = 0


class World:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.log: Any = Log(self.clock)
        self.account = DelayedAccount(10 * FRESH_BYTES)
        self.resumed = 0
        housekeeper = Housekeeper()
        housekeeper.start()
        delays = Delays(lambda: DelayPolicy(True, 1, True), self.clock, housekeeper, self.account)
        self.reader = UndelayedReader(self.log, delays, self.resume)
        self.close = housekeeper.close

    def resume(self) -> None:
        self.resumed += 1

    def peek(self, messages: int = 100) -> list[int] | None:
        found = self.reader.peek(messages, 10**6)
        return None if found is None else list(found.entry_ids)

    def read(self, messages: int = 100) -> list[int] | None:
        """Peeks, and advances past what it found."""
        found = self.reader.peek(messages, 10**6)
        if found is not None and found.entries:
            self.reader.advance(found)
        return None if found is None else list(found.entry_ids)

    def due(self) -> list[int]:
        return [entry_id for _, entry_id in self.reader.take_due()]


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def go() -> None:
        world = World()
        await scenario(world)
        world.reader.forget()
        assert world.account.used_bytes == 0
        world.close()

    run_virtually(go())


def test_it_wakes_for_what_is_due_first_and_once_for_each_time() -> None:
    async def scenario(world: World) -> None:
        for delay_s in (50, 10):
            world.log.add(delay_s)
            assert world.read() == []
        await asyncio.sleep(9.9)
        assert world.resumed == 0
        await asyncio.sleep(0.2)
        assert (world.resumed, world.due()) == (1, [1])
        await asyncio.sleep(39.8)
        assert world.resumed == 1
        await asyncio.sleep(0.2)
        assert (world.resumed, world.due()) == (2, [0])
        await asyncio.sleep(100)
        assert world.resumed == 2

    run(scenario)


def test_a_long_delay_is_looked_at_on_its_way_and_wakes_once() -> None:
    async def scenario(world: World) -> None:
        world.log.add(200)
        world.read()
        await asyncio.sleep(199.9)
        assert world.resumed == 0
        await asyncio.sleep(0.2)
        assert (world.resumed, world.due()) == (1, [0])

    run(scenario)


def test_what_became_due_between_two_peeks_is_delivered_and_waits_no_more() -> None:
    async def scenario(world: World) -> None:
        world.log.add(5, None)
        assert world.peek() == [1]
        await asyncio.sleep(6)
        assert world.read() == [0, 1]
        assert (world.reader.delayed, world.log.position) == (0, 2)

    run(scenario)


def test_as_much_is_read_as_is_wanted_but_a_run_behind_nothing_but_delayed_ones() -> None:
    async def scenario(world: World) -> None:
        world.log.add(50, 50, 50, None, None, None, 50)
        assert [world.read(1) for _ in range(4)] == [[], [3], [4], [5]]
        assert world.log.asked == [1, MAX_RUN_ENTRIES, 1, 1]
        assert world.reader.delayed == 3
        assert world.read(1) == []
        world.reader.rewind()
        assert world.read(1) == []
        assert world.log.asked[4:] == [1, 1]

    run(scenario)


def test_no_more_than_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "MAX_DELAYED", 3)

    async def scenario(world: World) -> None:
        world.log.add(50, 50, 50)
        assert world.read() == []
        world.log.add(None)
        assert world.read() is None

    run(scenario)


def test_its_bytes_are_counted_while_it_waits() -> None:
    async def scenario(world: World) -> None:
        world.log.add(5, 50, None)
        world.read()
        assert world.reader.size_bytes == world.account.used_bytes == 2 * FRESH_BYTES
        await asyncio.sleep(6)
        assert world.due() == [0]
        assert world.reader.size_bytes == world.account.used_bytes == FRESH_BYTES
        world.reader.rewind()
        assert (world.reader.size_bytes, world.reader.delayed, world.log.rewinds) == (0, 0, 1)

    run(scenario)


def test_what_waits_again_is_remembered_once_and_wakes_in_time() -> None:
    async def scenario(world: World) -> None:
        world.log.add(5, None, 10)
        given_back = world.log.delivery(0, 3)
        for _ in range(2):
            assert set(world.reader.wait_again(given_back)) == {0, 2}
            # In the index, and again in the heap of new ones.
            assert world.reader.size_bytes == world.account.used_bytes == 4 * FRESH_BYTES
        await asyncio.sleep(5.1)
        assert (world.resumed, world.due()) == (1, [0])
        await asyncio.sleep(5)
        assert (world.resumed, world.due()) == (2, [2])
        assert world.reader.size_bytes == 0

    run(scenario)


def test_who_starts_over_does_not_wait_for_what_was_given_back() -> None:
    async def scenario(world: World) -> None:
        world.log.add(5)
        world.reader.wait_again(world.log.delivery(0, 1))
        world.reader.rewind()
        assert world.read() == []
        assert world.reader.delayed == 1
        await asyncio.sleep(6)
        assert world.due() == [0]

    run(scenario)


def test_a_dispatch_rate_bounds_what_is_due_too() -> None:
    async def scenario(world: World) -> None:
        world.log.add(*[5] * 8)
        world.read()
        await asyncio.sleep(6)
        world.log.most_messages = 5
        assert world.due() == [0, 1, 2, 3, 4]
        assert world.log.most_messages == 0

    run(scenario)


def test_who_starts_over_waits_for_no_room() -> None:
    async def scenario(world: World) -> None:
        world.account.changed(0, 20 * FRESH_BYTES)
        world.log.add(50, 50, None)
        assert (world.read(1), world.read(1)) == ([], None)
        world.reader.forget()
        world.account.changed(20 * FRESH_BYTES, 0)
        assert world.resumed == 0

    run(scenario)


def test_at_the_bound_there_is_room_for_holders_of_less_than_their_share() -> None:
    account = DelayedAccount(1000)
    assert account.has_room(10**6)
    account.changed(0, 500)
    account.changed(500, 1000)
    assert (account.has_room(499), account.has_room(500)) == (True, False)
    account.changed(0, 1)
    assert (account.has_room(332), account.has_room(333)) == (True, False)
    account.changed(1, 0)
    assert (account.has_room(499), account.has_room(500)) == (True, False)


def test_who_waits_for_room_goes_on_when_an_eighth_is_free() -> None:
    account, went_on = DelayedAccount(1000), list[str]()
    account.changed(0, 1000)
    account.wait(lambda: went_on.append("one"))
    account.changed(1000, 875)
    assert went_on == []
    account.changed(875, 874)
    account.changed(874, 0)
    assert went_on == ["one"]
