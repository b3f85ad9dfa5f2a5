"""A commit of many single acknowledgements works on runs of consecutive entries."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from txn_world import cursor_over

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.pending_acks.state import PendingAckState

ID = TxnId(0, 1)


def committing(entry_ids: list[int], before: list[int]) -> ManagedCursor:
    cursor = cursor_over(40)
    for entry_id in before:
        cursor.delete(0, entry_id)
    state = PendingAckState(cursor)
    for entry_id in entry_ids:
        state.hold(ID, PendingAck(Position(0, entry_id)))
    state.commit(ID)
    assert state.is_empty and not state.transactions
    return cursor


ids = st.lists(st.integers(0, 45), max_size=30)


@given(ids, ids)
def test_it_acknowledges_what_was_held_and_no_more(held: list[int], before: list[int]) -> None:
    cursor = committing(held, before)
    expected = {entry_id for entry_id in (*held, *before) if entry_id < 40}
    assert {entry_id for entry_id in range(40) if cursor.is_deleted((0, entry_id))} == expected
    first_left = next(entry_id for entry_id in range(41) if entry_id not in expected)
    assert cursor.mark_delete_position == Position(0, first_left - 1)
    assert cursor.backlog(Position(0, 39)) == 40 - len(expected)


def test_consecutive_ones_are_one_piece_of_work() -> None:
    with patch.object(ManagedCursor, "delete_range", autospec=True) as in_one_go:
        committing([*range(1, 20), *range(25, 40)], [])
    assert [call.args[1:] for call in in_one_go.call_args_list] == [(0, 1, 19), (0, 25, 39)]
