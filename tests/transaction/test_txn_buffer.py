"""The transaction buffer: what readers see, what survives a crash, what must never pin a topic."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, books_closed, in_world, soon

from managed_ledger.errors import ManagedLedgerError, StorageFailed
from managed_ledger.position import Position
from pybroker.base.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.log_order import buffer_snapshot, transaction_index


@in_world
async def test_messages_show_only_after_the_commit(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a", "b")
    assert await world.read() == []
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]


@in_world
async def test_an_aborted_message_never_shows(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(None, "plain")
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    assert await world.read() == ["plain"]
    assert (await world.buffer()).last_visible_position().entry_id == 0


@in_world
async def test_plain_messages_wait_behind_an_open_transaction(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(None, "before")
    await world.send(txn_id, "a")
    await world.send(None, "behind")
    assert await world.read() == ["before"]
    await world.end(txn_id, ABORT)
    assert await world.read() == ["before", "behind"]


@in_world
async def test_the_oldest_open_transaction_holds_the_others_back(world: World) -> None:
    first, second = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    for txn_id, payload in [(first, "a"), (second, "b"), (first, "c")]:
        await world.send(txn_id, payload)
    await world.end(second, COMMIT)
    assert await world.read() == []
    await world.end(first, ABORT)
    assert await world.read() == ["b"]


@in_world
async def test_an_entry_is_hidden_before_it_is_durable(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.holding = True
    plain = world.start_send(buffer, None, "plain")
    sent = world.start_send(buffer, txn_id, "a")
    seen: list[Position] = []
    plain.add_done_callback(lambda _: seen.append(buffer.max_read_position))
    await soon()
    world.storage.release()
    await sent
    assert [position.entry_id for position in seen] == [0]
    assert await world.read() == ["plain"]


@in_world
async def test_the_marker_stands_behind_sends_in_flight(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    sent = world.start_send(buffer, txn_id, "b")
    ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    world.storage.release()
    await asyncio.gather(sent, ended)
    assert await world.read() == ["a", "b"]
    assert buffer.ongoing() == []


@in_world
async def test_a_late_send_is_refused_and_pins_nothing(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await world.send(txn_id, "late")
    await world.send(None, "plain")
    assert await world.read() == ["a", "plain"]


@in_world
async def test_a_send_is_refused_while_the_end_runs(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    with pytest.raises(InvalidTxnStatus):
        await world.start_send(buffer, txn_id, "late")
    world.storage.release()
    await ended
    assert await world.read() == ["a"]


@in_world
async def test_a_send_to_a_topic_that_was_not_added_is_refused(world: World) -> None:
    txn_id = await world.begin()
    with pytest.raises(InvalidTxnStatus):
        await world.send(txn_id, "a")
    with pytest.raises(TransactionNotFound):
        await world.send(TxnId(0, 77), "a")
    assert (await world.buffer()).ongoing() == []


@in_world
async def test_a_failed_append_does_not_pin_the_topic(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.start_send(buffer, txn_id, "a")
    world.storage.full = False
    assert buffer.ongoing() == []
    await world.send(None, "plain")
    assert await world.read() == ["plain"]


@in_world
async def test_ending_twice_writes_one_marker(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    ending = buffer.end(txn_id, COMMIT, -1)
    assert ending is not None and buffer.end(txn_id, COMMIT, -1) is ending
    await ending
    assert buffer.end(txn_id, COMMIT, -1) is None
    assert (await world.ledger(ORDERS)).last_confirmed.entry_id == 1


@in_world
async def test_readers_are_told_when_they_may_go_on(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world.stable_moves.clear()
    await world.end(txn_id, COMMIT)
    assert world.stable_moves == [ORDERS]


@in_world
async def test_a_topic_without_transactions_keeps_nothing(world: World) -> None:
    await world.send(None, "plain")
    world = await world.restarted()
    buffer = await world.buffer()
    properties = (await world.ledger(ORDERS)).properties
    assert [key for key in properties if not key.startswith("managed-ledger.")] == []
    assert world.storage.metadata.keys("transaction-buffer/") == []
    assert buffer._visits.due is None


@in_world
async def test_an_open_transaction_goes_on_after_a_crash(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world = await world.crashed()
    assert await world.read() == []
    await world.send(txn_id, "b")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a", "b"]


@in_world
async def test_what_was_aborted_stays_hidden_after_a_crash(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    await world.send(None, "plain")
    assert await (await world.crashed()).read() == ["plain"]


@in_world
async def test_a_clean_restart_scans_nothing(world: World) -> None:
    txn_id, kept = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.send(kept, "b")
    await world.end(txn_id, ABORT)
    world = await world.restarted()
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    assert buffer._index.snapshots.head().position == ledger.last_confirmed  # type: ignore[union-attr]
    assert [ongoing.txn_id for ongoing in buffer.ongoing()] == [kept]
    await world.end(kept, COMMIT)
    assert await world.read() == ["b"]


@in_world
async def test_a_crash_after_a_snapshot_scans_from_it(world: World) -> None:
    txn_id, later = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await asyncio.sleep(6)  # a snapshot is due after five seconds
    await world.send(later, "b")
    await world.end(txn_id, ABORT)
    world = await world.crashed()
    assert await world.read() == []
    await world.end(later, COMMIT)
    assert await world.read() == ["b"]


@in_world
async def test_a_snapshot_leaves_what_is_in_flight_to_the_scan(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    sent = world.start_send(buffer, txn_id, "b")
    await soon()
    snapshot = asyncio.ensure_future(buffer._snapshot())
    await soon()
    world.storage.release()
    await asyncio.gather(sent, snapshot)
    world = await world.crashed()
    await world.end(txn_id, ABORT)
    assert await world.read() == []


@in_world
async def test_others_have_their_turn_while_a_snapshot_is_made(world: World) -> None:
    """Ends and appends meanwhile are in the log after the snapshot's position."""
    buffer = await world.buffer()
    txn_ids = [await world.begin_on(ORDERS) for _ in range(6)]
    for number, txn_id in enumerate(txn_ids[:5]):
        await world.send(txn_id, f"first of {number}")
    with patch.object(buffer_snapshot, "_NUMBERS_A_TURN", 1):
        snapshot = asyncio.ensure_future(buffer._snapshot())
        await asyncio.sleep(0)
        assert not snapshot.done()
        before = buffer.last_visible_position()
        await world.end(txn_ids[0], COMMIT)
        await world.end(txn_ids[4], ABORT)
        await world.send(txn_ids[1], "second of 1")
        await world.send(txn_ids[5], "first of 5")
        assert buffer.last_visible_position() > before
        await snapshot
    world = await world.crashed()
    assert world.storage.metadata.get(f"{(await world.buffer())._index.snapshots._prefix}head")
    await world.end(txn_ids[1], ABORT)
    for number in (2, 3, 5):
        await world.end(txn_ids[number], COMMIT)
    assert await world.read() == ["first of 0", "first of 2", "first of 3", "first of 5"]


@in_world
async def test_a_snapshot_that_was_interrupted_hides_nothing_less(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    world.storage.holding = True
    interrupted = asyncio.ensure_future(buffer._snapshot())
    await soon()
    interrupted.cancel()
    await soon()
    world.storage.full = True
    world.storage.release()
    await soon()
    world.storage.full = False
    world = await world.restarted()
    assert await world.read() == []


@in_world
async def test_recovery_looks_for_a_first_transaction_that_a_full_disk_kept_from_being_told(
    world: World,
) -> None:
    """Its message waits for a new ledger. When that ledger exists, the disk has room again."""
    await world.send(None, "plain")
    first, second = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    ledger._appender.hold()
    world.storage.full = True
    sent = world.start_send(buffer, first, "open")
    await soon()
    world.storage.full = False
    ledger._appender.release()
    await sent
    await world.send(second, "later")
    await world.end(second, COMMIT)
    assert await world.read() == ["plain"]
    assert await (await world.crashed()).read() == ["plain"]


@in_world
async def test_a_recovery_that_failed_half_way_tells_the_next_one_nothing(world: World) -> None:
    """The failed recovery once left a snapshot of entries that it had not read. The next recovery
    believed the snapshot and showed the messages of an open transaction.
    """
    aborted, still_open = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.send(aborted, "aborted")
    await world.end(aborted, ABORT)
    await world.send(still_open, "open")
    await books_closed()
    world = await world.crashed()
    ledger = await world.ledger(ORDERS)
    read = ledger.read

    async def damaged(position: Position, *limits: Any) -> Any:
        if position.entry_id == 2:
            raise StorageFailed("the disk does not answer")
        return await read(position, *limits)

    with (
        patch.object(ledger, "read", damaged),
        patch.object(transaction_index, "_SCAN_ENTRIES", 2),
    ):
        with pytest.raises(StorageFailed):
            await world.buffer()
        ledger.settle_down()
        await soon()
    assert await world.read() == []
    assert await (await world.crashed()).read() == []


@in_world
async def test_a_marker_that_was_lost_does_not_pin_the_topic(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    # The coordinator ended it without telling this topic, as if it had skipped a participant.
    (await world.coordinators.get(0)).metadata(txn_id).partitions.clear()  # type: ignore[union-attr]
    await world.end(txn_id, COMMIT)
    assert await world.read() == []
    await asyncio.sleep(6)
    assert await world.read() == ["a"]


@in_world
async def test_a_low_watermark_ends_what_was_left_open(world: World) -> None:
    left, txn_id = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.send(left, "a")
    await world.send(txn_id, "b")
    (await world.coordinators.get(0)).metadata(left).partitions.clear()  # type: ignore[union-attr]
    await world.end(left, ABORT)
    await world.end(txn_id, COMMIT)
    await soon()
    assert await world.read() == ["b"]


@in_world
async def test_a_transaction_without_a_retained_outcome_is_aborted(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    storage = world.storage.durable_copy()
    storage.forget_keys("__transaction_log")
    world = await World(storage).start()
    await world.buffer()
    await soon()
    await world.send(None, "plain")
    assert await world.read() == ["plain"]


@in_world
async def test_a_coordinator_not_recovered_is_not_taken_for_one_that_forgot(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world = World(world.storage.durable_copy())
    await world.buffer()
    await soon()
    assert len((await world.buffer()).ongoing()) == 1
    await world.start()
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_what_is_hidden_goes_with_its_ledger(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await world.end(txn_id, ABORT)
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    await buffer._snapshot()
    assert len(world.storage.metadata.keys("transaction-buffer/")) == 2
    await ledger.roll_over()
    await world.send(None, "plain")
    await ledger.trim()
    assert not buffer.hidden
    await buffer._snapshot()
    assert len(world.storage.metadata.keys("transaction-buffer/")) == 1
    assert await (await world.crashed()).read() == ["plain"]


@in_world
async def test_a_message_named_only_in_its_command_is_found_by_recovery(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")  # names no transaction, like the Go client's
    world = await world.crashed()
    assert [ongoing.txn_id for ongoing in (await world.buffer()).ongoing()] == [txn_id]
