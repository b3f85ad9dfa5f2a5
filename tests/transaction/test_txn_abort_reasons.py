"""Why a transaction was aborted: its owner is told, also after a restart, within the retention."""

import asyncio

import pytest
from txn_world import ABORT, COMMIT, ORDERS, World, in_world, in_world_with, soon

from pybroker.base.errors import InvalidTxnStatus, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.ends.abort_reasons import (
    MAX_REASON_CHARS,
    MAX_REASONS,
    AbortReasons,
)

WHY = "an administrator aborted it: too old"


async def of(world: World) -> TransactionCoordinator:
    return await world.coordinators.get(0)


async def hears(world: World, txn_id: TxnId) -> str:
    with pytest.raises(InvalidTxnStatus) as refused:
        await world.end(txn_id, COMMIT)
    return str(refused.value).partition("; ")[2]


async def aborted_because(world: World, reason: str = WHY) -> TxnId:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    assert await (await of(world)).abort(txn_id, reason) == txn_id
    return txn_id


@in_world
async def test_a_commit_after_an_abort_hears_the_reason(world: World) -> None:
    txn_id = await aborted_because(world)
    assert await hears(world, txn_id) == WHY
    with pytest.raises(InvalidTxnStatus, match=WHY):
        await world.add(txn_id, ORDERS)
    with pytest.raises(InvalidTxnStatus, match=f"is ABORTED, not OPEN: .*; {WHY}"):
        await world.send(txn_id, "b")
    assert await world.read() == []
    await world.end(txn_id, ABORT)


@in_world
async def test_the_reason_is_known_after_a_crash_and_after_snapshots(world: World) -> None:
    txn_id = await aborted_because(world)
    world = await world.crashed()
    assert await hears(world, txn_id) == WHY
    for _ in range(2):
        coordinator = await of(world)
        await coordinator._log.snapshot(coordinator._store)
        world = await world.restarted()
        assert await hears(world, txn_id) == WHY


@in_world
async def test_a_snapshot_while_it_is_aborting_keeps_the_reason(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    blocked = asyncio.Event()

    async def wait(participant: str) -> None:
        await blocked.wait()

    world.before_end = wait
    coordinator = await of(world)
    aborting = coordinator.abort(txn_id, WHY)
    await soon()
    await coordinator._log.snapshot(coordinator._store)
    crashed = await world.crashed()
    await soon()
    assert await hears(crashed, txn_id) == WHY
    blocked.set()
    await aborting


@in_world
async def test_what_commits_is_not_aborted_and_what_is_unknown_is_not_found(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus, match="is COMMITTED: it cannot become ABORTING"):
        await (await of(world)).abort(txn_id, WHY)
    with pytest.raises(TransactionNotFound):
        await (await of(world)).abort(TxnId(0, 99), WHY)


@in_world
async def test_the_first_reason_stays(world: World) -> None:
    txn_id = await aborted_because(world)
    await (await of(world)).abort(txn_id, "another")
    assert await hears(world, txn_id) == WHY
    mine = await world.begin()
    await world.end(mine, ABORT)
    await (await of(world)).abort(mine, WHY)
    assert (await of(world)).why_aborted(mine) == ""


@in_world_with(transaction_outcome_retention_ms=60_000)
async def test_reasons_go_with_the_outcomes(world: World) -> None:
    txn_id = await aborted_because(world)
    for _ in range(3):
        await asyncio.sleep(59)
        await world.end(await world.begin(), COMMIT)
    coordinator = await of(world)
    assert coordinator.why_aborted(txn_id) == ""
    await coordinator._log.snapshot(coordinator._store)
    assert list(coordinator._store._reasons.items()) == []


def test_reasons_are_bounded() -> None:
    reasons = AbortReasons()
    for number in range(MAX_REASONS + 2):
        reasons.note(number, "x" * 1000)
    assert [reasons.get(number) for number in (0, 1)] == ["", ""]
    assert (len(list(reasons.items())), len(reasons.get(2))) == (MAX_REASONS, MAX_REASON_CHARS)
