"""SequenceRanges against a plain set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.sequence_ranges import MAX_RANGES, SequenceRanges

bounds = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda b: (b[0], b[0] + b[1]))


@given(st.lists(st.tuples(st.sampled_from(["add", "take_out"]), bounds)), bounds)
def test_ranges_hold_what_a_set_would_hold(
    steps: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, plain = SequenceRanges(), set[int]()
    for step, (first, last) in steps:
        numbers = set(range(first, last + 1))
        if step == "add":
            ranges.add(first, last)
            plain |= numbers
        else:
            taken = ranges.take_out(first, last)
            assert {n for low, high in taken for n in range(low, high + 1)} == plain & numbers
            plain -= numbers
    stored = ranges.all()
    assert {n for low, high in stored for n in range(low, high + 1)} == plain
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(stored))
    first, last = asked
    wanted = set(range(first, last + 1))
    assert ranges.covers(first, last) == (wanted <= plain)
    assert ranges.overlaps(first, last) == bool(wanted & plain)
    assert ranges.before(last) == max(n for n in range(-1, last + 1) if n not in plain)
    assert bool(ranges) == bool(plain)


def test_the_lowest_ranges_are_forgotten_first() -> None:
    ranges = SequenceRanges()
    for number in range(MAX_RANGES + 5):
        ranges.add(10 * number, 10 * number)
    assert len(ranges.all()) == MAX_RANGES
    assert ranges.all()[0] == (50, 50)
