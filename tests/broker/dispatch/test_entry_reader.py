"""The read position of a subscription, alone: what it asks of the log and of hidden entries."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from dispatch_fakes import FakeTopic, with_topic

from managed_ledger.position import EARLIEST, Position
from pybroker.broker.dispatch.entry_reader import EntryReader, _end_of

PLENTY = 10**6
Range = tuple[int, int]


def at(entry_id: int) -> Position:
    return Position(0, entry_id)


class Hidden:
    """Records the ranges asked for; `all` hides everything."""

    def __init__(self) -> None:
        self.all = False
        self.asked: list[Range] = []

    def ranges_within(self, ledger_id: int, first: int, last: int) -> list[Range]:
        self.asked.append((first, last))
        return [(first, last)] if self.all and first <= last else []


class World:
    def __init__(self, topic: FakeTopic, cursor: Any) -> None:
        self.topic, self.cursor = topic, cursor
        hidden: Any = Hidden()
        self.hidden: Hidden = hidden
        topic.hidden = hidden
        self.wanted: list[tuple[Position, Position, int]] = []
        read_cached = topic.ledger.read_cached

        def noted(position: Position, up_to: Position, most: int, size_bytes: int) -> Any:
            self.wanted.append((position, up_to, most))
            return read_cached(position, up_to, most, size_bytes)

        topic.ledger.read_cached = noted
        self.reader = EntryReader(topic, cursor, lambda: None, lambda *damage: None)

    def read(self, messages: int = 100, size_bytes: int = PLENTY) -> list[int] | None:
        found = self.reader.peek(messages, size_bytes)
        if found is None:
            return None
        self.reader.advance(found)
        return list(found.entry_ids)


def run(scenario: Callable[[World], Awaitable[None]], entries: int = 10, batch: int = 1) -> None:
    async def go(topic: FakeTopic) -> None:
        cursor = await topic.ledger.open_cursor("sub", EARLIEST)
        await topic.publish(entries, batch=batch)
        await scenario(World(topic, cursor))

    with_topic(go)


def test_of_batches_as_many_entries_are_asked_for_as_messages_are_wanted() -> None:
    """One more entry is requested, because batches differ in size."""

    async def scenario(world: World) -> None:
        assert world.read(100) == list(range(10))
        assert world.read(100) == list(range(10, 20))
        assert world.wanted == [(at(0), at(99), 100), (at(10), at(20), 11)]

    run(scenario, entries=200, batch=10)


@pytest.mark.parametrize(("messages", "window"), [(1, 64), (16, 64), (20, 80), (999, 1000)])
def test_visible_ones_are_looked_for_among_four_times_as_many(messages: int, window: int) -> None:
    async def scenario(world: World) -> None:
        world.reader.peek(messages, PLENTY)
        assert world.hidden.asked == [(0, window - 1)]

    run(scenario, entries=1500)


@pytest.mark.parametrize(("messages", "size_bytes"), [(0, PLENTY), (100, 0), (-1, -1)])
def test_without_room_for_messages_or_bytes_nothing_is_read(messages: int, size_bytes: int) -> None:
    async def scenario(world: World) -> None:
        assert world.read(messages, size_bytes) is None
        assert world.wanted == []

    run(scenario)


def test_a_rate_counts_messages_and_bytes() -> None:
    async def scenario(world: World) -> None:
        world.reader.most_messages, world.reader.most_bytes = 8, 1000
        found = world.reader.peek(2, PLENTY)
        assert found is not None
        world.reader.advance(found)
        size = sum(map(len, found.entries))
        assert (world.reader.most_messages, world.reader.most_bytes) == (5, 1000 - size)

    run(scenario, batch=3)


def test_a_peek_moves_to_the_first_entry_there_is() -> None:
    async def scenario(world: World) -> None:
        world.topic.ledger.next_position = lambda before: max(at(3), before.after)
        world.reader.peek(1, PLENTY)
        assert world.reader.position == at(3)

    run(scenario)


def test_what_is_passed_need_not_stay_in_memory() -> None:
    async def scenario(world: World) -> None:
        world.topic.ledger.warm = False
        assert world.read() is None
        await world.topic.settled()
        assert world.read() == list(range(10))
        world.reader.position = at(0)
        assert world.read() is None
        await world.topic.settled()
        assert world.topic.ledger.reads == 2

    run(scenario)


def test_what_was_read_again_is_read_anew_if_it_has_to_be() -> None:
    async def scenario(world: World) -> None:
        world.topic.ledger.warm = False
        for reads in (1, 2):
            assert world.reader.reread(0, 2, 4, PLENTY) is None
            await world.topic.settled()
            found = world.reader.reread(0, 2, 4, PLENTY)
            assert found is not None
            assert list(found.entry_ids) == [2, 3, 4]
            assert world.topic.ledger.reads == reads
            world.reader.read_anew()

    run(scenario)


def test_reading_again_asks_for_as_many_entries_as_there_are() -> None:
    async def scenario(world: World) -> None:
        world.reader.reread(0, 4, 6, PLENTY)
        assert world.wanted == [(at(4), at(6), 3)]

    run(scenario)


def test_reading_again_what_is_not_there_gives_nothing() -> None:
    async def scenario(world: World) -> None:
        found = world.reader.reread(0, 20, 25, PLENTY)
        assert found is not None
        assert not found.entries

    run(scenario)


@pytest.mark.parametrize("position", [0, 3, 4])
def test_reading_goes_on_behind_the_mark_at_once(position: int) -> None:
    async def scenario(world: World) -> None:
        world.cursor.mark_delete(at(4))
        world.reader.position = at(position)
        assert world.read() == [5, 6, 7, 8, 9]
        assert world.hidden.asked == [(5, 9)]

    run(scenario)


def test_what_is_hidden_is_asked_for_once() -> None:
    async def scenario(world: World) -> None:
        world.reader.skip_invisible()
        world.reader.skip_invisible()
        assert world.hidden.asked == [(0, 9)]
        await world.topic.publish(5)
        world.reader.skip_invisible()
        assert world.hidden.asked == [(0, 9), (10, 14)]

    run(scenario)


def test_what_a_long_transaction_left_hidden_is_passed_in_few_steps() -> None:
    async def scenario(world: World) -> None:
        world.hidden.all = True
        world.reader.skip_invisible()
        assert [last - first + 1 for first, last in world.hidden.asked] == [64, 128, 256, 512, 40]
        assert world.cursor.mark_delete_position == at(999)
        world.hidden.all = False
        await world.topic.publish(100)
        assert world.read(10) == list(range(1000, 1010))
        assert world.hidden.asked[-1] == (1000, 1063)

    run(scenario, entries=1000)


def test_behind_what_is_hidden_no_more_is_looked_at_than_is_wanted() -> None:
    async def scenario(world: World) -> None:
        for entry_id in range(200):
            world.cursor.delete(*at(entry_id + 1))
        world.read(1)
        assert world.read(10) == list(range(201, 211))
        assert world.wanted[-1] == (at(201), at(210), 10)

    run(scenario, entries=1000)


@pytest.mark.parametrize(
    ("mark", "up_to", "expected"),
    [
        (Position(3, 4), Position(6, 2), 5 + 20 + 3),
        (Position(3, 4), Position(3, 8), 4),
        (Position(3, 4), Position(4, 0), 5 + 1),
        (Position(4, 19), Position(6, 4), 5),
        (EARLIEST, Position(6, 4), 10 + 20 + 5),
        (Position(6, 4), Position(6, 4), 0),
    ],
)
def test_the_hidden_backlog_goes_from_the_mark_over_all_ledgers_there_are(
    mark: Position, up_to: Position, expected: int
) -> None:
    infos = [SimpleNamespace(ledger_id=id_, entries=n) for id_, n in ((3, 10), (4, 20), (6, 5))]
    hidden = Hidden()
    hidden.all = True
    topic: Any = SimpleNamespace(
        ledger=SimpleNamespace(ledgers=lambda: infos), tasks=None, hidden=hidden
    )
    cursor: Any = SimpleNamespace(
        mark_delete_position=mark, deleted_within=lambda ledger_id, first, last: []
    )
    reader = EntryReader(topic, cursor, lambda: None, lambda *damage: None)
    assert reader.hidden_backlog(up_to) == expected


@pytest.mark.parametrize(("wanted", "end"), [(1, 2), (3, 4), (4, 7), (6, 9), (100, 9)])
def test_ranges_end_where_they_have_as_many_as_are_wanted(wanted: int, end: int) -> None:
    assert _end_of([(2, 4), (7, 9)], wanted) == end
