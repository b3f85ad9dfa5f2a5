"""Transactions that commit by one decision, with crashes around it."""

import asyncio
from unittest.mock import patch

import pytest
from txn_world import ABORT, COMMIT, COPIES, ORDERS, World, in_world, in_world_with, soon

from pybroker.base.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction import snapshot_log
from pybroker.transaction.coordinator import live_transaction
from pybroker.transaction.txn_status import TxnStatus

TOGETHER = 120


async def group(world: World, count: int = 3) -> list[TxnId]:
    """Each sends one message; only the leader's goes to COPIES."""
    members = [await world.begin_on(ORDERS) for _ in range(count - 1)]
    leader = await world.begin_on(COPIES)
    for number, txn_id in enumerate(members):
        await world.send(txn_id, str(number), topic=ORDERS)
    await world.send(leader, "marker", topic=COPIES)
    return [leader, *members]


async def commit(world: World, txn_ids: list[TxnId]) -> TxnId:
    leader, *others = txn_ids
    coordinator = await world.coordinators.get(leader.most)
    return await coordinator.commit_together(leader, [other.least for other in others], None)


async def visible(world: World) -> list[list[str]]:
    return [await world.read(ORDERS), await world.read(COPIES)]


@in_world
async def test_all_become_visible(world: World) -> None:
    await commit(world, await group(world, TOGETHER))
    assert await visible(world) == [[str(n) for n in range(TOGETHER - 1)], ["marker"]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_waiters_learn_of_the_leader(count: int) -> None:
    @in_world
    async def scenario(world: World) -> None:
        leader, *others = await group(world, count)
        for _ in range(2):  # a client that got no answer asks again
            assert await commit(world, [leader, *others]) == leader
        assert await visible(world) == [[str(n) for n in range(count - 1)], ["marker"]]

    scenario()


@pytest.mark.parametrize("count", [2, 4])
def test_with_one_that_has_committed_before_none_of_the_others_commits(count: int) -> None:
    @in_world
    async def scenario(world: World) -> None:
        leader, *others = await group(world, count)
        await world.end(others[-1], COMMIT)
        with pytest.raises(InvalidTxnStatus, match="cannot commit together"):
            await commit(world, [leader, *others])
        assert world.coordinators.status(leader) is TxnStatus.OPEN

    scenario()


@in_world
async def test_they_leave_no_deadline(world: World) -> None:
    await commit(world, await group(world))
    assert len((await world.coordinators.get(0))._timeouts) == 0


@in_world
async def test_a_coordinator_that_is_closed_commits_nothing(world: World) -> None:
    txn_ids = await group(world)
    coordinator = await world.coordinators.get(0)
    await coordinator.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        coordinator.commit_together(txn_ids[0], [each.least for each in txn_ids[1:]], None)


@in_world_with(transaction_outcome_retention_ms=60_000)
async def test_the_commit_is_not_found_once_its_outcome_is_too_old(world: World) -> None:
    txn_ids = await group(world)
    for _ in range(2):
        await commit(world, txn_ids)
        await asyncio.sleep(59)
    await commit(world, txn_ids)
    await asyncio.sleep(2)
    with pytest.raises(TransactionNotFound):
        await commit(world, txn_ids)


@in_world
async def test_a_crash_before_the_decision_is_durable_leaves_all_open(world: World) -> None:
    txn_ids = await group(world)
    world.storage.holding = True
    running = asyncio.ensure_future(commit(world, txn_ids))
    await soon()
    crashed = await world.crashed()
    for txn_id in txn_ids:
        await crashed.end(txn_id, ABORT)
    assert await visible(crashed) == [[], []]
    world.storage.release()
    await running


@in_world
async def test_a_crash_behind_the_decision_commits_all(world: World) -> None:
    async def hang(participant: str) -> None:
        await asyncio.get_running_loop().create_future()

    txn_ids = await group(world)
    world.before_end = hang
    running = asyncio.ensure_future(commit(world, txn_ids))
    await soon()
    crashed = await world.crashed()
    running.cancel()
    await commit(crashed, txn_ids)
    assert await visible(crashed) == [["0", "1"], ["marker"]]


@in_world
async def test_the_leader_is_followed_last(world: World) -> None:
    told = []

    async def note(participant: str) -> None:
        told.append(participant)
        await asyncio.sleep(1)

    txn_ids = await group(world)
    world.before_end = note
    await commit(world, txn_ids)
    assert [COPIES in participant for participant in told] == [False, False, True]


@in_world
async def test_a_leader_that_is_named_among_the_others_is_followed_last(world: World) -> None:
    told = []

    async def note(participant: str) -> None:
        told.append(participant)
        await asyncio.sleep(1)

    leader, *others = await group(world)
    world.before_end = note
    await commit(world, [leader, leader, *others, *others])
    assert [COPIES in participant for participant in told] == [False, False, True]


@in_world
async def test_a_refusal_waits_until_the_decision_is_durable(world: World) -> None:
    txn_ids = await group(world)
    world.storage.holding = True
    abort = asyncio.ensure_future(world.end(txn_ids[1], ABORT))
    await soon()
    together = asyncio.ensure_future(commit(world, txn_ids))
    await soon()
    assert not together.done()
    world.storage.release()
    with pytest.raises(InvalidTxnStatus):
        await together
    await abort
    await world.end(txn_ids[0], COMMIT)


@in_world
async def test_waiters_learn_that_the_coordinator_failed(world: World) -> None:
    txn_ids = await group(world)
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await commit(world, txn_ids)


@in_world
async def test_a_commit_that_was_not_written_is_in_no_snapshot_that_goes_on(world: World) -> None:
    """The snapshot has one of the two as open, written before the commit, and would have the other
    as committing.
    """
    coordinator = await world.coordinators.get(0)
    first, second = await world.begin(), await world.begin()
    with (
        patch.object(snapshot_log, "PARTS_PER_ENTRY", 1),
        patch.object(live_transaction, "_PARTICIPANTS_PER_RECORD", 1),
    ):
        await world.add(second, *[f"{ORDERS}-{number}" for number in range(50)])
        with patch.object(coordinator._store, "snapshot_pays_after", return_value=True):
            coordinator._snapshot_if_due()
        for _ in range(5):
            await asyncio.sleep(0)
        world.storage.full = True
        ending = coordinator.commit_together(first, [second.least], None)
        await asyncio.wait([ending])
        assert isinstance(ending.exception(), TransactionCoordinatorNotFound)
        world.storage.full = False
        await soon()
    again = await (await world.crashed()).coordinators.get(0)
    assert [again.status(each) for each in (first, second)] == [TxnStatus.OPEN, TxnStatus.OPEN]
