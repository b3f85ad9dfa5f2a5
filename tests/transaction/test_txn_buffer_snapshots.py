"""The transaction buffer's snapshots: when one is due, what it must hold, deleted ledgers."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from txn_world import (
    ABORT,
    COMMIT,
    COPIES,
    ORDERS,
    World,
    books_closed,
    in_world,
    in_world_with,
    soon,
)

from managed_ledger.errors import ManagedLedgerError, StorageFailed
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.operations import Remove
from pybroker.base.names import TopicName
from pybroker.transaction.buffer.log_order import transaction_index
from pybroker.transaction.buffer.log_order.buffer_snapshot import (
    ledgers_with_snapshots,
    snapshot_keys,
)
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.log_order.transaction_index import TransactionIndex


def snapshot_position(buffer: LogOrderBuffer) -> Position:
    head = buffer._index.snapshots.head()
    assert head is not None
    return head.position


# -- snapshots


def of_few_entries() -> Any:
    """Writes snapshots even of logs too short to be worth one."""
    return patch.object(transaction_index, "_SNAPSHOT_FROM_ENTRIES", 1)


@in_world
async def test_what_is_read_as_fast_is_not_written(world: World) -> None:
    """Otherwise a transaction on thousands of topics would write thousands of snapshots."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    await world.send(None, *map(str, range(97)))
    await asyncio.sleep(60)
    assert buffer._index.snapshots.head() is None
    assert buffer._visits.due is None, "it is idle"
    await world.send(None, "97")
    await asyncio.sleep(60)
    assert snapshot_position(buffer) == (await world.ledger(ORDERS)).last_confirmed


@in_world_with(transaction_buffer_snapshot_min_time_in_millis=0)
async def test_without_a_time_between_snapshots_there_is_one_all_the_same(world: World) -> None:
    """Without a minimum the buffer would do nothing else while a transaction is open."""
    await world.send(await world.begin_on(ORDERS), "a")
    visited = LogOrderBuffer._visited
    with patch.object(LogOrderBuffer, "_visited", autospec=True, side_effect=visited) as visits:
        await asyncio.sleep(10)
    assert 1 < visits.call_count <= 100


@in_world
async def test_recovery_needs_no_snapshot(world: World) -> None:
    kept, dropped = [await world.begin_on(ORDERS) for _ in range(2)]
    await world.send(kept, "a")
    await world.send(dropped, "b")
    await world.end(dropped, ABORT)
    await asyncio.sleep(30)
    world = await world.crashed()
    assert await world.read() == []
    await world.end(kept, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_a_recovery_that_lasts_is_not_written_as_if_it_were_at_its_end(world: World) -> None:
    over, dropped = [await world.begin_on(ORDERS) for _ in range(2)]
    await world.send(over, "a", "b")
    await world.end(over, COMMIT)
    await world.send(dropped, "c")
    world = await world.crashed()
    whole = ManagedLedger.read_whole

    async def slowly(ledger: ManagedLedger, at: Position, end: Position, *most: int) -> Any:
        ledger.settle_down()  # a visit
        await soon()
        return await whole(ledger, at, end, 1, most[1])

    with of_few_entries(), patch.object(ManagedLedger, "read_whole", slowly):
        await world.buffer()
    world = await world.crashed()
    assert [each.txn_id for each in (await world.buffer()).ongoing()] == [dropped]
    await world.end(dropped, ABORT)
    assert await world.read() == ["a", "b"]


@in_world_with(transaction_buffer_snapshot_max_transaction_count=7)
async def test_a_limited_number_of_changes_is_written_at_once(world: World) -> None:
    buffer = await world.buffer()
    for count in range(3):  # a message and its marker: two changes
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, str(count))
        await world.end(txn_id, COMMIT)
    await soon()
    assert buffer._index.snapshots.head() is None
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "last")
    await soon()
    assert buffer._index.snapshots.head() is None
    await world.end(txn_id, COMMIT)
    await soon()
    assert snapshot_position(buffer) == (await world.ledger(ORDERS)).last_confirmed


@in_world_with(transaction_buffer_snapshot_max_transaction_count=4)
async def test_exactly_the_limit_of_changes_is_written_at_once(world: World) -> None:
    buffer = await world.buffer()
    for _ in range(2):
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "a")
        assert buffer._index.snapshots.head() is None
        await world.end(txn_id, COMMIT)
        await soon()
    assert snapshot_position(buffer).entry_id == 3


@in_world_with(transaction_buffer_snapshot_max_transaction_count=4)
async def test_a_snapshot_must_save_more_than_it_writes(world: World) -> None:
    """A snapshot of two open transactions with two ranges each is as long as the four sends to
    scan.
    """
    one, two, buffer = *[await world.begin_on(ORDERS) for _ in range(2)], await world.buffer()
    for txn_id in (one, two, one, two):
        await world.send(txn_id, "x")
    await asyncio.sleep(6)
    assert buffer._index.snapshots.head() is None
    await world.send(two, "y")  # its last range grows
    await asyncio.sleep(6)
    assert snapshot_position(buffer).entry_id == 4


@in_world
async def test_many_plain_messages_pay_a_snapshot(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    await buffer._snapshot()
    written = snapshot_position(buffer)
    with patch.object(transaction_index, "_SCAN_LIMIT_ENTRIES", 5):
        await world.send(None, *"12345")
        await asyncio.sleep(60)
        assert snapshot_position(buffer) == written
        await world.send(None, "6")
        await asyncio.sleep(60)
    assert snapshot_position(buffer) == (await world.ledger(ORDERS)).last_confirmed


@in_world
async def test_many_open_ones_are_written_again_when_that_costs_less_than_the_scan(
    world: World,
) -> None:
    buffer = await world.buffer()
    for name in "abcde":
        await world.send(await world.begin_on(ORDERS), name)
    await buffer._snapshot()
    written = snapshot_position(buffer)
    with patch.multiple(transaction_index, _SCAN_LIMIT_ENTRIES=2, _ENTRIES_PER_RANGE=1):
        await world.send(None, *"12345")
        await asyncio.sleep(12)
        assert snapshot_position(buffer) == written
        await world.send(None, "6")
        await asyncio.sleep(12)
    assert snapshot_position(buffer) == (await world.ledger(ORDERS)).last_confirmed


@in_world
async def test_what_a_snapshot_failed_to_write_the_next_one_does(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    changes = buffer._index.changes
    assert changes == 2
    await asyncio.sleep(12)
    assert buffer._visits.due is None, "so little is not worth a snapshot"
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await buffer._snapshot()
    world.storage.full = False
    assert buffer._index.changes == changes
    with of_few_entries():
        await asyncio.sleep(6)
    assert snapshot_position(buffer).entry_id == 1 and buffer._index.changes == 0
    world = await world.crashed()
    with patch.object(TransactionIndex, "replay", side_effect=AssertionError):
        assert await world.read() == []


@in_world
async def test_closing_writes_nothing_that_is_written(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    with of_few_entries():
        await asyncio.sleep(12)
    writes = len(world.storage._durable)
    await buffer.close()
    assert len(world.storage._durable) == writes


@in_world
async def test_closing_writes_what_recovery_had_to_read(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await buffer._snapshot()
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    buffer = await world.buffer()
    await buffer.close()
    assert snapshot_position(buffer) == (await world.ledger(ORDERS)).last_confirmed


@in_world
async def test_it_says_when_the_last_snapshot_was_written(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await asyncio.sleep(3)
    await buffer._snapshot()
    written_ms = world.clock.now_ms()
    await asyncio.sleep(3)
    assert buffer.times.snapshot == written_ms


@in_world
async def test_a_buffer_that_is_stopped_writes_nothing(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    await buffer.stop()
    await asyncio.sleep(60)
    assert buffer._index.snapshots.head() is None
    assert str(buffer) == f"The transaction buffer of {ORDERS}"


@in_world
async def test_a_snapshot_on_its_way_is_given_up_when_the_buffer_is_stopped(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    with of_few_entries():
        buffer._start_snapshot_if_due()
    await buffer.stop()
    await soon()
    assert len(buffer._tasks) == 0
    assert buffer._index.snapshots.head() is None


@in_world
async def test_a_recovery_that_failed_half_way_leaves_no_snapshot(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    await books_closed()
    world = await world.crashed()
    ledger = await world.ledger(ORDERS)
    all_there_is = await ledger.read(ledger.first_position, ledger.last_confirmed, 100, 1 << 20)
    half_way = AsyncMock(side_effect=[all_there_is, StorageFailed("the disk failed")])
    with patch.object(ledger, "read_whole", half_way), pytest.raises(StorageFailed):
        await world.buffer()
    with of_few_entries():
        ledger.settle_down()
        await soon()
    assert snapshot_keys(world.storage.metadata, ledger.name) == []


@in_world
async def test_what_was_hidden_in_a_ledger_that_went_is_deleted_once(world: World) -> None:
    """The first snapshot written after the ledger's deletion deletes it."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    buffer._index.ledger_trimmed(77)

    def deletions() -> int:
        removed = [op.key for op in world.storage._durable if isinstance(op, Remove)]
        return removed.count(buffer._index.snapshots._hidden_key(77))

    world.storage.full = True
    for _ in range(2):
        with pytest.raises(ManagedLedgerError):
            await buffer._snapshot()
    world.storage.full = False
    assert deletions() == 0
    for _ in range(2):
        await buffer._snapshot()
        assert deletions() == 1


@in_world
async def test_snapshots_are_found_by_the_names_of_their_ledgers(world: World) -> None:
    """So a start can delete the snapshots of topics that no longer exist."""
    for topic in (ORDERS, COPIES):
        txn_id = await world.begin_on(topic)
        await world.send(txn_id, "a", topic=topic)
        await world.end(txn_id, ABORT)
        await (await world.buffer(topic)).close()
    names = [TopicName.parse(topic).ledger_name for topic in (COPIES, ORDERS)]
    assert ledgers_with_snapshots(world.storage.metadata) == names
    assert len(snapshot_keys(world.storage.metadata, names[0])) == 2


@in_world
async def test_a_snapshot_is_written_one_at_a_time(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a", "b")
    await world.end(txn_id, COMMIT)
    world.storage.holding = True
    for _ in range(3):
        with of_few_entries():
            buffer._start_snapshot_if_due()
        buffer._index.changes += 5
        await soon()
    assert len(buffer._tasks) == 1
    world.storage.release()


# -- deleted ledgers


@in_world
async def test_what_was_aborted_in_a_ledger_that_went_is_not_hidden_again(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    ledger = await world.ledger(ORDERS)
    await world.send(txn_id, "a")
    first = ledger.last_confirmed.ledger_id
    await ledger.roll_over()
    await world.send(txn_id, "b")
    await ledger.trim()
    await world.end(txn_id, ABORT)
    assert buffer.hidden.ranges_within(first, 0, 9) == []
    second = ledger.last_confirmed.ledger_id
    assert buffer.hidden.ranges_within(second, 0, 9) == [(0, 1)]
    assert await world.read() == []


@in_world
async def test_what_is_aborted_while_a_ledger_is_about_to_go_stays_hidden_when_it_stays(
    world: World,
) -> None:
    """There is room for the marker, but not for the list of ledgers without that one."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    ledger = await world.ledger(ORDERS)
    await world.send(txn_id, "a")
    await ledger.roll_over()
    world.storage.holding = True
    ending = buffer.end(txn_id, ABORT, -1)
    await soon()
    trimming = asyncio.ensure_future(ledger.trim())
    await soon()
    finish, full = world.storage._finish, iter((False, True))

    def finish_with_room_for_one(*arguments: Any) -> None:
        world.storage.full = next(full)
        finish(*arguments)

    with patch.object(world.storage, "_finish", finish_with_room_for_one):
        world.storage.release()
        with pytest.raises(ManagedLedgerError):
            await trimming
    world.storage.full = False
    assert ending is not None and ending.done()
    assert await world.read() == []
    assert await (await world.restarted()).read() == []


@in_world
async def test_the_snapshot_of_a_ledger_that_went_before_a_crash_goes_with_the_next(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    await buffer._snapshot()
    ledger = await world.ledger(ORDERS)
    await ledger.roll_over()
    await world.send(None, "plain")
    await ledger.trim()
    world = await world.crashed()
    assert not (await world.buffer()).hidden
    later = await world.begin_on(ORDERS)
    await world.send(later, "b")
    await world.end(later, ABORT)
    await (await world.buffer())._snapshot()
    hidden = world.storage.metadata.keys("transaction-buffer/")
    ledger = await world.ledger(ORDERS)
    last = str(ledger.last_confirmed.ledger_id)
    assert [key.rpartition("/")[2] for key in hidden] == ["head", last]


@in_world
async def test_the_newest_visible_message_may_stand_ledgers_back(world: World) -> None:
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    assert buffer.last_visible_position().entry_id == -1
    aborted = [await world.begin_on(ORDERS) for _ in range(3)]
    await world.send(aborted[0], "a")
    await world.end(aborted[0], ABORT)
    assert buffer.last_visible_position().entry_id == -1
    plain = await world.send(None, "plain")
    for txn_id in aborted[1:]:
        await world.send(txn_id, "b")
        await world.end(txn_id, ABORT)
        assert buffer.last_visible_position() == plain
        await ledger.roll_over()
    alone = await world.begin_on(ORDERS)
    await world.send(alone, "b")
    await ledger.roll_over()
    await world.end(alone, ABORT)
    assert ledger.last_confirmed.entry_id == 0, "the marker alone"
    assert buffer.last_visible_position() == plain
    open_one = await world.begin_on(ORDERS)
    await world.send(open_one, "c")
    await world.send(None, "behind")
    assert buffer.last_visible_position() == plain


@in_world
async def test_ongoing_transactions_say_from_where_and_since_when(world: World) -> None:
    first, second = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    buffer, began_ms = await world.buffer(), world.clock.now_ms()
    await world.send(None, "plain")
    position = await world.send(first, "a")
    await asyncio.sleep(1)
    world.storage.holding = True
    world.start_send(buffer, second, "b")
    await soon()
    ongoing = [(each.txn_id, each.first_position) for each in buffer.ongoing()]
    assert ongoing == [(first, position), (second, None)]
    assert [each.opened_at_ms - began_ms for each in buffer.ongoing()] == [0, 1000]
    assert buffer.oldest() == buffer.ongoing()[0]
    assert buffer.open_count == 2
    world.storage.release()
    await soon()
    assert buffer.ongoing()[1].first_position == position.after
