"""Cumulative acknowledgements that name what they cover, against sets of messages."""

from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from txn_world import cursor_over

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks import state as pending_ack_state
from pybroker.transaction.pending_acks.covered import Covered
from pybroker.transaction.pending_acks.records import ALL_INDEXES, Conflict, Held, PendingAck
from pybroker.transaction.pending_acks.state import PendingAckState
from pybroker.transaction.pending_acks.store import decode_entry, encode_entry

ENTRIES, SIZE = 8, 3  # odd entries are batches
ONE, TWO = TxnId(0, 1), TxnId(0, 2)
Message = tuple[int, int]
MESSAGES: list[Message] = [
    (entry, index) for entry in range(ENTRIES) for index in range(SIZE if entry % 2 else 1)
]
EVERYTHING = (1 << SIZE) - 1
some = st.sets(st.sampled_from(MESSAGES))


def acks_of(messages: set[Message]) -> list[PendingAck]:
    entries = sorted({entry for entry, _ in messages})
    return [ack_of(entry, {i for e, i in messages if e == entry}) for entry in entries]


def ack_of(entry: int, indexes: set[int]) -> PendingAck:
    if entry % 2 == 0:
        return PendingAck(Position(0, entry))
    left = EVERYTHING & ~sum(1 << index for index in indexes)
    return PendingAck(Position(0, entry), left or None, SIZE)


def covered_by(messages: set[Message], unacknowledged: list[tuple[int, int, int]]) -> Covered:
    acks = acks_of(messages)
    runs = [
        (0, ack.position.entry_id, ack.position.entry_id)
        for ack in acks
        if ack.position.entry_id % 2 == 0
    ]
    covered = Covered(runs, [ack for ack in acks if ack.position.entry_id % 2])
    covered.unacknowledged = unacknowledged
    return covered


def up_to(last: Message) -> PendingAck:
    return ack_of(last[0], set(range(last[1] + 1)))


def in_entry(entry: int, held: Held) -> Iterator[Message]:
    size = SIZE if entry % 2 else 1
    return ((entry, index) for index in range(size) if held.bits >> index & 1)


def left_in(state: PendingAckState) -> set[Message]:
    cursor = state._cursor
    left = set[Message]()
    for entry in range(ENTRIES):
        if not cursor.is_deleted((0, entry)):
            unacked = cursor.unacked_indexes((0, entry))
            left.update(in_entry(entry, Held(ALL_INDEXES if unacked is None else unacked)))
    return left


@settings(max_examples=300, deadline=None)
@given(some, some, some, some)
def test_it_takes_what_it_names_or_nothing(
    acknowledged: set[Message], others: set[Message], own: set[Message], named: set[Message]
) -> None:
    state = PendingAckState(cursor_over(ENTRIES))
    others -= acknowledged
    own -= acknowledged | others
    for ack in acks_of(acknowledged):
        if ack.still_unacked:
            state._cursor.delete_batch_indexes(ack.position, ack.still_unacked, SIZE)
        else:
            state._cursor.delete(*ack.position)
    state.take(ONE, acks_of(others))
    state.take(TWO, acks_of(own))
    if not named:
        return
    last = max(named)
    deleted = state._cursor.deleted_within(0, 0, last[0])
    holes = set(chain.from_iterable(range(first, stop + 1) for first, stop in deleted))
    entries = [(0, entry, entry) for entry in range(last[0] + 1) if entry not in holes]
    covered = covered_by(named, entries)
    if named & (acknowledged | others):
        with pytest.raises(Conflict):
            state.take_cumulative(TWO, up_to(last), covered=covered)
        return
    record = state.take_cumulative(TWO, up_to(last), covered=covered)
    assert decode_entry(encode_entry([record]), "test") == [record]
    spared = set(chain.from_iterable(in_entry(at.entry_id, h) for at, h in record.spared.items()))
    everything = {each for each in MESSAGES if each <= last}
    assert spared - acknowledged == everything - named - acknowledged - own
    state.commit(TWO)
    assert left_in(state) == set(MESSAGES) - named - acknowledged - own


def test_what_its_transaction_has_named_before_stays_taken() -> None:
    state = PendingAckState(cursor_over(ENTRIES))
    state.take_cumulative(ONE, up_to((2, 0)), covered=covered_by({(0, 0), (2, 0)}, [(0, 0, 2)]))
    state.take_cumulative(ONE, up_to((4, 0)), covered=covered_by({(4, 0)}, [(0, 0, 4)]))
    state.commit(ONE)
    assert {each for each in left_in(state) if each <= (4, 0)} == {
        *((1, index) for index in range(SIZE)),
        *((3, index) for index in range(SIZE)),
    }


@settings(max_examples=300, deadline=None)
@given(some, some, st.lists(some, min_size=2, max_size=4))
def test_a_transaction_takes_what_it_names_one_after_the_other(
    others: set[Message], singly: set[Message], each: list[set[Message]]
) -> None:
    state = PendingAckState(cursor_over(ENTRIES))
    state.take(ONE, acks_of(others))
    state.take(TWO, acks_of(singly - others))
    taken = singly - others
    reached = (-1, 0)
    for named in each:
        named -= others
        if not named or (last := max(named)) <= reached:
            continue
        entries = [(0, 0, last[0])]
        record = state.take_cumulative(TWO, up_to(last), covered=covered_by(named, entries))
        assert decode_entry(encode_entry([record]), "test") == [record]
        taken |= named
        reached = last
    state.drop(ONE)
    state.commit(TWO)
    assert left_in(state) == set(MESSAGES) - taken


def test_what_its_transaction_has_taken_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that names little may follow one that took very many messages."""
    state = PendingAckState(cursor_over(ENTRIES))
    covered = Covered([(0, 0, 2), (0, 4, 5)], [])
    covered.unacknowledged = [(0, 0, 5)]
    state.take_cumulative(ONE, PendingAck(Position(0, 5)), covered=covered)
    looked_at = list[Position]()
    monkeypatch.setattr(ManagedCursor, "unacked_indexes", lambda _, at: looked_at.append(at))
    covered = Covered([(0, 7, 7)], [])
    covered.unacknowledged = [(0, 0, 7)]
    record = state.take_cumulative(ONE, PendingAck(Position(0, 7)), covered=covered)
    assert looked_at == [Position(0, 3), Position(0, 5), Position(0, 6)]
    assert list(record.spared) == [Position(0, 3), Position(0, 6)]


def test_it_leaves_out_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_ack_state, "MOST_SPARED", 3)
    state = PendingAckState(cursor_over(ENTRIES))
    covered = Covered([(0, 3, 4)], [])
    covered.unacknowledged = [(0, 0, 4)]
    state.take_cumulative(ONE, PendingAck(Position(0, 4)), covered=covered)
    covered = Covered([(0, 5, 5)], [])
    covered.unacknowledged = [(0, 0, 5)]
    state.give_back_cumulative(state.transactions[ONE].cumulative[-1])
    with pytest.raises(Conflict, match="acknowledge each message individually"):
        state.take_cumulative(ONE, PendingAck(Position(0, 5)), covered=covered)


def test_aborted_messages_that_a_reader_of_uncommitted_ones_received_do_not_conflict() -> None:
    state = PendingAckState(cursor_over(ENTRIES))
    state._cursor.delete_range(0, 1, 2)
    covered = Covered([(0, 0, 3)], [])
    covered.unacknowledged = [(0, 0, 0), (0, 3, 3)]
    with pytest.raises(Conflict, match="already acknowledged"):
        state.take_cumulative(ONE, PendingAck(Position(0, 3)), covered=covered)
    covered.hidden = lambda *_: [(1, 2)]
    state.take_cumulative(ONE, PendingAck(Position(0, 3)), covered=covered)


def test_runs_that_overlap_hide_nothing_that_another_transaction_holds() -> None:
    state = PendingAckState(cursor_over(ENTRIES))
    state.take(ONE, [PendingAck(Position(0, 5))])
    covered = Covered([(0, 0, 7), (0, 1, 1), (0, 4, 3)], [])
    covered.unacknowledged = [(0, 0, 7)]
    with pytest.raises(Conflict, match="an open transaction"):
        state.take_cumulative(TWO, PendingAck(Position(0, 7)), covered=covered)
