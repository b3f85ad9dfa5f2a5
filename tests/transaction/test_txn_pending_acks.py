"""Acknowledgements in transactions: conflicts, both ends, crashes, and a log that stays short."""

import asyncio
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, ended, in_world, in_world_with, soon

from managed_ledger.cursor import ManagedCursor
from managed_ledger.position import Position
from pybroker.base.errors import (
    InvalidTxnStatus,
    PersistenceError,
    TransactionConflict,
    TransactionNotFound,
)
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction import snapshot_log
from pybroker.transaction.pending_acks.pending_ack import PendingAck, PendingAcks
from pybroker.transaction.pending_acks.records import EndRecord, Record


async def ten_messages(world: World) -> tuple[PendingAcks, ManagedCursor, list[Position]]:
    cursor = await world.cursor("sub")
    first = await world.send(None, *[str(number) for number in range(10)])
    positions = [Position(first.ledger_id, first.entry_id + number) for number in range(10)]
    return await world.acks(), cursor, positions


def whole(*positions: Position) -> list[PendingAck]:
    return [PendingAck(position) for position in positions]


def indexes(position: Position, *acked: int, size: int = 8) -> PendingAck:
    """Acknowledges these indexes of a batch."""
    bits = (1 << size) - 1
    for index in acked:
        bits &= ~(1 << index)
    return PendingAck(position, bits, size)


async def durable_cursor(world: World) -> tuple[PendingAcks, ManagedCursor]:
    return await world.acks(), await world.cursor("sub")


@in_world
async def test_a_commit_acknowledges(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[0], at[3]))
    assert acks.is_pending(*at[3]) and not acks.is_pending(*at[1])
    assert not cursor.is_deleted(at[0])
    await world.end(txn_id, COMMIT)
    assert cursor.is_deleted(at[0]) and cursor.is_deleted(at[3])
    assert not acks.stats()


@in_world
async def test_an_abort_gives_the_messages_back_in_order(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3], at[0]))
    await acks.acknowledge(txn_id, [indexes(at[1], 2)])
    restored: list[Position] = []
    acks.on_restored = lambda _, some: restored.extend(some)
    await ended(acks.end(txn_id, ABORT))
    assert restored == [at[0], at[1], at[3]]
    assert not acks.stats() and not cursor.is_deleted(at[0])
    again = await world.begin_acking()
    await acks.acknowledge(again, whole(at[0]))


@in_world
async def test_two_transactions_cannot_take_one_message(world: World) -> None:
    acks, _, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(first, whole(at[0]))
    with pytest.raises(TransactionConflict):
        await acks.acknowledge(second, whole(at[1], at[0]))
    assert not acks.is_pending(*at[1]), "all or none"
    await world.end(first, ABORT)
    await acks.acknowledge(second, whole(at[1], at[0]))


@in_world
async def test_of_two_in_flight_for_one_message_only_one_passes(world: World) -> None:
    acks, _, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    passed = acks.acknowledge(first, whole(at[0]))
    with pytest.raises(TransactionConflict):
        acks.acknowledge(second, whole(at[0]))
    await passed


@in_world
async def test_an_acknowledged_message_cannot_be_taken(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    cursor.delete(*at[4])
    with pytest.raises(TransactionConflict):
        await acks.acknowledge(await world.begin_acking(), whole(at[4]))


@in_world
async def test_a_message_to_come_cannot_be_acknowledged(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    with pytest.raises(TransactionConflict, match="the last message"):
        await acks.acknowledge(txn_id, whole(at[9].after))
    with pytest.raises(TransactionConflict, match="the last message"):
        await acks.acknowledge_cumulative(txn_id, PendingAck(at[9].after))


@in_world
async def test_different_indexes_of_a_batch_do_not_conflict(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(first, [indexes(at[0], 0, 1)])
    await acks.acknowledge(second, [indexes(at[0], 2)])
    assert acks.pending_indexes(at[0]) == 0b111
    with pytest.raises(TransactionConflict):
        await acks.acknowledge(second, [indexes(at[0], 1, 3)])
    with pytest.raises(TransactionConflict):
        await acks.acknowledge(second, whole(at[0]))
    await world.end(first, COMMIT)
    assert cursor.unacked_indexes(at[0]) == 0b11111100
    await world.end(second, ABORT)
    assert acks.pending_indexes(at[0]) == 0 and cursor.unacked_indexes(at[0]) == 0b11111100


@in_world
async def test_an_index_that_was_acknowledged_conflicts(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    cursor.delete_batch_indexes(at[0], 0b11111110, 8)
    with pytest.raises(TransactionConflict):
        await acks.acknowledge(await world.begin_acking(), [indexes(at[0], 0)])
    await acks.acknowledge(await world.begin_acking(), [indexes(at[0], 1)])


@in_world
async def test_a_batch_is_pending_when_no_index_is_left(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(first, [indexes(at[0], 0, size=2)])
    assert not acks.is_pending(*at[0])
    await acks.acknowledge(second, [indexes(at[0], 1, size=2)])
    assert acks.is_pending(*at[0])
    await world.end(first, COMMIT)
    assert acks.is_pending(*at[0])
    await world.end(second, COMMIT)
    assert cursor.is_deleted(at[0])


@in_world
async def test_a_cumulative_commit_moves_the_mark(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge_cumulative(txn_id, PendingAck(at[4]))
    assert acks.cumulative_position == at[4]
    assert not acks.is_pending(*at[4]), "it is delivered to the next consumer"
    await world.end(txn_id, COMMIT)
    assert cursor.mark_delete_position == at[4]
    assert acks.cumulative_position is None


@in_world
async def test_cumulative_conflicts(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    cursor.mark_delete(at[1])
    with pytest.raises(TransactionConflict):
        await acks.acknowledge_cumulative(first, PendingAck(at[1]))
    await acks.acknowledge_cumulative(first, PendingAck(at[4]))
    with pytest.raises(TransactionConflict):
        await acks.acknowledge_cumulative(second, PendingAck(at[8]))
    with pytest.raises(TransactionConflict):
        await acks.acknowledge_cumulative(first, PendingAck(at[4]))
    await acks.acknowledge_cumulative(first, PendingAck(at[5]))
    await world.end(first, ABORT)
    assert cursor.mark_delete_position == at[1]
    await acks.acknowledge_cumulative(second, PendingAck(at[3]))


@in_world
async def test_a_cumulative_ack_goes_on_within_a_batch(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge_cumulative(txn_id, indexes(at[2], 0))
    await acks.acknowledge_cumulative(txn_id, indexes(at[2], 0, 1))
    with pytest.raises(TransactionConflict):
        await acks.acknowledge_cumulative(txn_id, indexes(at[2], 0))
    assert acks.pending_indexes(at[2]) == 0
    assert not acks.is_pending(*at[1])
    await world.end(txn_id, COMMIT)
    assert cursor.mark_delete_position == at[1]
    assert cursor.unacked_indexes(at[2]) == 0b11111100


@in_world
async def test_cumulative_and_individual_both_take_effect(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(first, whole(at[1], at[7]))
    await acks.acknowledge_cumulative(second, PendingAck(at[4]))
    await world.end(second, COMMIT)
    await world.end(first, COMMIT)
    assert cursor.mark_delete_position == at[4] and cursor.is_deleted(at[7])


@in_world
async def test_an_individual_one_within_another_transactions_cumulative_one_conflicts(
    world: World,
) -> None:
    acks, cursor, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge_cumulative(first, PendingAck(at[4]))
    with pytest.raises(TransactionConflict, match="cumulatively; retry"):
        await acks.acknowledge(second, whole(at[2]))
    await world.end(first, ABORT)
    await acks.acknowledge(second, whole(at[2]))
    await world.end(second, COMMIT)
    assert cursor.is_deleted(at[2]) and not cursor.is_deleted(at[1])


@in_world
async def test_what_a_cumulative_one_spares_survives_a_crash(world: World) -> None:
    """The consumer that acknowledged up to 5 was never given 1, nor one message of batch 3."""
    acks, _, at = await ten_messages(world)
    first, second = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(first, [*whole(at[1]), indexes(at[3], 2)])
    await acks.acknowledge_cumulative(second, PendingAck(at[5]))
    await world.end(first, ABORT)
    world = await world.crashed()
    acks, cursor = await durable_cursor(world)
    await world.end(second, COMMIT)
    world = await world.crashed()
    acks, cursor = await durable_cursor(world)
    left = [position for position in at[:6] if not cursor.is_deleted(position)]
    assert left == [at[1], at[3]] and cursor.unacked_indexes(at[3]) == 0b100


@in_world
async def test_pending_acks_survive_a_crash(world: World) -> None:
    acks, _, at = await ten_messages(world)
    first, second, third = [await world.begin_acking() for _ in range(3)]
    await acks.acknowledge(first, whole(at[6]))
    await acks.acknowledge(second, [indexes(at[7], 1, 2)])
    await acks.acknowledge_cumulative(third, indexes(at[2], 0))
    world = await world.crashed()
    acks, cursor = await durable_cursor(world)
    assert acks.is_pending(*at[6]) and acks.cumulative_position == at[2]
    assert acks.pending_indexes(at[7]) == 0b110
    for txn_id in (first, second, third):
        await world.end(txn_id, COMMIT)
    assert cursor.is_deleted(at[6]) and cursor.mark_delete_position == at[1]
    assert cursor.unacked_indexes(at[7]) == 0b11111001
    assert cursor.unacked_indexes(at[2]) == 0b11111110


@in_world
async def test_a_commit_survives_a_crash_before_the_cursor_is_written(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[5]))
    await acks.acknowledge_cumulative(txn_id, PendingAck(at[2]))
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    acks, cursor = await durable_cursor(world)
    assert cursor.is_deleted(at[5]) and cursor.mark_delete_position == at[2]
    assert not acks.stats()


@in_world
async def test_an_abort_survives_a_crash(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[5]))
    await world.end(txn_id, ABORT)
    acks, cursor = await durable_cursor(await world.crashed())
    assert not acks.stats() and not cursor.is_deleted(at[5])


@in_world_with(transaction_pending_ack_log_entries=20)
async def test_the_log_stays_short_and_keeps_what_is_open(world: World) -> None:
    acks, _, at = await ten_messages(world)
    kept = await world.begin_acking()
    await acks.acknowledge(kept, whole(at[9]))
    for number in range(100):
        txn_id = await world.begin_acking()
        await acks.acknowledge(txn_id, whole(at[number % 9]))
        await world.end(txn_id, ABORT)
    committed = await world.begin_acking()
    await acks.acknowledge(committed, whole(at[3]))
    await world.end(committed, COMMIT)
    log = await world.factory.open(pending_ack_log(TopicName.parse(ORDERS), "sub"))
    assert log.cursors["__pending_ack_state"].backlog(log.last_confirmed) < 60
    world = await world.crashed()
    acks, cursor = await durable_cursor(world)
    assert acks.is_pending(*at[9]) and cursor.is_deleted(at[3])


@in_world
async def test_the_log_of_an_idle_subscription_is_cleaned(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(12)
    log = await world.factory.open(pending_ack_log(TopicName.parse(ORDERS), "sub"))
    assert log.cursors["__pending_ack_state"].backlog(log.last_confirmed) == 1
    assert acks._visits.due is None
    _, cursor = await durable_cursor(await world.crashed())
    assert cursor.is_deleted(at[3])


@in_world
async def test_what_ends_while_a_checkpoint_is_made_has_ended_after_a_crash(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_ids = [await world.begin_acking() for _ in range(6)]
    for position, txn_id in zip(at, txn_ids[:5], strict=False):
        await acks.acknowledge(txn_id, whole(position))
    asked: list[Record] = []

    records = acks._state.records()

    def counted() -> Iterator[Record]:
        for record in records:
            asked.append(record)
            yield record

    acks._state.records = counted  # type: ignore[method-assign]
    with patch.object(snapshot_log, "PARTS_PER_ENTRY", 1):
        checkpoint = asyncio.ensure_future(acks.checkpoint())
        await asyncio.sleep(0)
        assert len(asked) == 1
        for txn_id, action in [(txn_ids[0], COMMIT), (txn_ids[3], ABORT), (txn_ids[4], COMMIT)]:
            acks.end(txn_id, action)
        late = acks.acknowledge(txn_ids[5], whole(at[6]))
        await asyncio.gather(checkpoint, late)
    again, cursor = await durable_cursor(await world.crashed())
    assert [cursor.is_deleted(position) for position in at[:7]] == [1, 0, 0, 0, 1, 0, 0]
    assert [again.is_pending(*position) for position in at[:7]] == [0, 1, 1, 0, 0, 0, 1]


@in_world
async def test_a_checkpoint_keeps_an_end_that_is_on_its_way(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    world.storage.holding = True
    ending = acks.end(txn_id, COMMIT)
    assert ending is not None
    await soon()
    checkpoint = asyncio.ensure_future(acks.checkpoint())
    await soon()
    assert EndRecord(txn_id, COMMIT) in acks._state.records()
    world.storage.release()
    await asyncio.gather(ending, checkpoint)
    _, cursor = await durable_cursor(await world.crashed())
    assert cursor.is_deleted(at[3])


@in_world
async def test_a_checkpoint_forgets_no_commit(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await world.end(txn_id, COMMIT)
    await acks.checkpoint()
    _, cursor = await durable_cursor(await world.crashed())
    assert cursor.is_deleted(at[3])


@in_world
async def test_a_seek_back_is_not_undone_by_replay(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge_cumulative(txn_id, PendingAck(at[5]))
    await world.end(txn_id, COMMIT)
    await acks.checkpoint()
    cursor.reset(at[0])
    await cursor.flush()
    _, cursor = await durable_cursor(await world.crashed())
    assert not cursor.is_deleted(at[0])


@in_world
async def test_an_acknowledgement_that_is_not_written_is_given_back(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    world.storage.full = True
    with pytest.raises(PersistenceError):
        await acks.acknowledge(txn_id, whole(at[0]))
    with pytest.raises(PersistenceError):
        await acks.acknowledge_cumulative(txn_id, PendingAck(at[4]))
    world.storage.full = False
    assert not acks.stats() and acks.stats() == []
    await acks.acknowledge(txn_id, whole(at[0]))


@in_world
async def test_an_acknowledgement_after_the_end_is_refused(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await acks.acknowledge(txn_id, whole(at[0]))
    with pytest.raises(InvalidTxnStatus):
        await acks.acknowledge(await world.begin(), whole(at[0]))
    with pytest.raises(TransactionNotFound):
        await acks.acknowledge(TxnId(0, 99), whole(at[0]))


@in_world
async def test_an_end_that_was_lost_is_asked_for(world: World) -> None:
    acks, _, at = await ten_messages(world)
    lost, kept = await world.begin_acking(), await world.begin_acking()
    restored: list[Position] = []
    acks.on_restored = lambda _, some: restored.extend(some)
    await acks.acknowledge(lost, whole(at[1]))
    await acks.acknowledge(kept, whole(at[2]))
    (await world.coordinators.get(0)).metadata(lost).subscriptions.clear()  # type: ignore[union-attr]
    await world.end(lost, ABORT)
    assert acks.is_pending(*at[1])
    await asyncio.sleep(6)
    assert restored == [at[1]]
    assert not acks.is_pending(*at[1]) and acks.is_pending(*at[2])


@in_world
async def test_ending_twice_logs_one_end(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[1]))
    ending = acks.end(txn_id, ABORT)
    assert ending is not None and acks.end(txn_id, ABORT) is ending
    await ending
    assert acks.end(txn_id, ABORT) is None
    log = await world.factory.open(pending_ack_log(TopicName.parse(ORDERS), "sub"))
    assert log.last_confirmed.entry_id == 1


@in_world
async def test_one_transaction_acknowledges_on_several_subscriptions(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    other_cursor, other = await world.cursor("other"), await world.acks("other")
    txn_id = await world.begin_acking()
    await world.add_subscription(txn_id, "other")
    await acks.acknowledge(txn_id, whole(at[1]))
    await other.acknowledge(txn_id, whole(at[1]))
    await world.end(txn_id, COMMIT)
    assert cursor.is_deleted(at[1]) and other_cursor.is_deleted(at[1])


@in_world
async def test_stats_say_which_transaction_holds_what(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, [*whole(at[8]), indexes(at[9], 1)])
    await acks.acknowledge_cumulative(txn_id, PendingAck(at[3]))
    (held,) = acks.stats()
    assert (held.txn_id, held.individual, held.cumulative_position) == (txn_id, 2, at[3])
