"""SequenceRanges against a plain set."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pybroker.broker.deduplication.sequence_ranges import SequenceRanges

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
            ranges.take_out(first, last)
            plain -= numbers
    stored = list(ranges)
    assert list(SequenceRanges.decode(ranges.encode())) == stored
    assert list(ranges.copy()) == stored
    assert {n for low, high in stored for n in range(low, high + 1)} == plain
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(stored))
    first, last = asked
    wanted = set(range(first, last + 1))
    assert ranges.covers(first, last) == (wanted <= plain)
    assert ranges.overlaps(first, last) == bool(wanted & plain)
    assert ranges.before(last) == max(n for n in range(-1, last + 1) if n not in plain)
    assert bool(ranges) == bool(plain)


def test_the_lowest_ranges_are_forgotten_first() -> None:
    ranges = SequenceRanges((10 * number, 10 * number) for number in range(8))
    assert ranges.forget_lowest(8) == -1
    assert ranges.forget_lowest(3) == 40
    assert list(ranges) == [(50, 50), (60, 60), (70, 70)]


def test_ids_of_64_bits_fit() -> None:
    ranges = SequenceRanges([(0, 2**64 - 1)])
    ranges.take_out(2**63, 2**63)
    assert ranges.covers(2**63 + 1, 2**64 - 1)
    assert not ranges.covers(2**63, 2**63)
