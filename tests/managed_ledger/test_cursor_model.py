"""A ManagedCursor against a dict of each entry's unacknowledged bits, after random steps."""

import asyncio
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
from bare_ledgers import acknowledged_behind
from hypothesis import given, settings
from hypothesis import strategies as st

from managed_ledger.ack_set import AckSet
from managed_ledger.cursor import ManagedCursor
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.ledger_metadata import CursorRecord, LedgerInfo
from managed_ledger.position import EARLIEST, LATEST, Position

BATCH = 3
ALL = (1 << BATCH) - 1
SHAPE = ((3, 3), (4, 0), (6, 3), (9, 2))
THERE = [Position(id_, entry) for id_, count in SHAPE for entry in range(count)]
POSITIONS = [*THERE, *THERE, Position(2, 0), Position(4, 0), Position(6, -1), Position(9, 5)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["delete", "range", "indexes", "mark", "reset"]),
        st.sampled_from(POSITIONS),
        st.integers(0, 3),
        st.integers(0, 2 * ALL + 1),  # a client may set bits beyond the batch
    ),
    max_size=14,
)
SPARED = st.dictionaries(
    st.sampled_from(POSITIONS), st.one_of(st.just(-1), st.integers(1, ALL)), max_size=6
)


def index_of(*shape: tuple[int, int]) -> LedgerIndex:
    *closed, (current, entries) = shape
    index = LedgerIndex([LedgerInfo(id_, count, count, 0) for id_, count in closed], current)
    index.grow(entries, entries)
    return index


class Twins:
    """A cursor, what it writes, and the model."""

    def __init__(self) -> None:
        self.index = index_of(*SHAPE)
        self.written: list[bytes] = []
        self.told = 0
        self.cursor = self.made(Position(3, -1))
        self.left = dict.fromkeys(THERE, ALL)
        self.partly: set[Position] = set()  # entries with acknowledged indexes

    def made(self, mark: Position) -> ManagedCursor:
        return ManagedCursor("s", self.index, mark, {"k": "v"}, self.store, self.dirty)

    def store(self, name: str, value: bytes) -> Any:
        self.written.append(value)
        return Mock(spec=asyncio.Future)  # in flight

    def dirty(self, cursor: ManagedCursor) -> None:
        self.told += 1

    def step(self, what: str, position: Position, extent: int, bits: int) -> None:
        before = dict(self.left)
        self.cursor.write()
        self.told = 0
        returned = self.returned(what, position, extent, bits)
        self.partly |= {at for at in THERE if self.left[at] != before[at]}
        self.partly -= {at for at in THERE if not self.left[at] or what == "reset"}
        changed = self.left != before
        assert self.told <= 1
        assert self.told or not changed  # otherwise the change would not be written
        if what in ("delete", "mark"):
            assert returned == changed
        if what == "indexes":
            gone = before.get(position, 0) != 0 and self.left.get(position) == 0
            assert returned == gone

    def returned(self, what: str, position: Position, extent: int, bits: int) -> object:
        cursor, left = self.cursor, self.left
        match what:
            case "delete":
                if position in left:
                    left[position] = 0
                return cursor.delete(*position)
            case "range":
                for at in left:
                    if position <= at <= (position.ledger_id, position.entry_id + extent):
                        left[at] = 0
                last = position.entry_id + extent
                return cursor.delete_range(position.ledger_id, position.entry_id, last)
            case "indexes":
                if position in left:
                    left[position] &= bits
                return cursor.delete_batch_indexes(position, bits, BATCH)
            case "mark":
                return self.mark(position, bits)
        for at in left:
            left[at] = ALL if at >= position else 0
        return cursor.reset(position)

    def mark(self, position: Position, bits: int) -> bool:
        """A mark without an entry, and its bits, apply to the entry before."""
        before = [at for at in THERE if at <= position]
        for at in before:
            self.left[at] &= bits if at == before[-1] else 0
        return self.cursor.mark_delete(position, bits, BATCH)

    def around(
        self, position: Position, spared: dict[Position, int], bits: int, after: Position
    ) -> None:
        """Bits require an existing entry: the broker takes the batch size from it."""
        still_unacked = bits & ALL if position in THERE else 0
        before = dict(self.left)
        self.cursor.write()
        self.told = 0
        for at in (at for at in THERE if after < at <= position):
            self.left[at] &= spared.get(at, 0) | (still_unacked if at == position else 0)
        sized = {at: (bits, 0 if bits < 0 else BATCH) for at, bits in spared.items()}
        self.cursor.mark_delete_around(position, sized, still_unacked, BATCH, after)
        changed = {at for at in THERE if self.left[at] != before[at]}
        self.partly = {at for at in self.partly | changed if self.left[at]}
        assert self.told or not changed

    def agree(self, cursor: ManagedCursor, asked_first: int) -> None:
        mark, left = cursor.mark_delete_position, self.left
        assert [at for at in THERE if cursor.is_deleted(at)] == [at for at in left if not left[at]]
        partly = {at: left[at] for at in THERE if at in self.partly}
        assert {at: cursor.unacked_indexes(at) for at in partly} == partly
        assert dict(cursor.partial_batches) == partly
        behind = [at for at in THERE if at > mark]
        assert not behind or left[behind[0]], "the mark stands right before the first that is left"
        holes = [at for at in behind if not left[at]]
        questions = [
            lambda: acknowledged_behind(cursor) == len(holes),
            lambda: cursor.unacked_ranges_count == sum(at.before not in holes for at in holes),
            lambda: self.backlogs_agree(cursor, behind),
            lambda: self.ranges_agree(cursor),
        ]
        for number in range(len(questions)):  # no answer may depend on earlier questions
            assert questions[(asked_first + number) % len(questions)]()

    def backlogs_agree(self, cursor: ManagedCursor, behind: list[Position]) -> bool:
        return all(
            cursor.backlog(up_to) == sum(1 for at in behind if at <= up_to and self.left[at])
            for up_to in (*THERE, LATEST)
            if up_to > cursor.mark_delete_position
        )

    def ranges_agree(self, cursor: ManagedCursor) -> bool:
        for id_, count in SHAPE:
            for first, last in product(range(count), range(count)):
                found = cursor.deleted_within(id_, first, last) if first <= last else []
                listed = [at for low, high in found for at in range(low, high + 1)]
                wanted = [at for at in range(first, last + 1) if not self.left[Position(id_, at)]]
                if listed != wanted:
                    return False
        return True


@pytest.mark.slow
@given(STEPS, st.integers(0, 3))
@settings(max_examples=300)
def test_after_any_steps_it_knows_what_is_left_of_each_entry(steps, asked_first):
    twins = Twins()
    for step in steps:
        twins.step(*step)
    twins.agree(twins.cursor, asked_first)


@pytest.mark.slow
@given(
    STEPS,
    st.lists(
        st.tuples(
            st.sampled_from(POSITIONS), SPARED, st.integers(0, ALL), st.sampled_from(POSITIONS)
        ),
        min_size=1,
        max_size=4,
    ),
    STEPS,
)
@settings(max_examples=300)
def test_what_is_spared_stays_as_it_is(steps, around, more):
    twins = Twins()
    for step in steps:
        twins.step(*step)
    for position, spared, bits, after in around:
        twins.around(position, spared, bits, after)
        twins.agree(twins.cursor, 0)
    for step in more:
        twins.step(*step)
    twins.agree(twins.cursor, 1)


@given(STEPS)
def test_what_is_written_down_is_found_again(steps):
    twins = Twins()
    for step in steps:
        twins.step(*step)
    twins.cursor.mark_new()
    twins.cursor.write()
    record = CursorRecord.decode(twins.written[-1], "s")
    again = twins.made(record.mark_delete_position)
    again.restore(record)
    assert record.properties == {"k": "v"}
    for ledger_id, value in record.acked.items():  # no entries that the mark already covers
        ((first, _), *_) = AckSet.decode(value).runs(0, 10)
        assert (ledger_id, first) > record.mark_delete_position
    twins.agree(again, 0)


@pytest.mark.parametrize("count", [511, 512, 513, 514, 1200])
def test_long_runs_of_acknowledgements_in_order_and_backwards(count):
    """Entries that the mark has passed are forgotten in groups."""
    index = index_of((3, count), (5, 10))
    forwards = ManagedCursor("f", index, EARLIEST, {})
    backwards = ManagedCursor("b", index, EARLIEST, {})
    backwards.delete_batch_indexes((3, 1), 1, 2)
    for entry in range(count):
        assert forwards.delete(3, entry)
        assert backwards.delete(3, count - 1 - entry)
    for cursor in (forwards, backwards):
        assert cursor.mark_delete_position == (3, count - 1)
        assert acknowledged_behind(cursor) == 0
        assert cursor.backlog(LATEST) == 10
        assert not cursor.partial_batches
        assert not cursor.delete(3, 0)


def test_ledgers_that_went_take_the_mark_along():
    index = index_of((3, 4), (6, 2), (9, 2))
    cursor = ManagedCursor("s", index, Position(3, 1), {})
    cursor.delete(6, 0)
    index.remove([3])
    cursor.skip_removed()
    assert cursor.mark_delete_position == (6, 0)
    cursor.skip_removed()
    assert cursor.mark_delete_position == (6, 0)
    assert cursor.backlog(LATEST) == 3


def test_a_mark_in_a_ledger_that_is_gone_moves_up_when_it_is_read_back():
    cursor = ManagedCursor("s", index_of((6, 2), (9, 2)), Position(3, 1), {})
    acks = AckSet()
    acks.add(0)
    cursor.restore(CursorRecord(Position(3, 1), {}, {6: acks.encode()}, {(3, 2): 1, (9, 1): 2}))
    assert cursor.mark_delete_position == (6, 0)
    assert cursor.partial_batches == {(9, 1): 2}
    assert cursor.backlog(LATEST) == 3


def test_a_range_that_is_acknowledged_already_changes_nothing():
    told: list[ManagedCursor] = []
    cursor = ManagedCursor("s", index_of((3, 4), (6, 2)), Position(3, 2), {}, on_dirty=told.append)
    cursor.delete_range(3, 0, 2)
    cursor.delete_range(2, 0, 9)
    assert (told, cursor.mark_delete_position) == ([], (3, 2))
    cursor.delete_range(3, 0, 9)
    assert (told, cursor.mark_delete_position) == ([cursor], (3, 3))
    assert acknowledged_behind(cursor) == 0
