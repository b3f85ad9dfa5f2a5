"""Every query of a LedgerIndex against a sorted list of the existing positions."""

from itertools import product

import pytest

from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import EARLIEST, LATEST, Position

CURRENT = 9
SHAPES = [
    ((), 0),
    ((), 2),
    (((3, 2),), 0),
    (((3, 2), (4, 0), (6, 3)), 0),
    (((3, 2), (4, 0), (6, 3)), 2),
    (((4, 0), (5, 1)), 1),
]
ASKED = [
    EARLIEST,
    *(Position(id_, entry) for id_, entry in product((2, 3, 4, 5, 6, 8, 9, 10), range(-1, 4))),
    LATEST,
]

shapes = pytest.mark.parametrize(("closed", "entries"), SHAPES)


def made(closed: tuple[tuple[int, int], ...], entries: int) -> tuple[LedgerIndex, list[Position]]:
    infos = [LedgerInfo(id_, count, 10 * count, id_) for id_, count in closed]
    index = LedgerIndex(infos, CURRENT)
    if entries:
        assert index.grow(entries, 10 * entries) == Position(CURRENT, 0)
    there = [
        Position(id_, entry)
        for id_, count in (*closed, (CURRENT, entries))
        for entry in range(count)
    ]
    return index, there


def first_of(closed: tuple[tuple[int, int], ...]) -> Position:
    return Position(closed[0][0] if closed else CURRENT, 0)


@shapes
def test_what_is_there_and_where_it_begins_and_ends(closed, entries):
    index, there = made(closed, entries)
    assert [position for position in ASKED if position in index] == there
    assert index.first_position == first_of(closed)
    assert index.last_confirmed == (there[-1] if there else Position(CURRENT, -1))
    assert index.current_entries == entries
    assert index.has_closed == bool(closed)
    assert index.total_size_bytes() == 10 * len(there)
    assert [(info.ledger_id, info.entries) for info in index.infos()] == [
        *closed,
        (CURRENT, entries),
    ]
    assert index.infos()[-1] == LedgerInfo(CURRENT, entries, 10 * entries, None)


@shapes
def test_the_way_to_the_next_and_to_the_one_before(closed, entries):
    index, there = made(closed, entries)
    for asked in ASKED:
        behind = [position for position in there if position >= asked]
        before = [position for position in there if position < asked]
        assert index.resolve(asked) == (behind[0] if behind else None)
        following = [position for position in behind if position > asked]
        to_come = Position(CURRENT, entries)
        assert index.next_position(asked) == (following[0] if following else to_come)
        none_before = first_of(closed).before
        assert index.previous_position(asked) == (before[-1] if before else none_before)


@shapes
def test_counts_and_spans_between_any_two(closed, entries):
    index, there = made(closed, entries)
    for asked, up_to in product(ASKED, ASKED):
        between = [position for position in there if asked < position <= up_to]
        assert index.count_between(asked, up_to) == len(between)
        span = [position for position in there if asked <= position <= up_to]
        expected = None
        if span:
            last = max(found for found in span if found.ledger_id == span[0].ledger_id)
            expected = (*span[0], last.entry_id)
        assert index.span(asked, up_to) == expected


def test_the_current_ledger_grows_and_the_next_one_begins_empty():
    index, there = made(((3, 2),), 0)
    assert index.last_confirmed == there[-1]
    assert index.grow(2, 20) == Position(CURRENT, 0)
    assert index.grow(1, 10) == Position(CURRENT, 2)
    assert index.last_confirmed == Position(CURRENT, 2)
    assert (index.current_entries, index.current_size_bytes) == (3, 30)
    full = LedgerInfo(CURRENT, 3, 30, 77)
    index.roll_over(full, 12)
    assert (index.current_id, index.current_entries, index.current_size_bytes) == (12, 0, 0)
    assert index.infos() == [LedgerInfo(3, 2, 20, 3), full, LedgerInfo(12, 0, 0, None)]
    assert index.last_confirmed == Position(CURRENT, 2)
    assert index.next_position(Position(CURRENT, 2)) == Position(12, 0)
    assert index.previous_position(LATEST) == Position(CURRENT, 2)
    assert index.total_size_bytes() == 50
    assert index.count_between(EARLIEST, LATEST) == 5


def test_what_is_removed_is_not_there_until_it_is_taken_back():
    index, there = made(((3, 2), (4, 1), (6, 3)), 2)
    infos = index.infos()
    index.remove([3, 6])
    left = [position for position in there if position.ledger_id in (4, CURRENT)]
    assert [position for position in ASKED if position in index] == left
    assert index.first_position == Position(4, 0)
    assert index.next_position(Position(4, 0)) == Position(CURRENT, 0)
    assert index.count_between(EARLIEST, LATEST) == 3
    index.restore([infos[0], infos[2]])
    assert index.infos() == infos
    assert [position for position in ASKED if position in index] == there
    assert [index.resolve(Position(id_, 0)) for id_ in (2, 5)] == [(3, 0), (6, 0)]
