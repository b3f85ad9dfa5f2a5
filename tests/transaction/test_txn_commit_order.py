"""Commit order: open transactions block no reader, and messages appear in the order of commits."""

import asyncio
from contextlib import ExitStack
from unittest.mock import patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, in_aside_world, side_entries, soon

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.prompt import when_done
from pybroker.base.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.commit_order import (
    commit_order_buffer,
    copying,
    side_log,
    turn_share,
)
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer


async def soon_after() -> None:
    await asyncio.sleep(0)


def piece_by_piece():  # type: ignore[no-untyped-def]
    """Each piece of a copy is one entry, so copies take several turns."""
    return (
        patch.multiple(side_log, _READ_ENTRIES=1, _READ_BYTES=1),
        patch.object(commit_order_buffer, "_AT_ONCE_BYTES", 0),
        patch.multiple(copying, _APPENDED_BYTES=0, _ON_THE_WAY_BYTES=0),
    )


@in_aside_world
async def test_messages_show_only_after_the_commit(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a", "b")
    assert await world.read() == []
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]
    assert await side_entries(world) == 0


@in_aside_world
async def test_an_open_transaction_holds_no_reader_back(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(None, "before")
    await world.send(txn_id, "a")
    await world.send(None, "behind")
    assert await world.read() == ["before", "behind"]
    assert (await world.buffer()).oldest() is None
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["before", "behind", "a"]


@in_aside_world
async def test_transactions_show_in_the_order_of_their_commits(world: AsideWorld) -> None:
    first, second = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    for txn_id, payload in [(first, "a1"), (second, "b1"), (first, "a2"), (second, "b2")]:
        await world.send(txn_id, payload)
    await world.end(second, COMMIT)
    assert await world.read() == ["b1", "b2"]
    await world.end(first, COMMIT)
    assert await world.read() == ["b1", "b2", "a1", "a2"]


@in_aside_world
async def test_an_aborted_transaction_leaves_nothing_in_the_log(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(None, "plain")
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    assert await world.read() == ["plain"]
    assert (await world.ledger(ORDERS)).last_confirmed.entry_id == 0
    assert await side_entries(world) == 0
    assert not (await world.buffer()).has_open


@pytest.mark.parametrize("in_pieces", [False, True])
def test_who_waits_for_a_commit_is_told_in_the_turn_in_which_it_is_over(in_pieces: bool) -> None:
    @in_aside_world
    async def commit(world: AsideWorld) -> None:
        buffer, loop, order = await world.buffer(), asyncio.get_running_loop(), list[str]()
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "a", "b")

        def over(*_: object) -> None:
            order.append("over")
            loop.call_soon(order.append, "the next turn")

        buffer.on_ended = over
        with ExitStack() as cuts:
            for cut in piece_by_piece() if in_pieces else ():
                cuts.enter_context(cut)
            ending = buffer.end(txn_id, COMMIT, -1)
            assert ending is not None
            when_done(ending, lambda _: order.append("told"))
            await ending
        await soon()
        assert order == ["over", "told", "the next turn"]

    commit()


@in_aside_world
async def test_nobody_waits_for_an_abort_that_needs_nothing(world: AsideWorld) -> None:
    buffer, ended = await world.buffer(), list[TxnId]()
    buffer.on_ended = lambda txn_id, *_: ended.append(txn_id)
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    assert buffer.end(txn_id, ABORT, -1) is None
    assert ended == [txn_id]
    assert not buffer.has_open


@in_aside_world
async def test_a_large_transaction_shows_as_a_whole(world: AsideWorld) -> None:
    large, small = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    for n in range(5):
        await world.send(large, f"l{n}")
        await world.send(small, f"s{n}")
    seen: list[list[str]] = []
    cuts = piece_by_piece()
    with cuts[0], cuts[1], cuts[2]:
        ends = [
            asyncio.ensure_future(world.end(large, COMMIT)),
            asyncio.ensure_future(world.end(small, COMMIT)),
        ]
        while not all(end.done() for end in ends):
            seen.append(await world.read())
            await asyncio.sleep(0)
    first, second = [f"l{n}" for n in range(5)], [f"s{n}" for n in range(5)]
    assert await world.read() == first + second, "one copy after the other, as the ENDs came"
    assert all(each in ([], first, first + second) for each in seen)


@in_aside_world
async def test_many_ends_take_several_turns_of_the_loop(world: AsideWorld) -> None:
    buffer, txn_ids = await world.buffer(), [await world.begin_on(ORDERS) for _ in range(12)]
    for number, txn_id in enumerate(txn_ids):
        await world.send(txn_id, f"{number}")
    with patch.object(turn_share, "_A_TURN", 2):
        endings = [
            buffer.end(each, COMMIT if n % 2 else ABORT, -1) for n, each in enumerate(txn_ids)
        ]
        turns = 0
        while not all(ending is None or ending.done() for ending in endings):
            await soon_after()
            turns += 1
    assert turns > 10
    assert await world.read() == [f"{number}" for number in range(1, 12, 2)]
    assert await side_entries(world) == 0


@in_aside_world
async def test_a_commit_waits_for_messages_that_are_on_their_way(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    sent = world.start_send(buffer, txn_id, "b")
    ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    with pytest.raises(InvalidTxnStatus):
        await world.start_send(buffer, txn_id, "late")
    world.storage.release()
    await asyncio.gather(sent, ended)
    assert await world.read() == ["a", "b"]


@in_aside_world
async def test_an_abort_waits_for_messages_that_are_on_their_way(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    sent = world.start_send(buffer, txn_id, "b")
    ended = asyncio.ensure_future(world.end(txn_id, ABORT))
    await soon()
    world.storage.release()
    await asyncio.gather(sent, ended)
    assert await side_entries(world) == 0 and not buffer.has_open


@in_aside_world
async def test_who_may_not_write_is_refused(world: AsideWorld) -> None:
    txn_id = await world.begin()
    with pytest.raises(InvalidTxnStatus):
        await world.send(txn_id, "a")
    with pytest.raises(TransactionNotFound):
        await world.send(TxnId(0, 77), "a")
    assert not (await world.buffer()).has_open


@in_aside_world
async def test_a_late_send_is_refused(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await world.send(txn_id, "late")
    assert await world.read() == ["a"]


@in_aside_world
async def test_ending_twice_copies_once(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    ending = buffer.end(txn_id, COMMIT, -1)
    assert ending is not None and buffer.end(txn_id, COMMIT, -1) is ending
    await ending
    assert buffer.end(txn_id, COMMIT, -1) is None
    assert await world.read() == ["a"]


# Crashes


@in_aside_world
async def test_an_open_transaction_goes_on_after_a_crash(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world = await world.crashed()
    assert [each.txn_id for each in (await world.buffer()).ongoing()] == [txn_id]
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]
    assert await (await world.crashed()).read() == ["a", "b"]


@in_aside_world
async def test_an_open_transaction_goes_on_after_a_restart(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world = await world.restarted()
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    world = await world.restarted()
    assert await world.read() == ["a", "b"]
    assert await side_entries(world) == 0


@in_aside_world
async def test_a_commit_whose_deletion_was_lost_is_not_copied_again(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    world = await world.crashed()  # before the side log's cursor was written
    assert await world.read() == ["a"]
    assert not (await world.buffer()).has_open
    assert (await world.buffer()).end(txn_id, COMMIT, -1) is None
    assert await side_entries(world) == 0


@in_aside_world
async def test_no_snapshot_forgets_a_commit_before_its_deletion_is_durable(
    world: AsideWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    await (await world.buffer())._log._snapshot()
    world = await world.crashed()
    assert not (await world.buffer()).has_open
    assert await world.read() == ["a"]


@in_aside_world
async def test_half_a_copy_is_hidden_for_good_and_copied_anew(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a", "b")
    with patch.object(LogOrderBuffer, "end_copy"):  # the marker never comes
        ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
        await soon()
    assert (await world.ledger(ORDERS)).last_confirmed.entry_id == 1
    for _ in range(2):  # a second crash before anything is durable finds the same
        again = await world.crashed()
        assert await again.read() in ([], ["a", "b"])
        await asyncio.sleep(1)
        assert await again.read() == ["a", "b"]
        again = await again.crashed()
        assert await again.read() == ["a", "b"]
    ended.cancel()


@in_aside_world
async def test_who_reads_what_is_open_waits_before_a_copy_too(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(None, "plain")
    await world.send(txn_id, "a", "b")
    ledger = await world.ledger(ORDERS)
    assert buffer.max_uncommitted_position == ledger.last_confirmed
    with patch.object(LogOrderBuffer, "end_copy"):  # the marker never comes
        ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
        await soon()
        assert ledger.last_confirmed.entry_id == 2
        assert buffer.max_uncommitted_position.entry_id == 0
    ended.cancel()
    again = await world.crashed()
    await again.read()
    await asyncio.sleep(1)
    buffer = await again.buffer()
    assert buffer.max_uncommitted_position == (await again.ledger(ORDERS)).last_confirmed


@in_aside_world
async def test_a_copy_that_fails_is_copied_anew(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a", "b", "c")
    cuts = piece_by_piece()
    with cuts[0], cuts[1], cuts[2]:
        ending = buffer.end(txn_id, COMMIT, -1)
        assert ending is not None
        ledger = await world.ledger(ORDERS)
        while not buffer.max_read_position < ledger.last_confirmed:
            await soon_after()
        world.storage.full = True
        with pytest.raises(ManagedLedgerError):
            await asyncio.shield(ending)
        assert await world.read() == []
        with pytest.raises(ManagedLedgerError):  # nor can the record that hides the half
            await asyncio.shield(buffer.end(txn_id, COMMIT, -1) or ending)
        world.storage.full = False
        await world.send(None, "plain")
        assert await world.read() == ["plain"]
        await world.end(txn_id, COMMIT)
    assert await world.read() == ["plain", "a", "b", "c"]
    assert await (await world.crashed()).read() == ["plain", "a", "b", "c"]
    assert await (await world.restarted()).read() == ["plain", "a", "b", "c"]


@in_aside_world
async def test_a_side_log_that_cannot_be_made_refuses_the_message(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.start_send(buffer, txn_id, "a")
    world.storage.full = False
    assert not buffer.has_open
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["b"]


@in_aside_world
async def test_what_its_coordinator_forgot_is_dropped(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    storage = world.storage.durable_copy()
    storage.forget_keys("transaction_log")
    world = await AsideWorld(storage).start()
    buffer = await world.buffer()
    await asyncio.sleep(6)
    assert not buffer.has_open and await world.read() == []
    assert await side_entries(world) == 0


@in_aside_world
async def test_recovery_commits_in_the_order_of_the_decisions(world: AsideWorld) -> None:
    first, second, third = [await world.begin_on(ORDERS) for _ in range(3)]
    for txn_id, payload in [(first, "a"), (second, "b"), (third, "c")]:
        await world.send(txn_id, payload)

    async def unreachable(participant: str) -> None:
        raise ManagedLedgerError("nobody answers")

    world.before_end = unreachable
    ends = [asyncio.ensure_future(world.end(each, COMMIT)) for each in (third, first, second)]
    await soon()
    world = await world.crashed()
    await asyncio.sleep(1)
    assert await world.read() == ["c", "a", "b"]
    for end in ends:
        end.cancel()


@in_aside_world
async def test_the_order_of_the_decisions_outlives_a_snapshot(world: AsideWorld) -> None:
    first, second, third = [await world.begin_on(ORDERS) for _ in range(3)]
    for txn_id, payload in [(first, "a"), (second, "b"), (third, "c")]:
        await world.send(txn_id, payload)

    async def unreachable(participant: str) -> None:
        raise ManagedLedgerError("nobody answers")

    world.before_end = unreachable
    ends = [asyncio.ensure_future(world.end(each, COMMIT)) for each in (third, first)]
    await soon()
    await (await world.coordinators.get(0))._snapshot()
    ends.append(asyncio.ensure_future(world.end(second, COMMIT)))
    await soon()
    world = await world.crashed()
    await asyncio.sleep(1)
    assert await world.read() == ["c", "a", "b"]
    for end in ends:
        end.cancel()


# Messages in the log and aside in one topic


@in_aside_world
async def test_a_transaction_ends_where_it_began_whatever_the_policy_says(
    world: AsideWorld,
) -> None:
    aside, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(aside, "a1")
    buffer.in_commit_order = False
    in_log = await world.begin_on(ORDERS)
    await world.send(in_log, "b1")
    buffer.in_commit_order = True
    await world.send(in_log, "b2")
    await world.send(aside, "a2")
    await world.end(aside, COMMIT)
    assert await world.read() == [], "the one in the log still holds readers back"
    await world.end(in_log, COMMIT)
    assert await world.read() == ["b1", "b2", "a1", "a2"]
    assert not buffer.has_open


@in_aside_world
async def test_a_policy_that_was_taken_back_loses_nothing_over_a_crash(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world = await world.crashed()
    world.in_commit_order = False
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]


@in_aside_world
async def test_a_topic_without_transactions_has_no_side_log(world: AsideWorld) -> None:
    await world.send(None, "plain")
    await world.buffer()
    assert world.factory.names("transactions-aside/") == []


@in_aside_world
async def test_the_side_log_is_trimmed(world: AsideWorld) -> None:
    for n in range(5):
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, f"a{n}")
        await world.end(txn_id, COMMIT if n % 2 else ABORT)
        await (await world.side_ledger()).roll_over()
    await asyncio.sleep(30)
    assert len((await world.side_ledger()).ledgers()) == 1
    assert await world.read() == ["a1", "a3"]
