"""Columns of entries, and runs of tags, against a list of entries with a tag each."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from managed_ledger.storage.entry_columns import LOOK_AHEAD, EntryColumns, leading
from managed_ledger.storage.tag_runs import TagRuns

APPENDS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from([b"", b"a", b"b"])),
    max_size=6,
)
Model = dict[int, tuple[bytes, int, bytes]]  # by entry id: payload, messages, tag


def filled(first: int, appends: list[tuple[list[int], bytes]]) -> tuple[EntryColumns, Model]:
    columns, model = EntryColumns(first), Model()
    for sizes, tag in appends:
        entries = [bytes([65 + len(model) + n]) * size for n, size in enumerate(sizes)]
        counts = [len(model) + n for n in range(len(sizes))]
        for entry, messages in zip(entries, counts, strict=True):
            model[first + len(model)] = entry, messages, tag
        columns.extend(entries, counts, tag)
    return columns, model


def tags_of(runs: TagRuns) -> dict[int, bytes]:
    for before, after in pairwise(runs):
        assert before.last_entry_id < after.first_entry_id
        joined = before.tag == after.tag and before.last_entry_id == after.first_entry_id - 1
        assert not joined, "what goes on with the same tag is one run"
    return {entry: tag for first, last, tag in runs for entry in range(first, last + 1)}


def agree(columns: EntryColumns, model: Model, first: int) -> None:
    assert (columns.first_entry_id, columns.next_entry_id) == (first, first + len(model))
    assert columns.entries == [entry for entry, _, _ in model.values()]
    assert columns.message_counts.tolist() == [messages for _, messages, _ in model.values()]
    assert tags_of(columns.tags) == {at: tag for at, (_, _, tag) in model.items() if tag}
    assert len(columns.tags) == len(list(columns.tags))


@given(st.integers(0, 3), APPENDS, st.integers(0, 20))
def test_what_is_dropped_is_gone_and_the_rest_as_it_was(first, appends, border):
    columns, model = filled(first, appends)
    agree(columns, model, first)
    border = min(border, columns.next_entry_id)
    columns.drop_before(border)
    agree(columns, {at: row for at, row in model.items() if at >= border}, max(first, border))


@given(
    st.integers(0, 3),
    APPENDS,
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 6), st.integers(1, 12)),
)
@example(0, [([1, 1, 1], b"a")], (1, 1, 5, 100))
@example(1, [([1], b"a"), ([1, 1], b"b")], (0, 5, 5, 100))
@example(0, [([1], b"a"), ([1, 1], b"b")], (1, 5, 1, 100))
@example(2, [([0, 0], b"")], (2, 0, 1, 1))
@example(3, [([1] * 6, b"a")], (4, 5, 6, 12))
def test_a_run_holds_what_the_limits_allow_with_its_tags(first, appends, limits):
    columns, model = filled(first, appends)
    start, last, max_entries, max_bytes = limits
    run = columns.run(7, start, last, max_entries, max_bytes)
    wanted = [at for at in model if start <= at <= last][:max_entries]
    if start not in model or not wanted:
        assert run is None
        return
    assert run is not None
    fitting = [
        at for at in wanted if sum(len(model[n][0]) for n in range(start, at + 1)) <= max_bytes
    ]
    expected = fitting or wanted[:1]
    assert (run.ledger_id, run.first_entry_id) == (7, start)
    assert run.entries == [model[at][0] for at in expected]
    assert run.message_counts == [model[at][1] for at in expected]
    carried = {at: tag for a, b, tag in run.tags for at in range(a, b + 1)}
    assert carried == {at: model[at][2] for at in expected if model[at][2]}


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "count"),
    [
        ([], 5, 0),
        ([3, 3], 6, 2),
        ([3, 3], 5, 1),
        ([9, 1], 5, 1),
        ([5, 0, 1], 5, 2),
        ([0, 0, 6], 5, 2),
    ],
)
def test_what_leads_is_what_fits_and_at_least_one(sizes, max_bytes, count):
    entries = [bytes(size) for size in sizes]
    assert leading(entries, max_bytes) == entries[:count]


@pytest.mark.parametrize("start", [0, 1, 100])
@pytest.mark.parametrize("count", [1, LOOK_AHEAD - 1, LOOK_AHEAD, LOOK_AHEAD + 1, 3 * LOOK_AHEAD])
def test_what_leads_from_somewhere_is_all_that_there_is_room_for(start, count):
    columns = EntryColumns(0, [b"%05d" % n for n in range(start + count)])
    every = columns.entries[start:]
    assert columns.leading_from(start, 10_000, 5 * count) == every
    assert columns.leading_from(start, count - 1, 5 * count) == every[:-1]
    scarce = columns.leading_from(start, 10_000, 5 * count - 1)
    assert scarce == every[: len(scarce)]
    assert len(scarce) >= count - 1
    assert columns.leading_from(start, 10_000, 0) == []
    assert columns.leading_from(start + count, 1, 10) == []


def test_what_leads_ends_where_the_room_does_and_leaves_nothing_out():
    small = [b"12345"] * (3 * LOOK_AHEAD)
    found = EntryColumns(0, small).leading_from(0, 10_000, 5 * (LOOK_AHEAD + 10))
    assert len(found) == LOOK_AHEAD + 10
    with_a_large_one = [*small[:100], b"x" * 5000, *small]
    found = EntryColumns(0, with_a_large_one).leading_from(0, 10_000, 5000)
    assert found == small[:100]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from([b"a", b"b"]))),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_tags_within_a_window_are_those_of_its_entries(runs, first, last):
    tags, model, at = TagRuns(), {}, 0
    for gap, length, tag in runs:
        at += gap
        tags.add(at, at + length - 1, tag)
        model |= dict.fromkeys(range(at, at + length), tag)
        at += length
    assert tags_of(tags) == model
    if first <= last:
        inside = tags.within(first, last)
        assert tags_of(inside) == {n: tag for n, tag in model.items() if first <= n <= last}
    assert tags_of(tags) == model
    tags.drop_before(first)
    assert tags_of(tags) == {n: tag for n, tag in model.items() if n >= first}
