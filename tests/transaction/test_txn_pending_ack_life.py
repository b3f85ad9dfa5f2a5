"""Pending acknowledgements over time: reopening, settling, failures, keeping their log short."""

import asyncio
from collections.abc import Mapping
from unittest.mock import Mock, patch

import pytest
from test_txn_pending_acks import indexes, ten_messages, whole
from txn_world import (
    ABORT,
    COMMIT,
    ORDERS,
    World,
    books_closed,
    ended,
    in_world,
    in_world_with,
    soon,
    told_to_nobody,
)

from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.ledger_metadata import cursor_key
from managed_ledger.position import Position
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.operations import Put
from pybroker.base.errors import (
    InvalidTxnStatus,
    PersistenceError,
    TransactionConflict,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction import paced_visits, snapshot_log
from pybroker.transaction.paced_visits import EVERY_S
from pybroker.transaction.pending_acks import acks_of_transaction
from pybroker.transaction.pending_acks.records import HELD_WHOLE, AckRecord, Held, PendingAck
from pybroker.transaction.txn_status import TxnStatus


async def log_length(world: World) -> int:
    """The number of entries that the next opening would replay."""
    log = await world.factory.open(pending_ack_log(TopicName.parse(ORDERS), "sub"))
    return log.cursors["__pending_ack_state"].backlog(log.last_confirmed)


async def log_end(world: World) -> int:
    log = await world.factory.open(pending_ack_log(TopicName.parse(ORDERS), "sub"))
    return log.last_confirmed.entry_id


async def skip_subscription(world: World, txn_id: TxnId) -> None:
    """The coordinator will not tell the subscription how the transaction ended."""
    transaction = (await world.coordinators.get(0)).metadata(txn_id)
    assert transaction is not None
    transaction.subscriptions.clear()


# -- opened again


@in_world
async def test_the_log_of_a_subscription_that_is_idle_since_the_start_is_cleaned(
    world: World,
) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    acks = await world.acks()
    assert await log_length(world) == 2
    await asyncio.sleep(12)
    assert (await log_length(world), acks._visits.due) == (1, None)


@in_world
async def test_an_end_that_was_lost_is_done_when_the_subscription_is_opened(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await skip_subscription(world, txn_id)
    await world.end(txn_id, COMMIT)
    await books_closed()
    world = await world.crashed()
    await world.acks()
    await soon()
    assert (await world.cursor("sub")).is_deleted(at[3])


@in_world
async def test_many_lost_ends_are_done_some_at_a_time_and_none_after_closing(world: World) -> None:
    acks, _, at = await ten_messages(world)
    for position in at[:5]:
        txn_id = await world.begin_acking()
        await acks.acknowledge(txn_id, whole(position))
        await skip_subscription(world, txn_id)
        await world.end(txn_id, COMMIT)
    await books_closed()  # no event but settling will end them now
    with patch.object(paced_visits, "A_TURN", 2):
        opened = await world.crashed()
        await opened.acks()
        cursor, done = await opened.cursor("sub"), []
        for _ in range(3):
            await soon()
            done.append(sum(cursor.is_deleted(position) for position in at[:5]))
            await asyncio.sleep(EVERY_S)
        assert done == [2, 4, 5]
        closed = await world.crashed()
        acks = await closed.acks()
        asked = Mock()
        acks._outcomes = asked
        await acks.close()
        await asyncio.sleep(20)
        assert asked.mock_calls == []


@in_world
async def test_what_is_being_ended_or_has_ended_is_not_ended_again(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await skip_subscription(world, txn_id)
    await world.end(txn_id, ABORT)
    world.storage.holding = True
    ending = acks.end(txn_id, ABORT)
    assert ending is not None
    acks._settle(txn_id)
    assert acks.end(txn_id, ABORT) is ending
    world.storage.release()
    await ending
    acks._settle(txn_id)
    assert not acks.stats()
    assert await log_end(world) == 1  # the acknowledgement and its end


@in_world
async def test_an_end_that_is_lost_when_the_log_is_short_is_asked_for_too(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await acks.checkpoint()
    await asyncio.sleep(12)
    await skip_subscription(world, txn_id)
    await world.end(txn_id, ABORT)
    await asyncio.sleep(6)
    assert not acks.stats()


@in_world
async def test_an_end_that_is_lost_late_is_asked_for_too(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    await asyncio.sleep(12)
    assert acks.is_pending(*at[3])
    await skip_subscription(world, txn_id)
    await world.end(txn_id, ABORT)
    await asyncio.sleep(6)
    assert not acks.stats()


@in_world
async def test_a_coordinator_that_recovers_keeps_no_other_s_transaction_open(world: World) -> None:
    class Recovering:
        def status(self, txn_id: TxnId) -> TxnStatus | None:
            if txn_id == recovering:
                raise TransactionCoordinatorNotFound("it is recovering")
            return TxnStatus.ABORTED

        def has_partition(self, txn_id: TxnId, topic: str) -> bool:
            return True

        def why_aborted(self, txn_id: TxnId) -> str:
            return ""

        def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
            return True

    acks, _, at = await ten_messages(world)
    recovering, lost = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(recovering, whole(at[1]))
    await acks.acknowledge(lost, whole(at[2]))
    acks._outcomes = Recovering()
    await asyncio.sleep(6)
    assert acks.is_pending(*at[1]) and not acks.is_pending(*at[2])


# -- refused


@in_world
async def test_an_acknowledgement_is_refused_while_the_end_runs(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[1]))
    world.storage.holding = True
    ending = acks.end(txn_id, ABORT)
    assert ending is not None
    with pytest.raises(InvalidTxnStatus, match="being ended"):
        acks.acknowledge(txn_id, whole(at[2]))
    with pytest.raises(InvalidTxnStatus, match="being ended"):
        acks.acknowledge_cumulative(txn_id, PendingAck(at[2]))
    world.storage.release()
    await ending
    assert not acks.stats()


@in_world
async def test_a_message_that_never_was_cannot_be_acknowledged(world: World) -> None:
    acks, _, at = await ten_messages(world)
    await (await world.ledger(ORDERS)).roll_over()
    await world.send(None, "in the next ledger")
    txn_id = await world.begin_acking()
    with pytest.raises(TransactionConflict, match="no message there"):
        acks.acknowledge(txn_id, whole(at[9].after))
    await acks.acknowledge(txn_id, whole(at[9]))


# -- failed


@in_world
async def test_what_is_not_written_is_held_no_more(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    told: list[Mapping[Position, Held]] = []
    acks.on_restored = lambda _, some: told.append(some)
    world.storage.full = True
    for failing in (
        acks.acknowledge_cumulative(txn_id, PendingAck(at[4])),
        acks.acknowledge(txn_id, [*whole(at[6]), indexes(at[7], 2)]),
    ):
        with pytest.raises(Exception, match="was not written"):
            await failing
    assert told == [{at[6]: HELD_WHOLE, at[7]: Held(0b100, 8)}]
    assert acks.cumulative_position is None


@in_world
async def test_an_end_that_was_not_written_can_be_repeated(world: World) -> None:
    acks, cursor, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[0]))
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await ended(acks.end(txn_id, COMMIT))
    world.storage.full = False
    assert acks.is_pending(*at[0])
    assert list(acks._state.records()) == [AckRecord(txn_id, False, whole(at[0]))]
    await ended(acks.end(txn_id, COMMIT))
    assert cursor.is_deleted(at[0]) and not acks.stats()


@in_world
async def test_a_write_failure_after_its_consumer_left_harms_no_other(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id, other = await world.begin_acking(), await world.begin_acking()
    await acks.acknowledge(other, whole(at[5]))

    async def leave() -> None:
        world.storage.full = True
        acks.acknowledge(txn_id, whole(at[0]))
        acks.acknowledge(txn_id, whole(at[1])).cancel()
        acks.acknowledge_cumulative(txn_id, PendingAck(at[3]))
        acks.end(other, ABORT)

    assert await told_to_nobody(leave) == []
    assert acks.stats()[0].individual == 1 and len(acks.stats()) == 1


@in_world
async def test_who_left_before_it_was_written_holds_it_all_the_same(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    withheld: list[bool] = []
    acks.acknowledge(txn_id, whole(at[0]), lambda: withheld.append(True)).cancel()
    await soon()
    assert withheld == [True] and acks.is_pending(*at[0])


# -- a short log


@in_world_with(transaction_pending_ack_log_entries=20)
async def test_the_log_of_one_that_goes_on_acknowledging_stays_short(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    lengths = []
    for position in at:
        for count in range(1, 8):
            await acks.acknowledge_cumulative(txn_id, indexes(position, *range(count)))
            await soon()
            lengths.append(await log_length(world))
    assert max(lengths) == 20


@in_world_with(transaction_pending_ack_log_entries=2)
async def test_the_log_may_be_twice_as_long_as_what_is_held(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    for position in at:
        await acks.acknowledge(txn_id, whole(position))
    for count in range(12):  # ten entries, one transaction: 22 records at the last of these
        await soon()
        assert await log_length(world) == 10 + count
        position = at[8 + count // 7]
        await acks.acknowledge_cumulative(txn_id, indexes(position, *range(count % 7 + 1)))
    await soon()
    assert await log_length(world) == 1


@in_world_with(transaction_pending_ack_log_entries=2)
async def test_one_checkpoint_is_written_at_a_time(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    world.storage.holding = True
    for position in at:
        for count in range(1, 8):
            acks.acknowledge_cumulative(txn_id, indexes(position, *range(count)))
        await soon()
        assert len(acks._tasks) == 1
    world.storage.release()
    await soon()


@in_world_with(transaction_pending_ack_log_entries=20)
async def test_the_log_is_shortened_when_many_end(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_ids = [await world.begin_acking() for _ in at]
    for txn_id, position in zip(txn_ids, at, strict=True):
        await acks.acknowledge(txn_id, whole(position))
    assert await log_length(world) == 10
    for txn_id in txn_ids:
        await ended(acks.end(txn_id, ABORT))
    await soon()
    assert await log_length(world) == 1


@in_world
async def test_a_log_of_what_is_open_is_not_written_again_and_again(world: World) -> None:
    acks, _, at = await ten_messages(world)
    await acks.acknowledge(await world.begin_acking(), whole(at[3]))
    visit = acks._visits.due
    await acks.acknowledge(await world.begin_acking(), whole(at[4]))
    assert acks._visits.due is visit is not None
    await asyncio.sleep(20)
    assert await log_end(world) == 1
    assert acks._visits.due is not None


@pytest.mark.parametrize("in_flight", [False, True])
def test_closing_leaves_a_short_log_and_no_timer(in_flight: bool) -> None:
    @in_world
    async def life(world: World) -> None:
        acks, _, at = await ten_messages(world)
        for position in at:
            txn_id = await world.begin_acking()
            await acks.acknowledge(txn_id, whole(position))
            await world.end(txn_id, ABORT)
        open_one = await world.begin_acking()
        acknowledging = acks.acknowledge(open_one, whole(at[0]))
        if not in_flight:
            await acknowledging
        for _ in range(2):
            await acks.close()
        await acknowledging
        world = await world.crashed()
        assert await log_length(world) == 1
        assert (await world.acks()).is_pending(*at[0])

    life()


@in_world
async def test_what_is_being_done_to_shorten_the_log_ends_with_the_closing(world: World) -> None:
    acks, _, at = await ten_messages(world)
    await acks.acknowledge(await world.begin_acking(), whole(at[0]))
    for_ever, at_once = asyncio.Event().wait(), asyncio.sleep(0)
    with patch.object(acks, "_cursor", Mock(flush=Mock(side_effect=[for_ever, at_once]))):
        acks._start_checkpoint()
        await soon()
        assert len(acks._tasks) == 1
        await acks.close()  # closing makes the checkpoint itself
    assert len(acks._tasks) == 0
    world = await world.crashed()
    assert (await world.acks()).is_pending(*at[0])
    assert await log_length(world) == 1


@in_world
async def test_a_closed_one_asks_nobody_any_more(world: World) -> None:
    acks, _, at = await ten_messages(world)
    await acks.acknowledge(await world.begin_acking(), whole(at[0]))
    await acks.close()
    asked = Mock()
    acks._outcomes = asked
    await asyncio.sleep(20)
    assert asked.mock_calls == []


# -- its log, while other writes are in flight


@pytest.mark.parametrize("told", [0, 1, 3])
def test_an_end_that_comes_while_the_log_is_shortened_stands(told: int) -> None:
    """Otherwise it would hold its messages again after a restart, along with their new holders."""

    @in_world
    async def life(world: World) -> None:
        acks, _, at = await ten_messages(world)
        first, second = await world.begin_acking(), await world.begin_acking()
        await acks.acknowledge(first, whole(*at[:5]))
        with (
            patch.object(snapshot_log, "PARTS_PER_ENTRY", 1),
            patch.object(acks_of_transaction, "_ACKS_PER_RECORD", 1),
        ):
            ending = acks.end(first, ABORT) if not told else None
            checkpoint = asyncio.ensure_future(acks.checkpoint())
            for _ in range(told):
                await asyncio.sleep(0)
            await ended(ending or acks.end(first, ABORT))
            await acks.acknowledge(second, whole(at[0]))
            await checkpoint
        world = await world.crashed()
        acks = await world.acks()
        assert [acks.is_pending(*position) for position in at[:5]] == [1, 0, 0, 0, 0]
        await world.end(second, COMMIT)
        assert (await world.cursor("sub")).is_deleted(at[0])

    life()


@in_world
async def test_closing_on_a_full_disk_and_opening_on_one_loses_nothing(world: World) -> None:
    acks, _, at = await ten_messages(world)
    txn_id = await world.begin_acking()
    await acks.acknowledge(txn_id, whole(at[3]))
    write, log_name = world.storage._finish, pending_ack_log(TopicName.parse(ORDERS), "sub")

    def full_for_the_cursor(group: Group, done: asyncio.Future[None]) -> None:
        keys = [operation.key for operation in group.operations if isinstance(operation, Put)]
        world.storage.full = (
            world.storage.full or cursor_key(log_name, "__pending_ack_state") in keys
        )
        write(group, done)

    with patch.object(world.storage, "_finish", full_for_the_cursor):
        await acks.close()
        assert world.factory.opened(log_name) is None
        del world.pending[ORDERS, "sub"]
        with pytest.raises(StorageFull):
            await world.acks()
    world.storage.full = False
    acks = await world.acks()
    assert acks.is_pending(*at[3])
    await world.end(txn_id, COMMIT)
    assert (await world.cursor("sub")).is_deleted(at[3])


@pytest.mark.parametrize("in_part", [False, True])
def test_what_was_refused_while_the_log_is_shortened_is_not_held_by_it(in_part: bool) -> None:
    """Otherwise it would hold them again after a restart, along with their new holders, and the log
    would be hard to open.
    """

    @in_world
    async def life(world: World) -> None:
        acks, _, at = await ten_messages(world)
        first, second = await world.begin_acking(), await world.begin_acking()
        taken = [indexes(each, 0) if in_part else PendingAck(each) for each in at[:3]]
        await acks.acknowledge(first, taken[:2])
        world.storage.holding = True
        refused = acks.acknowledge(first, taken[2:])
        await soon()
        with (
            patch.object(snapshot_log, "PARTS_PER_ENTRY", 1),
            patch.object(acks_of_transaction, "_ACKS_PER_RECORD", 1),
        ):
            checkpoint = asyncio.ensure_future(acks.checkpoint())
            await asyncio.sleep(0)
            world.storage.full = True
            world.storage.release()
            world.storage.full = False
            with pytest.raises(PersistenceError):
                await refused
            with pytest.raises(StorageFull):
                await checkpoint
        await acks.acknowledge(second, whole(at[2]))
        await world.end(second, COMMIT)
        world = await world.crashed()
        acks = await world.acks()
        assert [acks.is_pending(*at[2]), acks.pending_indexes(at[2])] == [False, 0]
        await world.end(first, ABORT)
        assert (await world.cursor("sub")).is_deleted(at[2])
        assert (await world.acks()).stats() == []

    life()
