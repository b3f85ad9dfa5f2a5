"""A decision and the participants' appends that follow from it are one commit of the storage.

If any part of the commit is durable, the decision is. Where one commit is impossible, the
participants wait for the decision.
"""

import asyncio
from collections.abc import Awaitable
from unittest.mock import patch

import pytest
from txn_world import ABORT, COPIES, ORDERS, StorageToBreak, World, books_closed, in_world, soon
from virtual_loop import run_virtually

from managed_ledger.position import Position
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.operations import Append
from pybroker.base.errors import PulsarError, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.pending_acks.records import PendingAck
from pybroker.transaction.txn_status import TxnAction, TxnStatus

COMMIT = TxnAction.COMMIT


async def consumed_and_produced(world: World) -> TxnId:
    """A transaction that acknowledges the first message of orders and has sent one to copies."""
    await world.send(None, "order")
    txn_id = await world.begin_acking()
    await world.add(txn_id, COPIES)
    acks = await world.acks()
    await acks.acknowledge(txn_id, [PendingAck((await world.ledger(ORDERS)).last_confirmed)])
    await world.send(txn_id, "copy", topic=COPIES)
    return txn_id


def groups_written(world: World) -> list[int]:
    """The number of appends in each commit of the storage from now on."""
    groups: list[int] = []
    write = world.storage._write

    def counted(group: Group) -> asyncio.Future[None]:
        groups.append(sum(isinstance(operation, Append) for operation in group.operations))
        return write(group)

    world.storage._commits._write = counted
    return groups


async def answer_of(ending: Awaitable[object]) -> object:
    try:
        return await ending
    except PulsarError as error:
        return type(error)


async def end_in_flight(
    world: World, txn_id: TxnId, action: TxnAction = COMMIT
) -> "asyncio.Future[TxnId]":
    """Ends the transaction; the storage holds the decision in flight."""
    world.storage.holding = True
    ending = (await world.coordinators.get(0)).end(txn_id, action, None)
    await soon()
    assert not ending.done()
    return ending


@in_world
async def test_a_topic_and_an_acknowledgement_end_in_one_commit(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    groups = groups_written(world)
    await world.end(txn_id, COMMIT)
    assert groups == [3]  # the decision, the marker, the acknowledgement's end
    assert await world.read(COPIES) == ["copy"]


@in_world
async def test_one_commit_it_is_also_where_others_commit_together_in_that_turn(
    world: World,
) -> None:
    first, second, third = (
        await consumed_and_produced(world),
        await world.begin(),
        await world.begin(),
    )
    coordinator = await world.coordinators.get(0)
    groups = groups_written(world)
    ending = coordinator.end(first, COMMIT, None)
    together = coordinator.commit_together(second, [third.least], None)
    (queued,) = world.storage._commits._queue
    assert len(queued.operations) == 4  # two decisions, and the appends due to the first
    await asyncio.gather(ending, together)
    assert groups == [4]


@in_world
async def test_that_it_has_ended_is_written_with_what_comes_next(world: World) -> None:
    first, second = await consumed_and_produced(world), await world.begin_on(ORDERS)
    await world.end(first, COMMIT)
    groups = groups_written(world)
    await world.end(second, ABORT)
    assert groups == [1]
    await books_closed()
    assert groups == [1, 1]
    world = await world.crashed()
    coordinator = await world.coordinators.get(0)
    assert (coordinator.live(), coordinator.status(first)) == ([], TxnStatus.COMMITTED)


@in_world
async def test_nothing_is_in_force_before_it_is_durable(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    ending = await end_in_flight(world, txn_id)
    cursor = await world.cursor("sub")
    assert (await world.read(COPIES), cursor.mark_delete_position.entry_id) == ([], -1)
    world.storage.release()
    await ending
    assert (await world.read(COPIES), cursor.mark_delete_position.entry_id) == (["copy"], 0)


@in_world
async def test_a_refused_decision_takes_everything_behind_it_along(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    ending = await end_in_flight(world, txn_id)
    world.storage.full = True
    world.storage.release()
    assert await answer_of(ending) is TransactionCoordinatorNotFound
    world.storage.full = False
    await asyncio.sleep(2)
    assert (await world.coordinators.get(0)).status(txn_id) is TxnStatus.OPEN
    await world.end(txn_id, ABORT)
    assert await world.read(COPIES) == []
    assert (await world.acks()).stats() == []
    assert not (await world.cursor("sub")).is_deleted((await world.ledger(ORDERS)).last_confirmed)


@in_world
async def test_who_would_wait_for_a_new_ledger_waits_for_the_decision(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    ledger = await world.ledger(COPIES)
    rolling = asyncio.ensure_future(ledger.roll_over())
    await asyncio.sleep(0)
    assert ledger.holds_appends
    world.storage.holding = True
    ending = (await world.coordinators.get(0)).end(txn_id, COMMIT, None)
    await soon()
    assert not rolling.done()
    world.storage.full = True  # neither the new ledger nor the decision is written
    world.storage.release()
    world.storage.full = False
    await asyncio.gather(rolling, return_exceptions=True)
    assert await answer_of(ending) is TransactionCoordinatorNotFound
    assert not ledger.holds_appends
    await soon()  # appends that were held would continue now
    world = await world.crashed()
    assert await world.read(COPIES) == []
    await world.end(txn_id, ABORT)
    assert await world.read(COPIES) == []


@in_world
async def test_an_end_that_a_rollover_overtakes_is_not_written_before_the_decision(
    world: World,
) -> None:
    """The rollover begins after the pending-ack log was asked whether it holds its appends, and
    before the append.
    """
    txn_id = await consumed_and_produced(world)
    acks = await world.acks()
    appender = acks._store._log._ledger._appender
    start_end = acks._start_end

    def then_holding(*args: object) -> "asyncio.Future[None]":
        ending = start_end(*args)  # type: ignore[arg-type]
        appender.hold()
        return ending

    acks._start_end = then_holding  # type: ignore[method-assign]
    ending = await end_in_flight(world, txn_id)
    acks._start_end = start_end  # type: ignore[method-assign]
    world.storage.full = True
    world.storage.release()
    world.storage.full = False
    assert await answer_of(ending) is TransactionCoordinatorNotFound
    appender.release()
    await soon()
    world = await world.crashed()
    assert len((await world.acks()).stats()) == 1


@in_world
async def test_a_decision_that_is_held_delays_no_other(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    coordinator = await world.coordinators.get(0)
    ledger = coordinator._log._log._ledger
    world.storage.holding = True
    rolling = asyncio.ensure_future(ledger.roll_over())
    await asyncio.sleep(0)
    groups = groups_written(world)
    ending = coordinator.end(txn_id, COMMIT, None)
    await soon()
    assert (sum(groups), ending.done()) == (0, False)  # no marker precedes the decision
    world.storage.release()
    await asyncio.gather(ending, rolling)
    assert await world.read(COPIES) == ["copy"]


class Unordered(StorageToBreak):
    """Guarantees no order among ledgers, like storage over several machines."""

    def _new(self) -> "Unordered":
        return Unordered()

    def append(self, *args: object) -> bool:  # type: ignore[override]
        super().append(*args)  # type: ignore[arg-type]
        return False


def test_storage_without_an_order_is_told_the_decision_first() -> None:
    async def scenario() -> None:
        world = await World(Unordered()).start()
        txn_id = await consumed_and_produced(world)
        groups = groups_written(world)
        await world.end(txn_id, COMMIT)
        assert (groups[0], sum(groups)) == (1, 3)
        assert await world.read(COPIES) == ["copy"]

    run_virtually(scenario())


@in_world
async def test_a_transaction_without_participants_waits_for_its_decision(world: World) -> None:
    txn_id = await world.begin()
    ending = await end_in_flight(world, txn_id)
    world.storage.release()
    assert await ending == txn_id


@in_world
async def test_a_refusal_is_sent_when_the_decision_is_durable(world: World) -> None:
    txn_id = await consumed_and_produced(world)
    coordinator = await world.coordinators.get(0)
    ending = await end_in_flight(world, txn_id)
    refused = coordinator.end(txn_id, ABORT, None)
    await soon()
    assert not refused.done()
    world.storage.release()
    with pytest.raises(PulsarError):
        await refused
    await ending


@pytest.mark.parametrize("kept", range(4))
def test_a_crash_keeps_the_decision_or_nothing(kept: int) -> None:
    """Only the first operations of the commit are durable, as after a torn write of the journal."""

    async def scenario(world: World) -> None:
        txn_id = await consumed_and_produced(world)
        ending = await end_in_flight(world, txn_id)
        (held,) = world.storage._held
        world.storage._durable += held[0].operations[:kept]
        world = await world.crashed()
        await soon()
        expected = TxnStatus.COMMITTED if kept else TxnStatus.OPEN
        assert (await world.coordinators.get(0)).status(txn_id) is expected
        assert await world.read(COPIES) == (["copy"] if kept else [])
        acknowledged = (await world.cursor("sub")).mark_delete_position
        await world.acks()
        assert acknowledged == Position(acknowledged.ledger_id, 0 if kept else -1)
        ending.cancel()

    in_world(scenario)()


@in_world
async def test_what_was_gathered_behind_a_failure_is_never_written(world: World) -> None:
    """It was decided on top of the failed record: alone in the log it would be wrong."""
    first, second = await consumed_and_produced(world), await world.begin()
    ending = await end_in_flight(world, first)
    coordinator = await world.coordinators.get(0)
    world.storage.full = True
    world.storage.release()  # its failure is reported in the next turn
    world.storage.full = False
    coordinator.add_partitions(second, [COPIES], None)  # which is gathered by then
    assert await answer_of(ending) is TransactionCoordinatorNotFound
    await asyncio.sleep(2)
    found = (await world.coordinators.get(0)).metadata(second)
    assert found is not None and list(found.partitions) == []


@in_world
async def test_participants_are_told_of_a_decision_once_it_is_in_force(world: World) -> None:
    """This holds for any number per turn. Some fill a log entry, which is written at once."""
    coordinator, told = await world.coordinators.get(0), list[TxnStatus]()
    txn_ids = [await world.begin() for _ in range(1200)]

    def note(transaction: TransactionMetadata, *_: object) -> None:
        told.append(transaction.status)

    with patch.object(coordinator._participants, "begin_everywhere", note):
        await asyncio.gather(*(coordinator.end(each, COMMIT, None) for each in txn_ids))
    assert told == [TxnStatus.COMMITTING] * 1200
