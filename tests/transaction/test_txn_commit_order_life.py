"""Commit order: transactions whose topic is unloaded, trimmed or refused meanwhile."""

import asyncio
from unittest.mock import patch

import pytest
from aside_world import COMMIT, ORDERS, AsideWorld, in_aside_world, side_entries, soon

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.trim import Retention
from pybroker.base.errors import ServiceNotReady
from pybroker.transaction.buffer.commit_order.side_log import SideLog

NO_RETENTION = Retention()


@in_aside_world
async def test_a_marker_that_lands_while_the_topic_is_unloaded_ends_its_transaction(
    world: AsideWorld,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    ending = buffer.end(txn_id, COMMIT, -1)
    assert ending is not None and buffer._aside is not None
    await soon()
    await buffer._aside.stop()
    with pytest.raises(ServiceNotReady):
        await asyncio.shield(ending)
    world.storage.release()
    await soon()
    assert not buffer.has_open
    assert await world.read() == ["a"]


@in_aside_world
async def test_a_commit_ends_though_the_side_log_could_not_be_made(world: AsideWorld) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    with patch.object(SideLog, "open", side_effect=ManagedLedgerError("no room")):
        sends = [world.start_send(buffer, txn_id, payload) for payload in "ab"]
        ending = buffer.end(txn_id, COMMIT, -1)
        assert ending is not None
        for sent in sends:
            with pytest.raises(ManagedLedgerError):
                await sent
    await asyncio.wait_for(asyncio.shield(ending), 1)
    assert not buffer.has_open


@in_aside_world
async def test_nothing_is_trimmed_that_tells_of_a_commit_whose_deletion_may_be_lost(
    world: AsideWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    ledger = await world.ledger(ORDERS)
    await world.end(txn_id, COMMIT)
    await ledger.roll_over()
    await ledger.trim(NO_RETENTION)
    end = ledger.last_confirmed
    again = await world.crashed()  # before the side log's cursor was written
    await again.buffer()
    await asyncio.sleep(1)
    assert (await again.ledger(ORDERS)).last_confirmed == end, "it was not copied again"
    assert not (await again.buffer()).has_open


@in_aside_world
async def test_it_is_trimmed_once_the_deletion_is_durable(world: AsideWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    ledger = await world.ledger(ORDERS)
    await world.end(txn_id, COMMIT)
    await ledger.roll_over()
    await asyncio.sleep(30)
    assert len(ledger.ledgers()) == 1
    assert await side_entries(world) == 0


@in_aside_world
async def test_what_is_asked_to_forget_what_ended_lets_it_be_trimmed_at_once(
    world: AsideWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    ledger = await world.ledger(ORDERS)
    await world.end(txn_id, COMMIT)
    await ledger.roll_over()
    await (await world.buffer()).forget_ended()
    await ledger.trim(NO_RETENTION)
    assert len(ledger.ledgers()) == 1
    again = await world.crashed()
    await again.buffer()
    await asyncio.sleep(1)
    assert await again.read() == []
