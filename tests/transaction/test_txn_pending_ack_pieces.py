"""An end of many acknowledgements takes effect in pieces, but looks atomic from outside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, patch

import pytest
from hypothesis import given
from test_txn_pending_ack_model import Script, acked_in, held_in, play, steps, txn_ids
from test_txn_pending_acks import indexes, ten_messages, whole
from txn_world import ABORT, COMMIT, World, ended, in_world, in_world_with, soon

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.errors import InvalidTxnStatus, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.transaction.pending_acks import applying, pending_ack
from pybroker.transaction.pending_acks.applying import abort_in_pieces, commit_in_pieces
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.pending_acks.state import PendingAckState
from pybroker.transaction.txn_status import TxnAction

BOTH_ENDS = pytest.mark.parametrize("action", [COMMIT, ABORT])
A_TURN = 2


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    with patch.object(applying, "PIECE", 1), patch.object(applying, "APPLIED_A_TURN", A_TURN):
        yield


class Turns:
    """Counts what is applied in each turn of the loop, while the context is entered."""

    def __init__(self, acks: PendingAcks) -> None:
        self._state = acks._state
        self.applied = [0]
        self._awaited: tuple[int, asyncio.Event] | None = None

    def __enter__(self) -> "Turns":
        self._next_turn()
        some, drop = self._state.commit_some, self._state.drop_some

        def commit_some(txn_id: TxnId, most: int) -> int:
            count = some(txn_id, most)
            self._count(count)
            return count

        def drop_some(txn_id: TxnId, positions: Any) -> Any:
            dropped = drop(txn_id, positions)
            self._count(len(dropped))
            return dropped

        self._patch = patch.multiple(self._state, commit_some=commit_some, drop_some=drop_some)
        self._patch.start()
        return self

    def _next_turn(self) -> None:
        self.applied.append(0)
        self._handle = asyncio.get_running_loop().call_soon(self._next_turn)

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()
        self._patch.stop()

    async def until(self, count: int) -> None:
        """Returns when `count` entries are in force."""
        self._awaited = awaited = count, asyncio.Event()
        await awaited[1].wait()

    def _count(self, applied: int) -> None:
        self.applied[-1] += applied
        if self._awaited is not None and sum(self.applied) >= self._awaited[0]:
            self._awaited[1].set()


async def nine_held(world: World) -> tuple[PendingAcks, list[Position], TxnId]:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, [*whole(*at[8:2:-1], at[0]), indexes(at[1], 2), indexes(at[2])])
    return acks, at, txn_id


@BOTH_ENDS
def test_no_turn_applies_more_than_its_share(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, _, txn_id = await nine_held(world)
        with Turns(acks) as turns:
            await ended(acks.end(txn_id, action))
        assert sum(turns.applied) == 8
        assert max(turns.applied) == A_TURN
        assert not acks.stats()

    scenario()


@BOTH_ENDS
def test_short_ends_pass_a_long_one(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        short = await world.begin_acking()
        await acks.acknowledge(short, whole(at[9]))
        with Turns(acks) as turns:
            long_end, short_end = acks.end(txn_id, action), acks.end(short, action)
            await ended(short_end)
            assert long_end is not None and not long_end.done()
            assert sum(turns.applied) < 8
            await long_end

    scenario()


@in_world
async def test_of_many_short_ends_in_one_turn_some_wait(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_ids = [await world.begin_acking() for _ in range(5)]
    for txn_id, position in zip(txn_ids, at, strict=False):
        await acks.acknowledge(txn_id, whole(position))
    with Turns(acks) as turns:
        endings = [acks.end(txn_id, COMMIT) for txn_id in txn_ids]
        for ending in endings:
            await ended(ending)
    assert sum(turns.applied) == 5 - A_TURN, "those that did not fit"
    assert (await world.cursor("sub")).mark_delete_position == at[4]


@in_world
async def test_what_is_not_in_force_yet_is_held_as_before(world: World) -> None:
    acks, at, txn_id = await nine_held(world)
    cursor, other = await world.cursor("sub"), await world.begin_acking()
    with Turns(acks) as turns:
        ending = acks.end(txn_id, COMMIT)
        for count in (1, 3, 5):
            await turns.until(count)
            for position in at[3:9]:
                assert acks.is_pending(*position) or cursor.is_deleted(position)
                with pytest.raises(TransactionConflict):
                    acks.acknowledge(other, whole(position))
            with pytest.raises(InvalidTxnStatus):
                acks.acknowledge(txn_id, whole(at[9]))
        await ended(ending)


@in_world
async def test_an_abort_in_pieces_gives_back_in_the_order_of_the_log(world: World) -> None:
    acks, at, txn_id = await nine_held(world)
    restored: list[Position] = []
    acks.on_restored = lambda _, some: restored.extend(some)
    await ended(acks.end(txn_id, ABORT))
    assert restored == [at[0], at[1], *at[3:9]]


@in_world
async def test_what_was_given_back_can_be_taken_while_the_rest_is_held(world: World) -> None:
    acks, at, txn_id = await nine_held(world)
    other = await world.begin_acking()
    with Turns(acks) as turns:
        ending = acks.end(txn_id, ABORT)
        await turns.until(1)
        taken = acks.acknowledge(other, whole(at[0]))
        assert acks.is_pending(*at[8])
        await ended(ending)
        await taken
    assert [each.txn_id for each in acks.stats()] == [other]
    assert acks.is_pending(*at[0])


@BOTH_ENDS
def test_a_snapshot_waits_for_what_the_log_does_not_tell_again(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        with Turns(acks) as turns:
            ending = acks.end(txn_id, action)
            await turns.until(1)
            checkpoint = asyncio.create_task(acks.checkpoint())
            await asyncio.sleep(0)
            assert ending is not None and not ending.done()
            await checkpoint
        world = await world.crashed()
        acks, cursor = await world.acks(), await world.cursor("sub")
        assert not acks.stats()
        ends_as_committed = action is COMMIT
        assert all(cursor.is_deleted(each) == ends_as_committed for each in at[3:9])

    scenario()


@BOTH_ENDS
def test_a_crash_between_two_pieces_loses_nothing(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        with Turns(acks) as turns:
            ending = acks.end(txn_id, action)
            await turns.until(3)
            acks._applying._long.clear()  # the process ends before the rest
            await (await world.cursor("sub")).flush()
            assert ending is not None and not ending.done()
            world = await world.crashed()
        acks, cursor = await world.acks(), await world.cursor("sub")
        assert not acks.stats()
        ends_as_committed = action is COMMIT
        assert all(cursor.is_deleted(each) == ends_as_committed for each in at[3:9])

    scenario()


@BOTH_ENDS
def test_closing_waits_for_the_rest(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        restored: list[Position] = []
        acks.on_restored = lambda _, some: restored.extend(some)
        with Turns(acks) as turns:
            ending = acks.end(txn_id, action)
            await turns.until(1)
            await acks.close()
        assert ending is not None and ending.done()
        cursor = await world.cursor("sub")
        if action is COMMIT:
            assert cursor.mark_delete_position == at[0]
            assert all(map(cursor.is_deleted, at[3:9]))
        else:
            assert restored == [at[0], at[1], *at[3:9]]

    scenario()


@in_world
async def test_an_end_that_lands_while_it_closes_is_waited_for(world: World) -> None:
    acks, at, txn_id = await nine_held(world)
    world.storage.holding = True
    acks.end(txn_id, COMMIT)
    closing = asyncio.create_task(acks.close())
    await soon()
    world.storage.release()
    await closing
    assert all(map((await world.cursor("sub")).is_deleted, at[3:9]))


@in_world
async def test_it_is_settled_when_all_is_in_force(world: World) -> None:
    acks, at, txn_id = await nine_held(world)
    cursor = await world.cursor("sub")
    await acks.settled()
    with Turns(acks) as turns:
        acks.end(txn_id, COMMIT)
        await turns.until(1)
        assert not all(map(cursor.is_deleted, at[3:9]))
        await acks.settled()
    assert all(map(cursor.is_deleted, at[3:9]))


@in_world
async def test_trouble_with_one_end_keeps_no_other_from_its_own(
    world: World,
) -> None:
    acks, at, txn_id = await nine_held(world)

    def trouble(*_: object) -> None:
        raise ValueError("nobody can take it")

    acks.on_restored = trouble
    acks.end(txn_id, ABORT)
    await soon()
    await acks.settled()
    later = await world.begin_acking()
    await acks.acknowledge(later, whole(at[9]))
    await ended(acks.end(later, COMMIT))
    assert (await world.cursor("sub")).is_deleted(at[9])


@in_world_with(transaction_pending_ack_log_entries=1)
async def test_what_an_aborted_transaction_kept_outlives_a_snapshot_between_two_pieces(
    world: World,
) -> None:
    acks, at, txn_id = await nine_held(world)
    kept: dict[Position, Any] = {}
    acks.on_restored = lambda _, some: kept.update(some)
    acks.kept = lambda: (kept, ())
    with Turns(acks) as turns:
        acks.end(txn_id, ABORT)
        await turns.until(3)
        await acks.checkpoint()
    world = await world.crashed()
    acks = await world.acks()
    told: list[Position] = []
    acks.on_restored = lambda _, some: told.extend(some)
    acks.tell_replayed()
    assert told == [at[0], at[1], *at[3:9]]


@BOTH_ENDS
def test_no_turn_of_a_replay_applies_more_than_its_share(action: TxnAction) -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        await ended(acks.end(txn_id, action))
        world = await world.crashed()
        turns: list[Turns] = []
        right = PendingAckState.__init__

        def made(state: PendingAckState, cursor: Any) -> None:
            right(state, cursor)
            turns.append(Turns(Mock(_state=state)).__enter__())

        with patch.object(PendingAckState, "__init__", made):
            acks = await world.acks()
        turns[0].__exit__()
        assert (sum(turns[0].applied), max(turns[0].applied)) == (8, 1)
        assert not acks.stats()
        assert (await world.cursor("sub")).is_deleted(at[8]) is (action is COMMIT)

    scenario()


def test_no_turn_of_an_opening_looks_at_more_than_its_share() -> None:
    @in_world
    async def scenario(world: World) -> None:
        acks, at, txn_id = await nine_held(world)
        await ended(acks.end(txn_id, ABORT))
        world = await world.crashed()
        with patch.object(pending_ack, "_LOOKED_AT_A_TURN", 3), per_turn(ManagedCursor) as looked:
            acks = await world.acks()
        assert (sum(looked), max(looked)) == (8, 3)
        told: list[Position] = []
        acks.on_restored = lambda _, some: told.extend(some)
        acks.tell_replayed()
        assert told == [at[0], at[1], *at[3:9]]

    scenario()


@contextmanager
def per_turn(cursors: type[ManagedCursor]) -> Iterator[list[int]]:
    """How often the cursors are asked what is deleted, in each turn of the loop."""
    asked, right = [0], cursors.is_deleted
    loop = asyncio.get_running_loop()

    def is_deleted(cursor: ManagedCursor, position: tuple[int, int]) -> bool:
        asked[-1] += 1
        return right(cursor, position)

    def next_turn() -> None:
        asked.append(0)
        handles.append(loop.call_soon(next_turn))

    handles = [loop.call_soon(next_turn)]
    with patch.object(cursors, "is_deleted", is_deleted):
        yield asked
    handles[-1].cancel()


@given(steps, txn_ids)
def test_a_commit_in_pieces_is_that_commit(script: Script, txn_id: TxnId) -> None:
    state, cursor, _, _ = play(script)
    in_pieces, same_cursor, _, _ = play(script)
    state.commit(txn_id)
    if txn_id in in_pieces.transactions:
        list(commit_in_pieces(in_pieces, txn_id))
    assert held_in(in_pieces) == held_in(state)
    assert acked_in(same_cursor) == acked_in(cursor)
    assert same_cursor.mark_delete_position == cursor.mark_delete_position


@given(steps, txn_ids)
def test_an_abort_in_pieces_is_that_abort(script: Script, txn_id: TxnId) -> None:
    state, _, _, _ = play(script)
    in_pieces, _, _, _ = play(script)
    restored: list[tuple[Position, Any]] = []
    dropped = state.drop(txn_id)
    if txn_id in in_pieces.transactions:
        list(abort_in_pieces(in_pieces, txn_id, lambda some: restored.extend(some.items())))
    assert restored == list(dropped.items())
    assert held_in(in_pieces) == held_in(state)
    assert isinstance(in_pieces, PendingAckState)
