"""The bitmap of acknowledged entries against a plain set of ints."""

from itertools import combinations_with_replacement, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.ack_set import AckSet

entry_ids = st.integers(0, 2000)
steps = st.lists(st.tuples(entry_ids, st.integers(0, 600)), max_size=12)


def filled(ranges: list[tuple[int, int]]) -> tuple[AckSet, set[int]]:
    acks, model = AckSet(), set()
    for first, extent in ranges:
        acks.add_range(first, first + extent)
        model |= set(range(first, first + extent + 1))
    return acks, model


def ranges_of(model: set[int]) -> list[tuple[int, int]]:
    starts = sorted(entry for entry in model if entry - 1 not in model)
    ends = sorted(entry for entry in model if entry + 1 not in model)
    return list(zip(starts, ends, strict=True))


@given(steps, entry_ids, entry_ids)
def test_ranges_and_counts_agree_with_a_set(ranges, first, last):
    acks, model = filled(ranges)
    assert len(acks) == len(model)
    assert acks.range_count() == len(ranges_of(model))
    assert acks.runs(0, 5000) == ranges_of(model)
    assert acks.runs(first, last) == ranges_of({e for e in model if first <= e <= last})
    assert acks.last == max(model, default=-1)
    assert acks.count_up_to(last) == sum(entry <= last for entry in model)


@given(steps, entry_ids)
def test_the_first_missing_entry_is_the_first_hole(ranges, start):
    acks, model = filled(ranges)
    expected = next(entry for entry in range(start, 10_000) if entry not in model)
    assert acks.first_missing(start) == expected


@given(steps, entry_ids)
def test_adding_says_whether_it_was_new(ranges, entry):
    acks, model = filled(ranges)
    assert (entry in acks) == (entry in model)
    assert acks.add(entry) == (entry not in model)
    assert not acks.add(entry)


@given(steps, entry_ids)
def test_forgetting_leaves_what_is_behind(ranges, border):
    acks, model = filled(ranges)
    acks.discard_up_to(border)
    assert acks.runs(0, 5000) == ranges_of({entry for entry in model if entry > border})


@given(steps)
def test_it_reads_back_as_it_was_written(ranges):
    acks, model = filled(ranges)
    assert AckSet.decode(acks.encode()).runs(0, 5000) == ranges_of(model)


def test_a_hundred_thousand_holes_fit_into_a_few_kilobytes():
    acks = AckSet()
    for entry in range(1, 200_001, 2):
        acks.add(entry)
    assert acks.range_count() == 100_000
    assert len(acks.encode()) < 30_000
    assert AckSet.decode(acks.encode()).range_count() == 100_000


EDGES = (0, 1, 2, 510, 511, 512, 513, 1023, 1024, 1025, 1535, 1536)


@pytest.mark.parametrize("extra", [None, 514, 2047])
def test_every_answer_is_right_around_the_borders_of_chunks(extra):
    asked = (*EDGES, 3, 1537, 2046, 2047, 2048, 5000)
    for first, last in combinations_with_replacement(EDGES, 2):
        acks, model = filled([(first, last - first)])
        if extra is not None:
            assert acks.add(extra) == (extra not in model)
            model.add(extra)
        assert (bool(acks), len(acks)) == (True, len(model))
        assert acks.range_count() == len(ranges_of(model))
        for at in asked:
            assert (at in acks) == (at in model)
            assert acks.count_up_to(at) == sum(entry <= at for entry in model)
            assert acks.first_missing(at) == next(e for e in count(at) if e not in model)
            seen = {entry for entry in model if first + 1 <= entry <= at}
            assert acks.runs(first + 1, at) == ranges_of(seen)
        border = (first + last) // 2
        again = AckSet.decode(acks.encode())
        again.discard_up_to(border)
        left = {entry for entry in model if entry > border}
        assert again.runs(0, 5000) == ranges_of(left)
        assert bool(again) == bool(left)


@given(steps)
def test_how_much_it_takes_is_known_without_writing_it(ranges: list[tuple[int, int]]) -> None:
    acks, _ = filled(ranges)
    assert acks.encoded_size == len(acks.encode())
