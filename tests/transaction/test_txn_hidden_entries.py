"""Hidden entries against a plain set of positions."""

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.position import Position
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries

LEDGERS = (3, 5, 6)
entries = st.integers(0, 1200)
hides = st.lists(st.tuples(st.sampled_from(LEDGERS), entries, st.integers(0, 600)), max_size=12)


def build(ranges: list[tuple[int, int, int]]) -> tuple[HiddenEntries, set[tuple[int, int]]]:
    hidden, model = HiddenEntries(), set()
    for ledger_id, first, length in ranges:
        hidden.hide(ledger_id, first, first + length)
        model |= {(ledger_id, entry_id) for entry_id in range(first, first + length + 1)}
    return hidden, model


@given(hides, entries, entries)
def test_what_is_hidden_in_a_window_comes_as_ranges(
    ranges: list[tuple[int, int, int]], first: int, last: int
) -> None:
    hidden, model = build(ranges)
    for ledger_id in LEDGERS:
        window = range(first, last + 1)
        ranges_within = hidden.ranges_within(ledger_id, first, last)
        gone = [e for low, high in ranges_within for e in range(low, high + 1)]
        assert all(low <= high for low, high in ranges_within)
        assert gone == [e for e in window if (ledger_id, e) in model]
        assert gone == [e for e in window if hidden.contains((ledger_id, e))]


@given(hides, st.sampled_from(LEDGERS), st.integers(-1, 2000), st.sampled_from(LEDGERS), entries)
def test_a_count_is_that_of_the_entries(
    ranges: list[tuple[int, int, int]], ledger: int, entry: int, up_ledger: int, up_entry: int
) -> None:
    hidden, model = build(ranges)
    after, up_to = Position(ledger, entry), Position(up_ledger, up_entry)
    assert hidden.count(after, up_to) == sum(after < position <= up_to for position in model)


@given(hides, st.sampled_from(LEDGERS), st.integers(-1, 2500))
def test_the_last_visible_entry_is_found(
    ranges: list[tuple[int, int, int]], ledger_id: int, entry_id: int
) -> None:
    hidden, model = build(ranges)
    visible = [e for e in range(entry_id + 1) if (ledger_id, e) not in model]
    assert hidden.last_visible_up_to(ledger_id, entry_id) == (visible[-1] if visible else -1)


@given(hides)
def test_what_is_written_reads_back(ranges: list[tuple[int, int, int]]) -> None:
    hidden, _ = build(ranges)
    restored = HiddenEntries()
    for ledger_id, value in hidden.take_changes().items():
        restored.restore(ledger_id, value)
    assert hidden.take_changes() == {}
    for ledger_id in LEDGERS:
        assert restored.ranges_within(ledger_id, 0, 2000) == hidden.ranges_within(
            ledger_id, 0, 2000
        )


def test_a_trimmed_ledger_takes_its_entries_along() -> None:
    hidden, _ = build([(3, 0, 10), (5, 0, 10)])
    hidden.drop_ledger(3)
    assert not hidden.contains((3, 0)) and hidden.contains((5, 0))
    assert list(hidden.take_changes()) == [5]
