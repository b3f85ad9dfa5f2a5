"""The parts of the commit-order buffer, one at a time: waiting messages, side log, ends, turns."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from txn_world import ABORT, COMMIT, World, in_world
from virtual_loop import run_virtually

from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import LedgerClosed
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, LATEST, Position
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order import side_log, turn_share
from pybroker.transaction.buffer.commit_order.aside_transactions import AsideTransactions
from pybroker.transaction.buffer.commit_order.end_queue import EndQueue
from pybroker.transaction.buffer.commit_order.known_ends import KnownEnds
from pybroker.transaction.buffer.commit_order.side_log import SideLog
from pybroker.transaction.buffer.commit_order.turn_share import TurnShare
from pybroker.transaction.buffer.transactional_entries import tag_of

A, B, C = (TxnId(0, number) for number in range(3))


def virtually(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        run_virtually(test())

    wrapped.__name__ = test.__name__
    return wrapped


async def next_turn() -> None:
    await asyncio.sleep(0)


# Waiting transactions


def test_bytes_are_counted_for_each_transaction_and_for_all() -> None:
    waiting = AsideTransactions()
    first, second = waiting.begin(A, 5), waiting.begin(B, 6)
    waiting.appended(first, Position(3, 0), 2, 20)
    waiting.appended(second, Position(3, 2), 1, 7)
    waiting.appended(first, Position(3, 3), 1, 4)
    assert (first.size_bytes, second.size_bytes, waiting.size_bytes) == (24, 7, 31)
    assert list(first.ranges) == [(3, 0, 1), (3, 3, 3)]
    waiting.remove(A)
    assert waiting.size_bytes == 7
    waiting.remove(B)
    assert waiting.size_bytes == 0


def test_the_oldest_is_the_first_to_begin_of_those_that_wait() -> None:
    waiting = AsideTransactions()
    assert waiting.oldest() is None
    for txn_id in (B, A, C):
        waiting.begin(txn_id, 0)
    assert waiting.oldest() == B
    waiting.remove(B)
    assert waiting.oldest() == A
    assert list(waiting) == [A, C] and len(waiting) == 2 and B not in waiting


# Ends, and the work that a turn of the loop may do


class Ends:
    """Performs all ends that it may, like the buffer."""

    def __init__(self) -> None:
        self.queue = EndQueue()
        self.performed: list[TxnId] = []
        self.with_commits = True
        self.calls = 0

    def go_on(self) -> None:
        self.calls += 1
        while (txn_id := self.queue.first(self.with_commits, self.go_on)) is not None:
            self.queue.begin(0)
            self.performed.append(txn_id)


@virtually
async def test_aborts_pass_commits_and_commits_keep_their_order() -> None:
    ends = Ends()
    for txn_id, action in ((B, COMMIT), (A, COMMIT), (C, ABORT)):
        ends.queue.add(txn_id, action)
    ends.go_on()
    assert ends.performed == [C, B, A]


@virtually
async def test_while_one_is_copied_only_aborts_go_on() -> None:
    ends = Ends()
    ends.with_commits = False
    ends.queue.add(A, COMMIT)
    ends.queue.add(B, ABORT)
    ends.go_on()
    assert ends.performed == [B]


@virtually
async def test_what_does_not_fit_into_a_turn_goes_on_in_the_next_ones() -> None:
    ends = Ends()
    ids = [TxnId(0, number) for number in range(7)]
    for txn_id in ids:
        ends.queue.add(txn_id, COMMIT)
    with patch.object(turn_share, "_A_TURN", 2):
        turn_share.turn_share()._left = 2
        ends.go_on()
        ends.go_on()  # a second call does not make it wait twice
        seen = [len(ends.performed)]
        while len(ends.performed) < len(ids):
            await next_turn()
            seen.append(len(ends.performed))
    assert ends.performed == ids
    assert [after - before for before, after in pairwise(seen)] == [2, 2, 1]
    assert ends.calls == 2 + 3


@virtually
async def test_an_end_costs_one_more_than_its_ranges() -> None:
    ends = EndQueue()
    ends.add(A, COMMIT)
    left = turn_share.turn_share()._left
    ends.begin(5)
    assert turn_share.turn_share()._left == left - 6


@virtually
async def test_a_turn_s_share_is_whole_again_in_the_next_turn() -> None:
    share = TurnShare()
    share.spend(turn_share._A_TURN - 1)
    assert share.has_room
    share.spend(1)
    assert not share.has_room
    await next_turn()
    assert share.has_room and share._left == turn_share._A_TURN
    assert not share._is_scheduled, "an idle loop has nothing to do"


@virtually
async def test_waiters_for_room_get_it_in_their_order() -> None:
    share, called = TurnShare(), list[str]()

    def wait(name: str, spends: int) -> None:
        def go_on() -> None:
            called.append(name)
            share.spend(spends)

        share.when_there_is_room(go_on)

    wait("a", 1)
    wait("b", turn_share._A_TURN)
    wait("c", 0)
    assert called == []
    await next_turn()
    assert called == ["a", "b"]
    await next_turn()
    assert called == ["a", "b", "c"]


@virtually
async def test_who_waits_again_while_called_waits_for_the_next_turn() -> None:
    share, called = TurnShare(), list[int]()

    def again() -> None:
        called.append(len(called))
        if len(called) < 3:
            share.when_there_is_room(again)

    share.when_there_is_room(again)
    await next_turn()
    assert called == [0]
    await next_turn()
    assert called == [0, 1]


def test_each_loop_has_its_own_share() -> None:
    async def share() -> TurnShare:
        assert turn_share.turn_share() is turn_share.turn_share()
        return turn_share.turn_share()

    assert run_virtually(share()) is not run_virtually(share())


# Where the topic's log must still be read from


@virtually
async def test_ends_are_told_of_from_the_first_that_is_not_forgotten() -> None:
    told = KnownEnds()
    assert told.first == LATEST
    told.add(Position(3, 8))
    told.add(Position(3, 5))
    told.add(Position(3, 9))
    told.add(None)
    assert told.first == Position(3, 5)
    going_on = asyncio.Event()

    async def flush() -> None:
        await going_on.wait()

    forgetting = asyncio.ensure_future(told.forget(flush))
    await next_turn()
    assert told.are_being_forgotten
    assert told.first == Position(3, 5), "their deletion is not durable yet"
    told.add(Position(4, 1))
    going_on.set()
    await forgetting
    assert told.first == Position(4, 1) and not told.are_being_forgotten


@virtually
async def test_what_could_not_be_forgotten_is_told_of_further_on() -> None:
    told = KnownEnds()
    told.add(Position(3, 5))

    async def fail() -> None:
        told.add(Position(4, 1))
        raise LedgerClosed("closed")

    with pytest.raises(LedgerClosed):
        await told.forget(fail)
    assert told.first == Position(3, 5) and not told.are_being_forgotten


def test_ends_that_recovery_found_may_be_anywhere() -> None:
    told = KnownEnds()
    told.found()
    assert told.first == EARLIEST.after


# The side log


@pytest.fixture(params=[1000, 2], ids=["one ledger", "many"])
def ledger_entries(request: pytest.FixtureRequest) -> Any:
    config = ManagedLedgerConfig(max_entries_per_ledger=request.param, min_rollover_time_ms=0)
    with patch.object(side_log, "_CONFIG", config):
        yield request.param


async def written(world: World, *txn_ids: TxnId) -> SideLog:
    """Writes one entry per transaction."""
    log = await SideLog.open(world.factory, "aside")
    for number, txn_id in enumerate(txn_ids):
        done: asyncio.Future[Position | None] = asyncio.get_running_loop().create_future()
        log.ledger.append(
            [b"%d" % number], [1], lambda at, _, done=done: done.set_result(at), tag_of(txn_id)
        )
        await done
        await asyncio.sleep(1)  # time for a rollover
    return log


async def recovered(world: World) -> AsideTransactions:
    found = AsideTransactions()
    log = await SideLog.open(world.factory, "aside")
    await log.recover(found, 77)
    return found


def test_recovery_finds_exactly_what_was_not_deleted(ledger_entries: int) -> None:
    @virtually
    async def test() -> None:
        world = await World().start()
        log = await written(world, A, B, A, A, C, B, A)
        assert (len(log.ledger.ledgers()) > 1) == (ledger_entries == 2)
        found = await recovered(world)
        assert {txn_id: each.size_bytes for txn_id, each in found.items()} == {A: 4, B: 2, C: 1}
        assert {each.opened_at_ms for _, each in found.items()} == {77}
        for ended, left in ((B, {A, C}), (A, {C}), (C, set[TxnId]())):
            transaction = found.get(ended)
            assert transaction is not None
            assert log.delete(transaction.ranges)
            await log.flush()
            again = await recovered(await world.crashed())
            assert set(again) == left
            for txn_id in left:
                one, other = found.get(txn_id), again.get(txn_id)
                assert one is not None and other is not None
                assert list(one.ranges) == list(other.ranges)

    test()


def test_all_of_a_transaction_is_read_and_nothing_of_others(ledger_entries: int) -> None:
    @virtually
    async def test() -> None:
        world = await World().start()
        log = await written(world, A, B, A, A, C, B, A)
        found = (await recovered(world)).get(A)
        assert found is not None
        for entries in (1000, 1):
            with patch.object(side_log, "_READ_ENTRIES", entries):
                cached = log.cached(found.ranges)
                assert cached is not None
                assert [entry for run in cached for entry in run.entries] == [
                    b"0",
                    b"2",
                    b"3",
                    b"6",
                ]
                read = [entry async for run in log.read(found.ranges) for entry in run.entries]
                assert read == [b"0", b"2", b"3", b"6"]

    test()


@virtually
async def test_a_long_transaction_is_read_in_several_turns() -> None:
    world = await World().start()
    log = await written(world, *[A] * 6)
    found = (await recovered(world)).get(A)
    assert found is not None
    reads = [0]

    def next_turn() -> None:
        reads.append(0)
        handles.append(asyncio.get_running_loop().call_soon(next_turn))

    handles = [asyncio.get_running_loop().call_soon(next_turn)]
    with patch.multiple(side_log, _READ_ENTRIES=1, _READ_COSTS=1, _READ_A_TURN=4):
        async for _ in log.read(found.ranges):
            reads[-1] += 1
    handles[-1].cancel()
    assert (sum(reads), max(reads)) == (6, 2)


@virtually
async def test_what_is_not_in_memory_is_not_taken_for_part_of_it() -> None:
    world = await World().start()
    log = await written(world, A, A, A)
    ledger_id = log.ledger.ledgers()[0].ledger_id
    run = log.ledger.read_cached(Position(ledger_id, 1), LATEST, 9, 99)
    ranges = [(ledger_id, 0, 2)]
    assert run is not None and run.first_entry_id == 1
    for answer in (None, run):  # `run` begins after the requested entry
        with patch.object(type(log.ledger), "read_cached", return_value=answer):
            assert log.cached(ranges) is None


@virtually
async def test_many_ranges_are_deleted_in_several_turns() -> None:
    world = await World().start()
    log = await written(world, *[A, B] * 7)
    found = (await recovered(world)).get(A)
    assert found is not None and len(found.ranges) == 7
    with patch.object(side_log, "_DELETED_A_TURN", 3):
        left = turn_share.turn_share()._left
        assert not log.delete(found.ranges)
        assert turn_share.turn_share()._left == left - 3
        assert len(log._to_delete) == 4
        deleting = asyncio.ensure_future(log.delete_rest())
        await next_turn()
        assert len(log._to_delete) == 1
        await deleting
    assert not log._to_delete
    await log.flush()
    assert set(await recovered(await world.crashed())) == {B}


@virtually
async def test_a_turn_without_room_deletes_nothing_at_once() -> None:
    world = await World().start()
    log = await written(world, A)
    found = (await recovered(world)).get(A)
    assert found is not None
    turn_share.turn_share().spend(turn_share._A_TURN)
    assert not log.delete(found.ranges)
    await log.flush()
    assert set(await recovered(await world.crashed())) == set()


@in_world
async def test_a_side_log_whose_cursor_cannot_be_opened_is_closed_again(world: World) -> None:
    opened: list[ManagedLedger] = []

    async def fails(ledger: ManagedLedger, *others: object) -> ManagedCursor:
        opened.append(ledger)
        raise LedgerClosed("the disk is broken")

    with patch.object(ManagedLedger, "open_cursor", fails), pytest.raises(LedgerClosed):
        await SideLog.open(world.factory, "aside")
    (ledger,) = opened
    assert ledger.closed
    assert not (await SideLog.open(world.factory, "aside")).ledger.closed
