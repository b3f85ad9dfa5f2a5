"""The reader of compacted entries, alone: what a peek returns, and the position after it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol
from unittest.mock import patch

import pytest
from dispatch_fakes import FakeTopic, with_topic

from managed_ledger.errors import CorruptStorage, DamagedEntries, LedgerClosed
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from pybroker.broker.compaction import compacted_log
from pybroker.broker.compaction.compacted_log import CompactedLog, Kept, encode
from pybroker.broker.dispatch import compacted_reader
from pybroker.broker.dispatch.compacted_reader import CompactedReader
from pybroker.broker.dispatch.delivery import Delivery
from pybroker.broker.dispatch.entry_reader import EntryReader

PLENTY = 10**6


class Compaction:
    """Holds what `keep` was given. Reading waits for `open`, or raises an error from `failures`."""

    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic
        self.horizon: Position | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.logs = 0

    async def keep(self, *kept: Kept, horizon: Position) -> None:
        self.logs += 1
        self._ledger = await self._topic.factory.open(f"kept-{self.logs}")
        for each in kept:
            await self._ledger.append_one(encode(each), each.messages)
        self.horizon = horizon

    async def log(self) -> CompactedLog:
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        return CompactedLog(self._ledger)


class World:
    """A topic of ten entries and its compacted reader."""

    def __init__(self, topic: FakeTopic, cursor: Any) -> None:
        self.topic, self.cursor = topic, cursor
        self.resumed = 0
        self.damaged: list[CorruptStorage] = []
        anything: Any = topic
        self.compaction = anything.compaction = Compaction(topic)
        self.reader = EntryReader(topic, cursor, self.resume, self.found_damage)
        self.compacted = CompactedReader(
            anything, cursor, self.reader, self.resume, self.found_damage
        )

    async def some_turns(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def acknowledge(self, *entry_ids: int) -> None:
        for entry_id in entry_ids:
            self.cursor.delete(0, entry_id)

    def resume(self) -> None:
        self.resumed += 1

    def found_damage(self, damage: CorruptStorage, at: Position | None) -> None:
        self.damaged.append(damage)

    async def keep(self, *kept: Kept, horizon: Position) -> None:
        await self.compaction.keep(*kept, horizon=horizon)

    async def peek(self, messages: int = 100, size_bytes: int = PLENTY) -> Delivery | None:
        """Peeks again after the reads are done if the first peek found nothing."""
        found = self.compacted.peek(messages, size_bytes)
        if found is None:
            await self.topic.settled()
            found = self.compacted.peek(messages, size_bytes)
        return found

    async def ids(self, messages: int = 100, size_bytes: int = PLENTY) -> list[int] | None:
        found = await self.peek(messages, size_bytes)
        return None if found is None else list(found.entry_ids)


class Scenario(Protocol):
    def __call__(self, world: World) -> Coroutine[Any, Any, None]: ...


def run(scenario: Scenario) -> None:
    async def go(topic: FakeTopic) -> None:
        cursor = await topic.ledger.open_cursor("sub", EARLIEST)
        await topic.publish(10)
        await scenario(World(topic, cursor))

    with_topic(go)


def at(entry_id: int, ledger_id: int = 0) -> Position:
    return Position(ledger_id, entry_id)


def kept(entry_id: int, messages: int = 1, bits: int | None = None, ledger_id: int = 0) -> Kept:
    return Kept(at(entry_id, ledger_id), b"x" * 10, messages, bits)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(1, [0]), (10, [0]), (11, [0, 2]), (20, [0, 2]), (21, [0, 2, 4]), (PLENTY, [0, 2, 4, 6])],
)
def test_entries_are_taken_until_they_have_the_bytes(size_bytes: int, expected: list[int]) -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2), kept(4), kept(6), horizon=at(9))
        assert await world.ids(100, size_bytes) == expected

    run(scenario)


def test_entries_are_taken_until_they_have_the_messages() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2, messages=3), kept(4), kept(6), horizon=at(9))
        for messages, expected in ((1, [0]), (2, [0, 2]), (4, [0, 2]), (5, [0, 2, 4])):
            assert await world.ids(messages) == expected

    run(scenario)


def test_a_delivery_has_the_entries_of_one_ledger() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2), kept(1, ledger_id=3), horizon=at(9, ledger_id=3))
        first = await world.peek()
        assert first is not None
        assert (first.ledger_id, list(first.entry_ids)) == (0, [0, 2])
        world.compacted.advance(first)
        second = await world.peek()
        assert second is not None
        assert (second.ledger_id, list(second.entry_ids)) == (3, [1])

    run(scenario)


def test_what_is_left_of_a_batch_is_said_and_what_is_whole_is_not() -> None:
    async def scenario(world: World) -> None:
        await world.keep(
            kept(0), kept(2, messages=3), kept(4, messages=3, bits=0b101), horizon=at(9)
        )
        found = await world.peek()
        assert found is not None
        assert found.message_counts == [1, 3, 2]
        assert found.unacked_indexes == {4: (0b101, 3)}
        world.cursor.delete_batch_indexes(at(2), 0b110, 3)
        found = await world.peek()
        assert found is not None
        assert found.unacked_indexes == {2: (0b110, 3), 4: (0b101, 3)}

    run(scenario)


def test_one_that_has_nothing_in_part_says_nothing_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2, messages=3), horizon=at(9))
        found = await world.peek()
        assert found is not None
        assert (found.message_counts, found.unacked_indexes) == ([1, 3], None)

    run(scenario)


def test_what_the_topic_has_trimmed_is_delivered_whole() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0, messages=3), kept(1), kept(4), horizon=at(9))
        world.topic.ledger.first_position = at(3)
        world.acknowledge(0, 1)
        found = await world.peek()
        assert found is not None
        assert (list(found.entry_ids), found.message_counts) == ([0, 1, 4], [3, 1, 1])
        assert found.unacked_indexes is None

    run(scenario)


def test_what_is_acknowledged_between_is_left_out() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2), kept(4), kept(6), horizon=at(9))
        world.acknowledge(0, 4)
        assert await world.ids() == [2, 6]

    run(scenario)


def test_where_all_is_acknowledged_a_peek_passes_it_and_says_that_there_may_be_more() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(1), kept(3), kept(1, ledger_id=3), horizon=at(9, ledger_id=3))
        world.acknowledge(1, 3)
        assert await world.ids() == []
        assert world.reader.position == at(4)
        assert await world.ids() == [1]
        assert world.reader.position == at(4)

    run(scenario)


def test_what_stands_right_behind_the_last_one_delivered_comes_next() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(1), kept(2), horizon=at(9))
        first = await world.peek(1)
        assert first is not None
        world.compacted.advance(first)
        assert await world.ids() == [1, 2]

    run(scenario)


def test_a_log_is_searched_once_and_the_next_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_log, "READ_ENTRIES", 2)
    searched: list[Position] = []
    find = CompactedLog.find

    async def counting(log: CompactedLog, position: Position) -> Position:
        searched.append(position)
        return await find(log, position)

    monkeypatch.setattr(CompactedLog, "find", counting)

    async def scenario(world: World) -> None:
        await world.keep(*map(kept, range(6)), horizon=at(9))
        for expected in ([0, 1], [2, 3]):
            delivery = await world.peek()
            assert delivery is not None
            assert list(delivery.entry_ids) == expected
            world.compacted.advance(delivery)
        assert searched == [at(0)]
        await world.keep(*map(kept, range(3, 8)), horizon=at(9))
        assert await world.ids() == [4, 5]
        assert searched == [at(0), at(4)]

    run(scenario)


@pytest.mark.parametrize(("messages", "size_bytes"), [(0, PLENTY), (100, 0), (-1, -1)])
def test_without_room_for_messages_or_bytes_nothing_is_taken(
    messages: int, size_bytes: int
) -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), horizon=at(9))
        assert await world.ids() == [0]
        world.reader.most_messages, world.reader.most_bytes = messages, size_bytes
        assert await world.peek() is None

    run(scenario)


def test_a_rewind_during_a_read_begins_at_the_mark_all_the_same() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2), kept(4), horizon=at(9))
        world.reader.position = at(3)
        world.compaction.open.clear()
        assert world.compacted.peek(100, PLENTY) is None
        await world.some_turns()
        world.compacted.rewind()
        world.compaction.open.set()
        await world.topic.settled()
        assert await world.ids() == [0, 2, 4]

    run(scenario)


@pytest.mark.parametrize(("position", "settled"), [(8, False), (9, False), (10, True)])
def test_hidden_entries_are_settled_behind_the_horizon_only(position: int, settled: bool) -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), horizon=at(9))
        hidden = [*await world.topic.publish(1)]
        await world.topic.hide([at(8), at(9), *hidden])
        world.reader.position = at(position)
        world.compacted.skip_invisible()
        assert world.cursor.is_deleted(hidden[0]) is settled
        assert (world.reader.position == at(position)) is not settled

    run(scenario)


def test_damage_is_reported_to_readers_that_remain() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), horizon=at(9))
        damage = DamagedEntries(0, 0, 0, "its checksum is wrong")
        world.compaction.failures = [damage]
        for attempts in (1, 2):  # the second one does not read
            assert world.compacted.peek(100, PLENTY) is None
            await world.topic.settled()
            assert (len(world.damaged), world.resumed) == (attempts, 0)
        world.compacted.rewind()
        world.compaction.failures = [damage]
        assert world.compacted.peek(100, PLENTY) is None
        world.compacted.rewind()
        await world.topic.settled()
        assert (len(world.damaged), world.resumed) == (2, 1)
        assert await world.ids() == [0]

    run(scenario)


@pytest.mark.parametrize("failure", [LedgerClosed("kept"), OSError("the disk does not answer")])
def test_a_read_that_fails_is_begun_again(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry looks for its place again."""
    monkeypatch.setattr(compacted_reader, "READ_RETRY_S", 0)

    async def scenario(world: World) -> None:
        await world.keep(kept(0), kept(2), horizon=at(9))
        world.compaction.failures = [failure]
        assert world.compacted.peek(100, PLENTY) is None
        assert world.compacted.peek(100, PLENTY) is None
        await world.topic.settled()
        assert world.resumed == 1
        assert await world.ids() == [0, 2]
        assert world.resumed == 2

    run(scenario)


def test_a_disk_that_does_not_answer_is_not_asked_again_at_once() -> None:
    async def scenario(world: World) -> None:
        await world.keep(kept(0), horizon=at(9))
        world.compaction.failures = [OSError("the disk does not answer")]
        assert world.compacted.peek(100, PLENTY) is None
        await world.some_turns()
        assert (world.resumed, world.compaction.failures) == (0, [])

    run(scenario)


@pytest.mark.parametrize(
    "damaged", [(first, last) for last in range(5) for first in range(last + 1)]
)
def test_a_place_is_found_beside_damaged_entries(damaged: tuple[int, int]) -> None:
    """What comes before them is still to be read, and who is past them does not come back."""
    first, last = damaged

    async def scenario(world: World) -> None:
        await world.keep(*map(kept, range(0, 10, 2)), horizon=at(9))
        ledger = (log := await world.compaction.log()).ledger
        read = ledger.read

        async def damaged_read(position: Position, *limits: Any) -> EntryRun | None:
            if first <= position.entry_id <= last:
                raise DamagedEntries(position.ledger_id, first, last, "bad checksum")
            return await read(position, *limits)

        with patch.object(ledger, "read", damaged_read):
            for entry_id in range(10):
                before = [n for n in range(5) if 2 * n < entry_id and not first <= n <= last]
                found = await log.find(at(entry_id))
                assert found.entry_id == max(before, default=-1) + 1

    run(scenario)
