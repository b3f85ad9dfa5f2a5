"""Commit order in races: ends and appends, loading and ends, recovery and errors."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock, patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, in_aside_world, side_entries, soon
from txn_world import message, told_to_nobody
from virtual_loop import run_virtually

from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.housekeeper import Housekeeper
from managed_ledger.position import LATEST
from managed_ledger.storage.backend import EntryRun
from managed_ledger.trim import Retention
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TopicName, TxnId
from pybroker.base.names import side_log as side_log_of
from pybroker.transaction import paced_visits
from pybroker.transaction.buffer.commit_order import commit_order_buffer, copying, side_log
from pybroker.transaction.buffer.commit_order.commit_order_buffer import CommitOrderBuffer
from pybroker.transaction.buffer.commit_order.side_log import SideLog
from pybroker.transaction.buffer.topic_transactions import TopicTransactions
from pybroker.transaction.paced_visits import EVERY_S
from pybroker.transaction.txn_status import TxnAction

NO_RETENTION = Retention()
BOTH_ENDS = pytest.mark.parametrize("action", [COMMIT, ABORT])


@BOTH_ENDS
def test_an_end_waits_for_what_is_on_its_way_to_the_side_log(action: TxnAction) -> None:
    async def work() -> None:
        world = await AsideWorld().start()
        txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
        await world.send(txn_id, "a")
        world.storage.holding = True
        sent = [world.start_send(buffer, txn_id, payload) for payload in "bc"]
        ending = buffer.end(txn_id, action, -1)
        assert ending is not None
        with pytest.raises(InvalidTxnStatus, match="is being ended"):
            await world.start_send(buffer, txn_id, "late")
        await soon()
        assert not ending.done()
        world.storage.release()
        await asyncio.gather(*sent)
        await asyncio.wait_for(asyncio.shield(ending), 1)
        assert await world.read() == (["a", "b", "c"] if action is COMMIT else [])
        assert await side_entries(world) == 0 and not buffer.has_open

    async def life() -> list[str]:
        return await told_to_nobody(work)

    assert run_virtually(life()) == []


@BOTH_ENDS
def test_an_end_that_comes_before_the_topic_is_loaded_waits_for_it(action: TxnAction) -> None:
    """Deduplication must first learn which messages wait."""
    found: list[Any] = []

    class EarlyEnd(AsideWorld):
        async def recovered(self, topic: str, buffer: TopicTransactions) -> None:
            ending = buffer.end(txn_ids[0], action, -1)
            assert ending is not None
            await soon()
            found.append(ending.done())

    txn_ids: list[TxnId] = []

    async def life() -> None:
        world = await AsideWorld().start()
        txn_ids.append(await world.begin_on(ORDERS))
        await world.send(txn_ids[0], "a")
        after = await EarlyEnd(world.storage.durable_copy()).start()
        buffer = await after.buffer()
        await soon()
        assert found == [False]
        assert not buffer.has_open
        assert await after.read() == (["a"] if action is COMMIT else [])

    run_virtually(life())


@in_aside_world
async def test_a_side_log_that_cannot_be_read_keeps_the_topic_from_loading(
    world: AsideWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    after = await world.crashed()
    with (
        patch.object(SideLog, "recover", side_effect=LedgerClosed("the disk is broken")),
        pytest.raises(ManagedLedgerError, match="the disk is broken"),
    ):
        await after.buffer()
    assert after.factory.opened(side_log_of(TopicName.parse(ORDERS).ledger_name)) is None
    await after.end(txn_id, COMMIT)
    assert await after.read() == ["a"]


@in_aside_world
async def test_what_recovery_found_to_have_ended_is_told_of_until_its_deletion_is_durable(
    world: AsideWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    world = await world.crashed()  # before the side log's cursor was written
    await world.buffer()
    ledger = await world.ledger(ORDERS)
    end = ledger.last_confirmed
    await ledger.roll_over()

    async def waits(log: SideLog) -> None:
        await asyncio.Event().wait()

    with patch.object(SideLog, "flush", waits):
        await ledger.trim(NO_RETENTION)
        await asyncio.sleep(1)
    again = await world.crashed()
    await again.buffer()
    await asyncio.sleep(1)
    assert (await again.ledger(ORDERS)).last_confirmed == end, "it was not copied again"
    assert not (await again.buffer()).has_open


@in_aside_world
async def test_a_low_watermark_ends_the_oldest_that_was_left_open(world: AsideWorld) -> None:
    txn_ids = [await world.begin_on(ORDERS) for _ in range(3)]
    for txn_id in txn_ids[:2]:
        await world.send(txn_id, "left")
    buffer, first = await world.buffer(), txn_ids[0]
    with patch.object(world.coordinators, "status", return_value=None):
        buffer.end(txn_ids[2], COMMIT, first.least - 1)
        assert len(buffer.ongoing()) == 2, "it may still be open"
        buffer.end(TxnId(1, 0), COMMIT, txn_ids[2].least)
        assert len(buffer.ongoing()) == 2, "another coordinator's"
        buffer.end(txn_ids[2], COMMIT, first.least)
        assert [each.txn_id for each in buffer.ongoing()] == [txn_ids[1]]


@in_aside_world
async def test_what_was_left_open_is_found_out_in_time(world: AsideWorld) -> None:
    """Its END was lost, and no other event ends transactions here."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await asyncio.sleep(12)
    assert buffer.has_open
    with patch.object(world.coordinators, "status", return_value=None):
        await asyncio.sleep(4)
        assert not buffer.has_open


@in_aside_world
async def test_one_look_in_five_seconds_is_for_all_that_are_open(world: AsideWorld) -> None:
    buffer = await world.buffer()
    for _ in range(3):
        await world.send(await world.begin_on(ORDERS), "a")
    with patch.object(CommitOrderBuffer, "_settle") as looked:
        await asyncio.sleep(11)
    assert looked.call_count == 2 * 3
    assert buffer.has_open


@in_aside_world
async def test_many_that_were_left_open_are_looked_at_in_several_turns(world: AsideWorld) -> None:
    txn_ids, buffer = [await world.begin_on(ORDERS) for _ in range(5)], await world.buffer()
    for txn_id in txn_ids:
        await world.send(txn_id, "a")
    assert buffer._aside is not None
    visits: list[Callable[[], None]] = []

    def visit_in(_: Housekeeper, delay_s: float, work: Callable[[], None]) -> Mock:
        if delay_s == EVERY_S:
            visits.append(work)
        return Mock()

    with (
        patch.object(paced_visits, "A_TURN", 2),
        patch.object(world.coordinators, "status", return_value=None),
        patch.object(Housekeeper, "visit_in", visit_in),
    ):
        buffer._aside._visited()
        for left in (3, 1):
            assert len(buffer.ongoing()) == left
            ended = buffer.ongoing()[0].txn_id
            buffer.end(ended, ABORT, -1)  # before its visit
            visits.pop()()
    assert not buffer.has_open and not visits


def test_a_side_log_that_cannot_be_made_is_reported_to_the_producer_and_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        world = await AsideWorld().start()
        txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
        with patch.object(SideLog, "open", side_effect=LedgerClosed("no room")):
            for _ in range(2):
                with pytest.raises(ManagedLedgerError, match="cannot be opened: no room"):
                    await world.start_send(buffer, txn_id, "a")

    async def life() -> list[str]:
        return await told_to_nobody(work)

    assert run_virtually(life()) == []
    assert caplog.text.count("opening the side log failed: no room") == 2


@in_aside_world
async def test_a_topic_that_closes_before_its_side_log_is_open_answers_the_producer(
    world: AsideWorld,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    sent = world.start_send(buffer, txn_id, "a")
    await buffer.stop()  # the log's opening has not begun
    assert isinstance(sent.exception(), ManagedLedgerError)
    assert "is being unloaded" in str(sent.exception())
    assert not buffer.has_open


@in_aside_world
async def test_an_unexpected_error_answers_the_producer(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    with (
        patch.object(SideLog, "open", side_effect=RuntimeError("a bug")),
        pytest.raises(ManagedLedgerError, match="cannot be opened: a bug"),
    ):
        await world.start_send(buffer, txn_id, "a")
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read(ORDERS) == ["b"]


# Which copies are made in the turn of the END


AT_ONCE = {"_AT_ONCE_BYTES": 1000, "_AT_ONCE_RANGES": 10}


async def is_copied_at_once(world: AsideWorld, **limits: int) -> bool:
    """Two messages of one transaction, with another's between them."""
    txn_ids, buffer = [await world.begin_on(ORDERS) for _ in range(2)], await world.buffer()
    for txn_id in (txn_ids[0], txn_ids[1], txn_ids[0]):
        await world.send(txn_id, "a")
    assert buffer._aside is not None
    with patch.multiple(commit_order_buffer, **(AT_ONCE | limits)):
        ending = buffer.end(txn_ids[0], COMMIT, -1)
        assert ending is not None
        at_once = not buffer._aside._copying
        await asyncio.shield(ending)
    assert not buffer._aside._copying
    assert await world.read() == ["a", "a"]
    return at_once


SIZE = 2 * len(message("a"))


@pytest.mark.parametrize(
    ("limits", "at_once"),
    [
        ({}, True),
        ({"_AT_ONCE_BYTES": SIZE}, True),
        ({"_AT_ONCE_BYTES": SIZE - 1}, False),
        ({"_AT_ONCE_RANGES": 2}, True),
        ({"_AT_ONCE_RANGES": 1}, False),
    ],
)
def test_a_small_transaction_is_copied_in_the_turn_of_its_end(
    limits: dict[str, int], at_once: bool
) -> None:
    @in_aside_world
    async def test(world: AsideWorld) -> None:
        assert await is_copied_at_once(world, **limits) is at_once

    test()


@in_aside_world
async def test_what_is_not_in_memory_is_copied_by_and_by(world: AsideWorld) -> None:
    with patch.object(SideLog, "cached", return_value=None):
        assert not await is_copied_at_once(world)


@in_aside_world
async def test_a_commit_of_nothing_copies_nothing(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    with patch.object(SideLog, "open", side_effect=LedgerClosed("no room")):
        sent = [world.start_send(buffer, txn_id, payload) for payload in "ab"]
        ending = buffer.end(txn_id, COMMIT, -1)
        await asyncio.gather(*sent, return_exceptions=True)
    assert ending is not None and buffer._aside is not None
    assert not buffer._aside._copying
    await asyncio.wait_for(asyncio.shield(ending), 1)
    assert await world.read() == []


# Copies that fail


@in_aside_world
async def test_a_failed_copy_is_given_up_when_all_of_it_has_been_answered(
    world: AsideWorld,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a", "b")
    right = SideLog.read

    async def breaks_off(log: SideLog, ranges: Any) -> AsyncIterator[EntryRun]:
        async for run in right(log, ranges):
            yield run
        raise LedgerClosed("the disk is broken")

    with patch.object(commit_order_buffer, "_AT_ONCE_BYTES", 0):
        world.storage.holding = True
        with (
            patch.object(copying, "_APPENDED_BYTES", 0),
            patch.object(side_log, "_READ_ENTRIES", 1),
            patch.object(SideLog, "read", breaks_off),
        ):
            ending = buffer.end(txn_id, COMMIT, -1)
            assert ending is not None
            await soon()
        assert not ending.done(), "some of it is still being written"
        world.storage.release()
        with pytest.raises(ManagedLedgerError, match="the disk is broken"):
            await asyncio.shield(ending)
        assert await world.read() == []
        await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]
    assert await (await world.crashed()).read() == ["a", "b"]


@in_aside_world
async def test_a_transaction_of_which_nothing_can_be_read_ends(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    ended = Mock()
    buffer.on_ended = ended

    async def nothing(log: SideLog, ranges: Any) -> AsyncIterator[EntryRun]:
        for run in list[EntryRun]():
            yield run

    with (
        patch.object(SideLog, "cached", return_value=None),
        patch.object(SideLog, "read", nothing),
    ):
        await world.end(txn_id, COMMIT)
    assert not buffer.has_open and len(buffer.contents) == 0
    ended.assert_called_once_with(txn_id, COMMIT, None)
    assert await world.read() == [] and await side_entries(world) == 0


@in_aside_world
async def test_a_copy_whose_marker_cannot_be_written_is_made_again(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a", "b")
    world.storage.full = True
    for _ in range(2):
        ending = buffer.end(txn_id, COMMIT, -1)
        assert ending is not None
        with pytest.raises(ManagedLedgerError):
            await asyncio.wait_for(asyncio.shield(ending), 1)
    world.storage.full = False
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]
    assert await (await world.crashed()).read() == ["a", "b"]


def test_a_copy_that_fails_when_nobody_waits_any_more_is_no_complaint() -> None:
    async def work() -> None:
        world = await AsideWorld().start()
        txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
        await world.send(txn_id, "a")
        world.storage.full = True
        assert buffer.end(txn_id, COMMIT, -1) is not None
        await soon()
        assert buffer._aside is not None
        transaction = buffer._aside.open.get(txn_id)
        assert transaction is not None and transaction.ending is None
        world.storage.full = False
        assert buffer.end(txn_id, COMMIT, -1) is not None
        await buffer.close()

    async def life() -> list[str]:
        return await told_to_nobody(work)

    assert run_virtually(life()) == []


def test_a_copy_that_fails_when_its_topic_was_unloaded_is_no_complaint() -> None:
    async def work() -> None:
        world = await AsideWorld().start()
        txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
        await world.send(txn_id, "a")
        world.storage.holding = True
        assert buffer.end(txn_id, COMMIT, -1) is not None
        await soon()
        assert buffer._aside is not None
        await buffer._aside.stop()
        world.storage.full = True
        world.storage.release()
        await soon()
        assert buffer.has_open

    async def life() -> list[str]:
        return await told_to_nobody(work)

    assert run_virtually(life()) == []


@in_aside_world
async def test_deletions_can_be_made_durable_before_there_are_any_and_behind_the_last(
    world: AsideWorld,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.holding = True
    sending = world.start_send(buffer, txn_id, "a")
    assert buffer._aside is not None
    await buffer._aside._flush()
    world.storage.release()
    await sending
    await buffer.close()
    await buffer._aside._flush()


@in_aside_world
async def test_many_ranges_are_deleted_by_and_by(world: AsideWorld) -> None:
    txn_ids = [await world.begin_on(ORDERS) for _ in range(2)]
    for payload in "abcdef":
        for txn_id in txn_ids:
            await world.send(txn_id, payload)
    with patch.object(side_log, "_DELETED_A_TURN", 2):
        await world.end(txn_ids[0], COMMIT)
        await soon()
        assert await side_entries(world) == 6


# Questions of the topic's log and stats


@in_aside_world
async def test_nothing_is_done_for_a_log_that_tells_of_nothing(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    aside, ledger = buffer._aside, await world.ledger(ORDERS)
    assert aside is not None
    assert aside._kept_from() == LATEST and len(aside._tasks) == 0
    await world.end(txn_id, COMMIT)
    world.storage.holding = True
    for _ in range(2):
        assert aside._kept_from() == ledger.first_position
        await soon()
        assert len(aside._tasks) == 1
    world.storage.release()
    await soon()
    assert aside._kept_from() == LATEST and len(aside._tasks) == 0


@in_aside_world
async def test_a_topic_that_is_unloaded_starts_nothing_more(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    late = await world.begin_on(ORDERS)
    aside = buffer._aside
    assert aside is not None
    await world.send(late, "b")
    await aside.stop()
    assert aside._visits.due is None
    assert aside._kept_from() < LATEST and len(aside._tasks) == 0
    with patch.object(world.coordinators, "status", return_value=None):
        await asyncio.sleep(20)
    transaction = aside.open.get(late)
    assert transaction is not None and transaction.ending is None
    aside.end(late, COMMIT)
    assert not aside._copying and buffer.has_open


@in_aside_world
async def test_the_size_of_the_side_log_and_of_what_waits_in_it(world: AsideWorld) -> None:
    buffer = await world.buffer()
    assert (buffer.aside_bytes, buffer.waiting_bytes) == (0, 0)
    txn_ids = [await world.begin_on(ORDERS) for _ in range(2)]
    for txn_id in txn_ids:
        sending = world.start_send(buffer, txn_id, "a")
        assert (buffer.aside_bytes, buffer.waiting_bytes) == (0, 0) or txn_id == txn_ids[1]
        await sending
    ledger = await world.side_ledger()
    assert buffer.aside_bytes == ledger.total_size_bytes == buffer.waiting_bytes == SIZE
    await world.end(txn_ids[0], COMMIT)
    assert (buffer.aside_bytes, buffer.waiting_bytes) == (SIZE, SIZE // 2)
