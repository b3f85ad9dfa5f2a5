"""Positions across ledgers, some of them empty or deleted."""

from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import EARLIEST, LATEST, Position


def index_of(*closed: tuple[int, int], current: int = 9, entries: int = 0) -> LedgerIndex:
    index = LedgerIndex([LedgerInfo(id_, count, count, 0) for id_, count in closed], current)
    if entries:
        index.grow(entries, entries)
    return index


def test_an_empty_log_stands_before_its_first_entry():
    index = index_of()
    assert index.last_confirmed == Position(9, -1)
    assert index.first_position == Position(9, 0)
    assert index.resolve(EARLIEST) is None
    assert index.next_position(EARLIEST) == Position(9, 0)
    assert index.previous_position(LATEST) == Position(9, -1)


def test_after_a_reopening_the_last_confirmed_entry_is_in_an_older_ledger():
    assert index_of((3, 5)).last_confirmed == Position(3, 4)


def test_next_position_crosses_ledgers_that_are_empty_or_gone():
    index = index_of((3, 5), (4, 0), (6, 2), entries=1)
    assert index.next_position(Position(3, 3)) == Position(3, 4)
    assert index.next_position(Position(3, 4)) == Position(6, 0)
    assert index.next_position(Position(5, 77)) == Position(6, 0)
    assert index.next_position(Position(6, 1)) == Position(9, 0)
    assert index.next_position(Position(9, 0)) == Position(9, 1)


def test_previous_position_crosses_ledgers_that_are_empty_or_gone():
    index = index_of((3, 5), (4, 0), (6, 2), entries=1)
    assert index.previous_position(LATEST) == Position(9, 0)
    assert index.previous_position(Position(9, 0)) == Position(6, 1)
    assert index.previous_position(Position(6, 99)) == Position(6, 1)
    assert index.previous_position(Position(6, 0)) == Position(3, 4)
    assert index.previous_position(Position(5, 3)) == Position(3, 4)
    assert index.previous_position(Position(3, 0)) == Position(3, -1)
    assert index.previous_position(EARLIEST) == Position(3, -1)


def test_counts_leave_out_what_is_not_there():
    index = index_of((3, 5), (4, 0), (6, 2), entries=1)
    assert index.count_between(EARLIEST, LATEST) == 8
    assert index.count_between(Position(3, 1), Position(6, 0)) == 4
    assert index.count_between(Position(3, -1), Position(3, 0)) == 1
    assert index.count_between(Position(5, 50), Position(9, 0)) == 3
    assert index.count_between(Position(9, 0), Position(3, 0)) == 0


def test_a_span_ends_with_its_ledger_and_never_behind_the_limit():
    index = index_of((3, 5), (6, 2), entries=1)
    assert index.span(Position(3, 1), LATEST) == (3, 1, 4)
    assert index.span(Position(3, 1), Position(3, 2)) == (3, 1, 2)
    assert index.span(Position(3, 5), LATEST) == (6, 0, 1)
    assert index.span(Position(6, 2), Position(6, 5)) is None
    assert index.span(Position(9, 1), LATEST) is None


def test_a_removal_can_be_taken_back():
    index = index_of((3, 5), (6, 2), entries=1)
    infos = index.infos()
    index.remove([3])
    assert index.first_position == Position(6, 0)
    index.restore(infos[:1])
    assert index.infos() == infos
    assert index.count_between(EARLIEST, LATEST) == 8
