"""What a topic says of its transactions, in its own log and aside; and its closing and deletion."""

import asyncio
from unittest.mock import Mock, patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, in_aside_world, soon
from txn_world import told_to_nobody
from virtual_loop import run_virtually

from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from pybroker.base.errors import ServiceNotReady
from pybroker.base.names import TopicName, TxnId, side_log
from pybroker.transaction.buffer.buffer_stats import OngoingTransaction
from pybroker.transaction.buffer.commit_order import commit_order_buffer
from pybroker.transaction.buffer.commit_order.side_log import SideLog
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.topic_transactions import TopicTransactions
from pybroker.transaction.this_turn import WouldWait

SIDE = side_log(TopicName.parse(ORDERS).ledger_name)


async def both_kinds(world: AsideWorld) -> tuple[TopicTransactions, list[TxnId]]:
    """One transaction in the topic's own log, then two aside, with two messages each."""
    buffer, txn_ids = await world.buffer(), [await world.begin_on(ORDERS) for _ in range(3)]
    for txn_id in txn_ids * 2:
        buffer.in_commit_order = txn_id != txn_ids[0]
        await world.send(txn_id, "a")
        await asyncio.sleep(1)
    return buffer, txn_ids


@in_aside_world
async def test_both_kinds_are_told_of_and_only_the_one_in_the_log_holds_readers_back(
    world: AsideWorld,
) -> None:
    buffer, (in_log, first, second) = await both_kinds(world)
    ledger, side = await world.ledger(ORDERS), await world.side_ledger()
    began_ms = world.clock.now_ms() - 6000
    ongoing = [
        OngoingTransaction(in_log, ledger.first_position, began_ms),
        OngoingTransaction(first, side.first_position, began_ms + 1000),
        OngoingTransaction(second, side.first_position.after, began_ms + 2000),
    ]
    assert buffer.ongoing() == ongoing and buffer.ongoing(2) == ongoing[:2]
    assert buffer.open_count == 3 and buffer.has_open and buffer.has_aside
    assert buffer.oldest() == ongoing[0]
    assert buffer.first_position_of(first) == side.first_position
    assert buffer.first_position_of(in_log) == ledger.first_position == buffer.first_in_log(in_log)
    assert buffer.first_in_log(first) is None
    ledger_id = ledger.first_position.ledger_id
    assert buffer.ranges_in_log(in_log, 1) == [(ledger_id, 0, 1)]
    for txn_id in (first, second):
        await world.end(txn_id, COMMIT)
    assert buffer.open_count == 1 and buffer.keeps_aside and not buffer.has_aside


@in_aside_world
async def test_one_that_is_being_copied_is_told_of_once(world: AsideWorld) -> None:
    buffer, (in_log, first, second) = await both_kinds(world)
    with patch.object(LogOrderBuffer, "end_copy"):  # the marker never comes
        ending = buffer.end(first, COMMIT, -1)
        await soon()
    assert ending is not None and not ending.done()
    assert [each.txn_id for each in buffer.ongoing()] == [in_log, first, second]
    assert buffer.open_count == 3


@in_aside_world
async def test_a_new_topic_is_in_the_order_of_its_log_and_tells_of_nothing(
    world: AsideWorld,
) -> None:
    buffer = await TopicTransactions.recover(
        await world.ledger(ORDERS),
        world.factory,
        world.storage.metadata,
        world.coordinators,
        world.clock,
        world.config,
        lambda: None,
    )
    assert not buffer.in_commit_order and not buffer.keeps_aside and not buffer.has_open
    assert buffer.open_count == 0 and buffer.ongoing() == [] and buffer.oldest() is None
    assert buffer.times.recovered == world.clock.now_ms() and not buffer.contents.of_before


@in_aside_world
async def test_who_is_told_of_ends_and_of_what_may_be_read(world: AsideWorld) -> None:
    buffer, (in_log, aside, _) = await both_kinds(world)
    ended, moved = Mock(), Mock()
    buffer.on_ended, buffer.stable_moved = ended, moved
    assert buffer.on_ended is ended and buffer.stable_moved is moved
    first = buffer.first_in_log(in_log)
    await world.end(in_log, ABORT)
    ended.assert_called_once_with(in_log, ABORT, first)
    moved.assert_called()
    await world.end(aside, COMMIT)
    assert ended.call_args.args[:2] == (aside, COMMIT)


@in_aside_world
async def test_an_end_of_what_is_aside_cannot_be_in_the_storage_in_this_turn(
    world: AsideWorld,
) -> None:
    buffer, (in_log, aside, _) = await both_kinds(world)
    with pytest.raises(WouldWait):
        buffer.end(aside, COMMIT, -1, not_later=True)
    assert buffer.open_count == 3
    ending = buffer.end(in_log, COMMIT, -1, not_later=True)
    assert ending is not None
    await asyncio.shield(ending)
    assert buffer.open_count == 2


@in_aside_world
async def test_what_both_kinds_held_before_a_crash_is_counted(world: AsideWorld) -> None:
    _, (in_log, first, second) = await both_kinds(world)
    world = await world.crashed()
    buffer = await world.buffer()
    await buffer.count_what_was_before(world.log_of(buffer))
    found = buffer.contents.transactions()
    assert {txn_id for txn_id, _ in found} == {in_log, first, second}
    assert {held.messages for _, held in found} == {2}
    assert buffer.contents.of(first) is not None and buffer.contents.of(TxnId(0, 77)) is None


@in_aside_world
async def test_what_is_in_a_side_log_that_is_being_created_is_not_older(world: AsideWorld) -> None:
    """The older transactions are counted nevertheless."""
    world.in_commit_order = False
    before = [await world.begin_on(ORDERS) for _ in range(2)]
    for txn_id in before:
        await world.send(txn_id, "a")
    world = await world.crashed()
    world.in_commit_order = True
    buffer, late = await world.buffer(), await world.begin_on(ORDERS)
    world.storage.holding = True
    sending = world.start_send(buffer, late, "b")
    with patch.object(
        TopicTransactions,
        "_ongoing",
        lambda self: iter(OngoingTransaction(each, None, 0) for each in (late, *before)),
    ):
        await buffer.count_what_was_before(world.log_of(buffer))
    assert {txn_id for txn_id, _ in buffer.contents.transactions()} == {late, *before}
    world.storage.release()
    await sending


# Closing and deletion


@in_aside_world
async def test_a_topic_that_cannot_be_read_leaves_no_open_side_log(world: AsideWorld) -> None:
    await both_kinds(world)
    after = await world.crashed()
    with (
        patch.object(LogOrderBuffer, "recover", side_effect=LedgerClosed("the disk is broken")),
        pytest.raises(ManagedLedgerError, match="the disk is broken"),
    ):
        await after.buffer()
    assert after.factory.opened(SIDE) is None


def logs_of(world: AsideWorld, buffer: TopicTransactions) -> tuple[ManagedLedger | None, bool]:
    """The open side log, and whether the topic's own buffer still has a callback to it."""
    return world.factory.opened(SIDE), buffer._log.written_first is not None


@in_aside_world
async def test_a_closed_topic_has_closed_its_side_log_and_left_a_snapshot(
    world: AsideWorld,
) -> None:
    buffer, _ = await both_kinds(world)
    assert logs_of(world, buffer) == (await world.side_ledger(), True)
    assert buffer._aside is not None and buffer._aside._visits.due is not None
    written_ms = buffer.times.snapshot
    await asyncio.sleep(1)
    await buffer.close()
    assert logs_of(world, buffer) == (None, False)
    assert buffer.times.snapshot > written_ms
    assert len(buffer.contents) == 0
    assert buffer._aside._visits.due is None
    await buffer.close()


@in_aside_world
async def test_a_topic_that_goes_away_writes_nothing_more(world: AsideWorld) -> None:
    buffer, _ = await both_kinds(world)
    written_ms, durable = buffer.times.snapshot, len(world.storage._durable)
    await buffer.stop()
    assert not logs_of(world, buffer)[1] and len(buffer.contents) == 0
    assert buffer._aside is not None and buffer._aside._visits.due is None
    assert buffer._log._visits.due is None
    await asyncio.sleep(20)
    assert (buffer.times.snapshot, len(world.storage._durable)) == (written_ms, durable)


@in_aside_world
async def test_a_copy_in_pieces_ends_with_its_topic(world: AsideWorld) -> None:
    buffer, (_, first, _) = await both_kinds(world)
    assert buffer._aside is not None
    with patch.object(commit_order_buffer, "_AT_ONCE_BYTES", 0):
        ending = buffer.end(first, COMMIT, -1)
        assert ending is not None and len(buffer._aside._tasks) == 1
        await buffer.stop()
    assert len(buffer._aside._tasks) == 0
    with pytest.raises(ServiceNotReady, match="is being unloaded"):
        await asyncio.shield(ending)


def test_an_end_that_nobody_waits_for_is_no_complaint_of_an_unloaded_topic() -> None:
    async def work() -> None:
        world = await AsideWorld().start()
        buffer, (_, first, _) = await both_kinds(world)
        with patch.object(LogOrderBuffer, "end_copy"):
            assert buffer.end(first, COMMIT, -1) is not None
        await buffer.stop()

    async def life() -> list[str]:
        return await told_to_nobody(work)

    assert run_virtually(life()) == []


@in_aside_world
async def test_a_side_log_is_opened_once(world: AsideWorld) -> None:
    buffer, (_, first, _) = await both_kinds(world)
    with patch.object(SideLog, "open", side_effect=AssertionError("it is open")):
        await world.send(first, "b")
        await world.send(await world.begin_on(ORDERS), "c")
    assert buffer.open_count == 4
