"""Pending acknowledgements by examples: sizes, records, and giving back after a failed write."""

import sys
from unittest.mock import patch

import pytest
from txn_world import cursor_over

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks import acks_of_transaction
from pybroker.transaction.pending_acks import state as pending_ack_state
from pybroker.transaction.pending_acks.records import (
    HELD_WHOLE,
    AckRecord,
    Conflict,
    EndRecord,
    Held,
    PendingAck,
)
from pybroker.transaction.pending_acks.state import PendingAckState
from pybroker.transaction.pending_acks.store import decode_entry, encode_entry
from pybroker.transaction.txn_status import TxnAction

ONE, TWO = TxnId(0, 1), TxnId(0, 2)
AT = [Position(0, entry) for entry in range(5)]


def part(position: Position, *acked: int, size: int = 8) -> PendingAck:
    """Acknowledges these indexes of a batch."""
    return PendingAck(position, ((1 << size) - 1) & ~sum(1 << index for index in acked), size)


@pytest.fixture
def cursor() -> ManagedCursor:
    return cursor_over(len(AT))


@pytest.fixture
def state(cursor: ManagedCursor) -> PendingAckState:
    return PendingAckState(cursor)


def test_its_size_is_that_of_what_is_held(state: PendingAckState) -> None:
    assert (state.is_empty, state.size) == (True, 0)
    state.take(ONE, [PendingAck(AT[0]), PendingAck(AT[1]), part(AT[2], 0)])
    state.take(TWO, [part(AT[2], 1), part(AT[3], 1)])
    assert (state.is_empty, state.size) == (False, 2 + 2 + 2)
    state.drop(ONE)
    assert state.size == 2 + 1


@pytest.mark.parametrize("ack", [PendingAck(AT[0]), part(AT[0], 3)])
def test_one_acknowledgement_is_enough_to_be_not_empty(
    state: PendingAckState, ack: PendingAck
) -> None:
    state.take(ONE, [ack])
    assert not state.is_empty
    state.drop(ONE)
    assert state.is_empty
    state.take_cumulative(ONE, ack)
    assert not state.is_empty


def test_the_first_entry_of_which_something_is_pending(
    cursor: ManagedCursor, state: PendingAckState
) -> None:
    assert state.first() is None
    state.take(ONE, [part(AT[3], 1)])
    assert state.first() == AT[3]
    state.take(TWO, [PendingAck(AT[2])])
    assert state.first() == AT[2]
    state.drop(TWO)
    cursor.mark_delete(AT[0])
    state.take_cumulative(TWO, PendingAck(AT[2]))
    assert state.first() == AT[1]


def test_the_records_of_a_transaction_bring_about_what_it_holds(state: PendingAckState) -> None:
    state.take(ONE, [PendingAck(AT[4]), part(AT[3], 0, 7)])
    state.take(TWO, [part(AT[3], 1)])
    state.take_cumulative(TWO, PendingAck(AT[0]))
    state.take_cumulative(TWO, part(AT[1], 0))
    assert list(state.records()) == [
        AckRecord(ONE, False, [PendingAck(AT[4]), part(AT[3], 0, 7)]),
        AckRecord(TWO, False, [part(AT[3], 1)]),
        AckRecord(TWO, True, (part(AT[1], 0),)),
    ]


@pytest.mark.parametrize("becomes", ["on its way", "durable", "failed"])
def test_nothing_more_is_told_of_a_transaction_whose_end_is_on_its_way(
    state: PendingAckState, becomes: str
) -> None:
    """The end precedes all later records in the log. If its write fails, everything is recorded."""
    state.take(ONE, [PendingAck(AT[1]), PendingAck(AT[2])])
    state.take(TWO, [PendingAck(AT[3])])
    records = state.records()
    with patch.object(acks_of_transaction, "_ACKS_PER_RECORD", 1):
        assert next(records) == AckRecord(ONE, False, [PendingAck(AT[1])])
        state.transactions[ONE].action = TxnAction.ABORT
        assert next(records) == AckRecord(TWO, False, [PendingAck(AT[3])])
        if becomes == "failed":
            state.transactions[ONE].action = None
            told = [AckRecord(ONE, False, [PendingAck(AT[number])]) for number in (1, 2)]
            assert list(records) == told
        elif becomes == "durable":
            state.drop(ONE)
            assert list(records) == []
        else:
            assert list(records) == [EndRecord(ONE, TxnAction.ABORT)]


def test_what_is_given_back_twice_is_given_back_once(state: PendingAckState) -> None:
    """Another transaction holds an index of the same batch, and this one holds another message."""
    mine = [PendingAck(AT[0]), part(AT[1], 0)]
    state.take(ONE, [*mine, PendingAck(AT[3])])
    state.take(TWO, [part(AT[1], 1)])
    for _ in range(2):
        state.give_back(ONE, mine)
        assert state.pending_indexes(AT[1]) == 0b10
        assert not state.is_pending(AT[0])
        assert state.transactions[ONE].held() == {AT[3]: HELD_WHOLE}
    state.give_back(TWO, [part(AT[1], 1)])
    assert list(state.transactions) == [ONE]
    state.give_back(ONE, [PendingAck(AT[3])])
    assert (state.is_empty, state.size) == (True, 0)
    state.give_back(ONE, mine)
    assert state.is_empty


def test_what_is_given_back_is_of_the_one_that_held_it(state: PendingAckState) -> None:
    state.take(ONE, [part(AT[1], 0)])
    state.take(TWO, [part(AT[1], 1), PendingAck(AT[0])])
    state.give_back(ONE, [part(AT[1], 0, 1), PendingAck(AT[0])])
    assert state.pending_indexes(AT[1]) == 0b10
    assert state.is_pending(AT[0])


def test_a_cumulative_one_that_is_given_back_leaves_the_one_before(state: PendingAckState) -> None:
    first, second = PendingAck(AT[1]), PendingAck(AT[3])
    record = state.take_cumulative(ONE, first)
    further = state.take_cumulative(ONE, second)
    for _ in range(2):
        state.give_back_cumulative(further)
        assert state.cumulative() == first
    with pytest.raises(Conflict, match=r"transaction \(0,1\)"):
        state.take_cumulative(TWO, second)
    for _ in range(2):
        state.give_back_cumulative(record)
        assert state.is_empty and not state.transactions
    state.take_cumulative(TWO, second)


def test_of_cumulative_ones_those_before_a_durable_one_take_no_memory(
    state: PendingAckState,
) -> None:
    first, second, third = (state.take_cumulative(ONE, PendingAck(at)) for at in AT[1:4])
    for durable in (second, first):  # in any order
        state.forget_before(durable)
        assert state.transactions[ONE].cumulative == [second, third]
    state.give_back_cumulative(third)
    assert state.cumulative() == second.last
    state.drop(ONE)
    state.forget_before(second)
    assert not state.transactions


def test_a_transaction_that_is_ending_stays_though_it_holds_nothing(
    state: PendingAckState,
) -> None:
    state.take(ONE, [PendingAck(AT[0])])
    record = state.take_cumulative(ONE, PendingAck(AT[1]))
    state.transactions[ONE].ending = object()  # type: ignore[assignment]
    state.give_back(ONE, [PendingAck(AT[0])])
    state.give_back_cumulative(record)
    assert list(state.transactions) == [ONE]


@pytest.mark.parametrize("whole_last", [True, False])
def test_of_cumulative_ones_the_last_is_acknowledged(
    state: PendingAckState, cursor: ManagedCursor, whole_last: bool
) -> None:
    state.take_cumulative(ONE, PendingAck(AT[0]))
    state.take_cumulative(ONE, part(AT[2], 0))
    if whole_last:
        state.take_cumulative(ONE, PendingAck(AT[2]))
    with pytest.raises(Conflict, match="already acknowledged"):
        state.take_cumulative(ONE, part(AT[2], 0))
    state.commit(ONE)
    assert cursor.mark_delete_position == AT[2 if whole_last else 1]
    assert cursor.unacked_indexes(AT[2]) == (None if whole_last else 0b11111110)
    assert state.is_empty


def test_a_conflict_names_the_indexes_that_are_acknowledged(
    state: PendingAckState, cursor: ManagedCursor
) -> None:
    cursor.delete_batch_indexes(AT[0], 0b11111010, 8)
    with pytest.raises(Conflict, match="messages 0 and 2 of the batch already acknowledged"):
        state.take(ONE, [part(AT[0], 0, 1, 2)])
    state.take(ONE, [part(AT[0], 1)])


def test_what_is_held_cumulatively_is_not_kept_from_consumers(state: PendingAckState) -> None:
    state.take_cumulative(ONE, part(AT[2], 0, size=2))
    state.take(TWO, [part(AT[2], 1, size=2)])
    assert not any(map(state.is_pending, AT[:4]))
    assert [state.pending_indexes(position) for position in AT[:4]] == [0, 0, 0b10, 0]


def test_what_one_holds_cumulatively_no_other_one_takes_singly(state: PendingAckState) -> None:
    state.take_cumulative(ONE, part(AT[2], 0, 1))
    for taken in (PendingAck(AT[1]), part(AT[1], 3), PendingAck(AT[2]), part(AT[2], 1, 2)):
        with pytest.raises(Conflict, match="cumulatively; retry"):
            state.take(TWO, [taken])
    state.take(TWO, [part(AT[2], 2), PendingAck(AT[3])])
    state.take(ONE, [PendingAck(AT[1])])


def test_a_cumulative_one_spares_what_others_hold_singly(
    state: PendingAckState, cursor: ManagedCursor
) -> None:
    state.take(ONE, [PendingAck(AT[1]), part(AT[2], 0), PendingAck(AT[4])])
    state.take(TWO, [PendingAck(AT[0]), part(AT[2], 1)])
    record = state.take_cumulative(TWO, PendingAck(AT[3]))
    assert record.spared == {AT[1]: HELD_WHOLE, AT[2]: Held(0b1, 8)}
    state.drop(ONE)
    state.take(ONE, [PendingAck(AT[1]), part(AT[2], 0)])  # spared, so still free
    state.drop(ONE)
    state.commit(TWO)
    assert [cursor.is_deleted(each) for each in AT[:5]] == [True, False, False, True, False]
    assert cursor.unacked_indexes(AT[2]) == 0b1


def test_a_cumulative_one_spares_what_its_consumer_was_not_given(
    state: PendingAckState, cursor: ManagedCursor
) -> None:
    not_given = {AT[0]: Held(0b100, 8), AT[2]: Held(0b10, 8)}
    state.take(ONE, [part(AT[2], 3)])
    record = state.take_cumulative(TWO, part(AT[2], 0, 1, 3), not_given)
    assert record.spared == {AT[0]: Held(0b100, 8), AT[2]: Held(0b1010, 8)}
    state.commit(TWO)
    assert [cursor.unacked_indexes(each) for each in AT[:3]] == [0b100, None, 0b11111110]
    assert cursor.is_deleted(AT[1])


def test_a_cumulative_one_spares_nothing_that_the_same_transaction_covers_already(
    state: PendingAckState,
) -> None:
    whole, half = Held(), Held(0b1100, 4)
    state.take_cumulative(ONE, part(AT[2], 0, 1, 2, size=4), {AT[0]: half})
    not_given = {AT[0]: whole, AT[1]: whole, AT[2]: half, AT[3]: half, AT[4]: whole}
    record = state.take_cumulative(ONE, PendingAck(AT[4]), not_given)
    last = Held(0b1000, 4)
    assert record.spared == {AT[0]: half, AT[2]: last, AT[3]: half, AT[4]: whole}


def test_a_cumulative_one_spares_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_ack_state, "MOST_SPARED", 1000)
    cursor = cursor_over(3000)
    state, last = PendingAckState(cursor), PendingAck(Position(0, 2500))
    for entry_id in range(1000):
        state.take(ONE, [PendingAck(Position(0, 2 * entry_id))])
    assert len(state.take_cumulative(TWO, last).spared) == 1000
    state.drop(TWO)
    state.take(ONE, [PendingAck(Position(0, 2001))])
    with pytest.raises(Conflict, match="more than 1000 messages before it"):
        state.take_cumulative(TWO, last)


def test_what_is_spared_is_told_again(state: PendingAckState) -> None:
    state.take(ONE, [PendingAck(AT[1]), part(AT[2], 0)])
    record = state.take_cumulative(TWO, PendingAck(AT[3]))
    assert decode_entry(encode_entry([record]), "test") == [record]
    assert record in list(state.records())


def test_a_whole_entry_has_no_indexes_of_its_own(state: PendingAckState) -> None:
    assert [PendingAck(AT[0], left, 8).acked_indexes for left in (None, 0, 0b11)] == [
        0,
        0,
        0b11111100,
    ]
    state.take_cumulative(ONE, PendingAck(AT[1]))
    assert [state.pending_indexes(position) for position in AT] == [0] * 5


def test_what_is_kept_of_a_batch_is_as_large_as_what_said_so(
    state: PendingAckState, cursor: ManagedCursor
) -> None:
    """A few bytes can acknowledge all but the first of a million messages."""
    size = 1_000_000
    first = PendingAck(AT[1], 1, size)
    state.take(ONE, [first])
    (held,), (left,) = state.transactions[ONE].indexes.values(), state._indexes.values()
    assert sys.getsizeof(held) + sys.getsizeof(left) < 100
    assert state.pending_indexes(AT[1]) == (1 << size) - 2
    assert list(state.records()) == [AckRecord(ONE, False, [first])]
    state.commit(ONE)
    assert cursor.unacked_indexes(AT[1]) == 1


@pytest.mark.parametrize("ack", [PendingAck(AT[1]), part(AT[1], 3)])
def test_two_that_hold_the_same_as_a_log_has_it_may_both_end(
    state: PendingAckState, cursor: ManagedCursor, ack: PendingAck
) -> None:
    """Earlier versions wrote such logs."""
    state.hold(ONE, ack)
    state.hold(TWO, ack)
    state.drop(ONE)
    state.commit(TWO)
    assert state.is_empty and not state.transactions
    assert cursor.is_deleted(AT[1]) or cursor.unacked_indexes(AT[1]) == ack.still_unacked
