"""Transactions that a snapshot names as open, and whose entries were trimmed before a crash."""

import asyncio

import pytest
from txn_world import ABORT, COMMIT, COPIES, ORDERS, World, books_closed, in_world, soon

from managed_ledger.errors import StorageFailed
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.txn_status import TxnAction, TxnStatus


async def trimmed_after_a_snapshot_that_names_it(world: World, txn_id: TxnId) -> None:
    """Trims what there is, which the transaction's entries belong to. A plain message follows."""
    ledger = await world.ledger(ORDERS)
    await ledger.roll_over()
    await world.send(None, "plain")
    await ledger.trim()
    head = (await world.buffer())._index.snapshots.head()
    assert head is not None
    assert [record.txn_id for record in head.open_transactions] == [txn_id]


async def loaded_without_writes(world: World) -> LogOrderBuffer:
    """The topic's buffer, loaded while nothing becomes durable."""
    await world.ledger(ORDERS)
    world.storage.holding = True
    return await world.buffer()


@pytest.mark.parametrize("action", [COMMIT, ABORT])
def test_a_transaction_that_was_trimmed_with_its_marker_holds_no_reader_back_after_a_crash(
    action: TxnAction,
) -> None:
    """Readers had passed it: the end of the topic must not go back until its outcome is written
    again.
    """

    @in_world
    async def test(world: World) -> None:
        txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
        await world.send(txn_id, "a")
        await buffer._snapshot()
        await world.end(txn_id, action)
        await trimmed_after_a_snapshot_that_names_it(world, txn_id)
        await books_closed()
        world = await world.crashed()
        buffer, ledger = await loaded_without_writes(world), await world.ledger(ORDERS)
        end = ledger.last_confirmed
        assert (buffer.max_read_position, buffer.ongoing()) == (end, [])
        assert await world.read() == ["plain"]
        world.storage.release()
        await soon()
        assert ledger.last_confirmed == end, "no second marker"

    test()


@in_world
async def test_one_that_was_trimmed_holds_nobody_back_while_its_coordinator_has_not_recovered(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await buffer._snapshot()
    await world.end(txn_id, COMMIT)
    await trimmed_after_a_snapshot_that_names_it(world, txn_id)
    world = World(world.storage.durable_copy())
    assert not (await world.buffer()).ongoing()
    assert await world.read() == ["plain"]


@in_world
async def test_one_that_was_trimmed_holds_nobody_back_while_other_topics_are_still_told_of_its_end(
    world: World,
) -> None:
    async def not_copies(participant: str) -> None:
        if participant == COPIES:
            raise StorageFailed("not now")

    txn_id, buffer = await world.begin_on(ORDERS, COPIES), await world.buffer()
    await world.send(txn_id, "a")
    await world.send(txn_id, "b", topic=COPIES)
    await buffer._snapshot()
    world.before_end = not_copies
    ending = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    await trimmed_after_a_snapshot_that_names_it(world, txn_id)
    ending.cancel()
    crashed = World(world.storage.durable_copy())
    crashed.before_end = not_copies
    await crashed.start()
    assert crashed.coordinators.status(txn_id) is TxnStatus.COMMITTING
    assert not (await crashed.buffer()).ongoing()
    assert await crashed.read() == ["plain"]


@in_world
async def test_an_open_transaction_whose_entries_were_trimmed_ends_as_decided(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await buffer._snapshot()
    await trimmed_after_a_snapshot_that_names_it(world, txn_id)
    world = await world.crashed()
    assert [each.txn_id for each in (await world.buffer()).ongoing()] == [txn_id]
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["plain", "b"]


@in_world
async def test_a_transaction_goes_on_after_a_recovery_that_could_not_ask_about_its_trimmed_entries(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await buffer._snapshot()
    await trimmed_after_a_snapshot_that_names_it(world, txn_id)
    world = World(world.storage.durable_copy())
    assert not (await world.buffer()).ongoing()
    await world.start()
    await world.send(txn_id, "b")
    assert await world.read() == ["plain"]
    await world.end(txn_id, ABORT)
    await world.send(None, "later")
    assert await world.read() == ["plain", "later"]


@in_world
async def test_a_transaction_of_which_one_entry_is_left_holds_readers_back(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await (await world.ledger(ORDERS)).roll_over()
    await world.send(txn_id, "b")
    await buffer._snapshot()
    await world.send(None, "plain")
    await (await world.ledger(ORDERS)).trim()
    world = World(world.storage.durable_copy())
    assert [each.txn_id for each in (await world.buffer()).ongoing()] == [txn_id]
    assert await world.read() == []
    await world.start()
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["b", "plain"]
