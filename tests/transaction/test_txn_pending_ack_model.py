"""Pending acknowledgements against a model: a flag and a holder for each index of each batch."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from txn_world import cursor_over

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks.records import (
    AckRecord,
    Conflict,
    EndRecord,
    PendingAck,
    Record,
)
from pybroker.transaction.pending_acks.state import PendingAckState
from pybroker.transaction.pending_acks.store import decode_entry, encode_entry
from pybroker.transaction.txn_status import TxnAction

ENTRIES, SIZE = 5, 4
ALL = (1 << SIZE) - 1
Script = list[tuple[Any, ...]]
MESSAGES = [(entry, index) for entry in range(ENTRIES) for index in range(SIZE)]

entry_ids = st.integers(0, ENTRIES - 1)
txn_ids = st.integers(0, 2).map(lambda least: TxnId(0, least))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), txn_ids, entry_ids, st.integers(1, ALL)),
        st.tuples(st.just("take up to"), txn_ids, entry_ids, st.just(ALL)),
        st.tuples(st.just("commit"), txn_ids),
        st.tuples(st.just("abort"), txn_ids),
    ),
    max_size=40,
)


def ack_of(entry: int, bits: int) -> PendingAck:
    position = Position(0, entry)
    return PendingAck(position, ALL & ~bits, SIZE) if bits != ALL else PendingAck(position)


@dataclass
class Model:
    acked: set[tuple[int, int]] = field(default_factory=set)
    holders: dict[tuple[int, int], TxnId] = field(default_factory=dict)
    up_to: tuple[TxnId, int] | None = None
    covered: set[tuple[int, int]] = field(default_factory=set)  # by the cumulative acknowledgement

    def take(self, txn_id: TxnId, entry: int, bits: int) -> bool:
        wanted = [(entry, index) for index in range(SIZE) if bits >> index & 1]
        if all((entry, index) in self.acked for index in range(SIZE)):
            return False
        if any(at in self.holders for at in wanted):
            return False
        if self.up_to is not None and self.up_to[0] != txn_id and self.covered & set(wanted):
            return False
        if bits != ALL and any(at in self.acked for at in wanted):
            return False
        self.holders.update(dict.fromkeys(wanted, txn_id))
        return True

    def take_up_to(self, txn_id: TxnId, entry: int) -> bool:
        if all(at in self.acked for at in MESSAGES if at[0] <= entry):
            return False
        if self.up_to is not None and (self.up_to[0] != txn_id or self.up_to[1] >= entry):
            return False
        self.up_to = (txn_id, entry)
        self.covered = {
            at for at in MESSAGES if at[0] <= entry and self.holders.get(at, txn_id) == txn_id
        }
        return True

    def end(self, txn_id: TxnId, commit: bool) -> None:
        mine = [at for at, holder in self.holders.items() if holder == txn_id]
        for at in mine:
            del self.holders[at]
        if self.up_to is not None and self.up_to[0] == txn_id:
            mine += self.covered
            self.up_to, self.covered = None, set()
        if commit:
            self.acked.update(mine)


def acked_in(cursor: ManagedCursor) -> set[tuple[int, int]]:
    found = set()
    for entry, index in MESSAGES:
        unacked = cursor.unacked_indexes((0, entry))
        left = ALL if unacked is None else unacked
        if cursor.is_deleted((0, entry)) or not left >> index & 1:
            found.add((entry, index))
    return found


def play(script: Script) -> tuple[PendingAckState, ManagedCursor, Model, list[Record]]:
    cursor, model, records = cursor_over(ENTRIES), Model(), []
    state = PendingAckState(cursor)
    for kind, txn_id, *rest in script:
        if kind in ("commit", "abort"):
            model.end(txn_id, kind == "commit")
            if kind == "commit":
                state.commit(txn_id)
            else:
                state.drop(txn_id)
            records.append(EndRecord(txn_id, TxnAction[kind.upper()]))
            continue
        entry, bits = rest
        ack = ack_of(entry, bits)
        cumulative = kind == "take up to"
        try:
            if cumulative:
                records.append(state.take_cumulative(txn_id, ack))
            else:
                state.take(txn_id, [ack])
                records.append(AckRecord(txn_id, False, [ack]))
            taken = True
        except Conflict:
            taken = False
        expected = (
            model.take_up_to(txn_id, entry) if cumulative else model.take(txn_id, entry, bits)
        )
        assert taken == expected
    return state, cursor, model, records


def held_in(state: PendingAckState) -> object:
    pending = [(state.is_pending((0, e)), state.pending_indexes((0, e))) for e in range(ENTRIES)]
    return (
        pending,
        state.cumulative(),
        {txn: t.held() for txn, t in state.transactions.items()},
    )


@given(steps)
def test_conflicts_and_cursor_are_those_of_the_model(script: Script) -> None:
    _, cursor, model, _ = play(script)
    assert acked_in(cursor) == model.acked


@given(steps)
def test_an_entry_is_pending_when_nothing_of_it_is_left(script: Script) -> None:
    state, cursor, model, _ = play(script)
    for entry in range(ENTRIES):
        if cursor.is_deleted((0, entry)):
            continue
        left = [
            index
            for index in range(SIZE)
            if (entry, index) not in model.acked and (entry, index) not in model.holders
        ]
        assert state.is_pending((0, entry)) == (not left)


@given(steps, st.booleans())
def test_replay_holds_what_was_held(script: Script, cursor_was_written: bool) -> None:
    state, cursor, _, records = play(script)
    replayed_cursor = cursor if cursor_was_written else cursor_over(ENTRIES)
    replayed = PendingAckState(replayed_cursor)
    snapshot = state.records()
    for record in decode_entry(encode_entry([*records, *snapshot]), "test"):
        if isinstance(record, EndRecord):
            if record.action is TxnAction.COMMIT:
                replayed.commit(record.txn_id)
            else:
                replayed.drop(record.txn_id)
        elif isinstance(record, AckRecord):
            if record.cumulative:
                replayed.hold_cumulative(record)
                continue
            for ack in record.acks:
                replayed.hold(record.txn_id, ack)
    assert held_in(replayed) == held_in(state)
    assert acked_in(replayed_cursor) == acked_in(cursor)


@given(steps, txn_ids, st.lists(st.tuples(entry_ids, st.integers(1, ALL)), min_size=1, max_size=4))
def test_giving_back_leaves_no_trace(
    script: Script,
    txn_id: TxnId,
    wanted: list[tuple[int, int]],
) -> None:
    state, _, _, _ = play(script)
    before = held_in(state)
    acks = [ack_of(entry, bits) for entry, bits in wanted]
    try:
        state.take(txn_id, acks)
    except Conflict:
        pass
    else:
        state.give_back(txn_id, acks)
    assert held_in(state) == before
