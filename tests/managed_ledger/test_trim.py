"""Which ledgers retention releases."""

from managed_ledger.ledger_metadata import LedgerInfo
from managed_ledger.position import Position
from managed_ledger.trim import Retention, releasable

NOW = 1_000_000
LEDGERS = [
    LedgerInfo(1, 10, 100, NOW - 3000),
    LedgerInfo(3, 10, 100, NOW - 2000),
    LedgerInfo(5, 10, 100, NOW - 1000),
    LedgerInfo(8, 4, 40, None),
]
EVERYTHING = Position(8, 3)


def released(slowest: Position | None, time_ms: int = 0, size_bytes: int = 0) -> list[int]:
    infos = releasable(LEDGERS, slowest, Retention(time_ms, size_bytes), NOW)
    return [info.ledger_id for info in infos]


def test_the_current_ledger_stays_even_when_it_is_consumed():
    assert released(EVERYTHING) == [1, 3, 5]


def test_a_ledger_goes_only_when_the_slowest_cursor_has_its_last_entry():
    assert released(Position(3, 8)) == [1]
    assert released(Position(3, 9)) == [1, 3]
    assert released(Position(1, -1)) == []


def test_without_durable_cursors_closed_ledgers_go():
    assert released(None) == [1, 3, 5]


def test_infinite_retention_keeps_everything():
    assert released(EVERYTHING, time_ms=-1, size_bytes=-1) == []


def test_consumed_ledgers_stay_for_the_retention_time():
    assert released(EVERYTHING, time_ms=2000, size_bytes=-1) == [1, 3]


def test_consumed_ledgers_go_early_above_the_retention_size():
    assert released(EVERYTHING, time_ms=-1, size_bytes=150) == [1, 3]


def test_the_first_ledger_that_stays_keeps_those_behind_it():
    out_of_order = [LEDGERS[0], LedgerInfo(3, 10, 100, NOW), LEDGERS[2], LEDGERS[3]]
    kept = releasable(out_of_order, EVERYTHING, Retention(time_ms=500, size_bytes=-1), NOW)
    assert [info.ledger_id for info in kept] == [1]


def test_consumed_ledgers_stay_neither_for_no_time_nor_for_no_size():
    assert released(EVERYTHING, time_ms=0, size_bytes=-1) == [1, 3, 5]
    assert released(EVERYTHING, time_ms=-1, size_bytes=0) == [1, 3, 5]


def test_what_fits_the_retention_size_exactly_stays():
    assert released(EVERYTHING, time_ms=-1, size_bytes=340) == []
    assert released(EVERYTHING, time_ms=-1, size_bytes=339) == [1]


def test_consumed_ledgers_stay_until_the_retention_time_has_passed():
    assert released(EVERYTHING, time_ms=2001, size_bytes=-1) == [1]
    assert released(EVERYTHING, time_ms=3000, size_bytes=-1) == [1]
    assert released(EVERYTHING, time_ms=3001, size_bytes=-1) == []
