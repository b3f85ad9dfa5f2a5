"""A prepared transaction: what no longer ends it, what it refuses, and what it survives."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from groups_world import COMMITTED, begun, commit, fail, statuses
from txn_sessions_world import Connection, claim
from txn_world import (
    ABORT,
    COMMIT,
    ORDERS,
    StorageToBreak,
    World,
    books_closed,
    in_world,
    in_world_with,
    soon,
)
from virtual_loop import run_virtually

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    Undecided,
)
from pybroker.base.names import TxnId
from pybroker.server.transactions.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.txn_status import TxnAction, TxnStatus

PREPARED, OPEN, ABORTED = TxnStatus.PREPARED, TxnStatus.OPEN, TxnStatus.ABORTED
LONG_S = 300.0  # several times the timeout
TIMEOUT_MS = 60_000


async def prepare(world: World, txn_id: TxnId, name: str = "", owner: str | None = None) -> TxnId:
    coordinator = await world.coordinators.get(txn_id.most)
    return await coordinator.preparing.prepare(txn_id, name, owner)


async def prepared(world: World, name: str = "") -> TxnId:
    """A transaction that has sent a message and acknowledged another, and is prepared."""
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await prepare(world, txn_id, name)
    return txn_id


@in_world
async def test_no_timeout_ends_it(world: World) -> None:
    txn_id = await prepared(world)
    await asyncio.sleep(LONG_S)
    assert world.coordinators.status(txn_id) is PREPARED
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_it_survives_a_crash_at_once_and_much_later(world: World) -> None:
    txn_id = await prepared(world, "db")
    for _ in range(3):
        world = await world.crashed()
        await asyncio.sleep(LONG_S)
        assert world.coordinators.status(txn_id) is PREPARED
        assert await world.read() == []
    found = world.coordinators.begun(txn_id)
    assert found is not None and found.prepared is not None and found.prepared.name == "db"
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world_with(transaction_metadata_snapshot_entries=5)
async def test_a_snapshot_keeps_it_prepared(world: World) -> None:
    txn_id = await prepared(world, "db")
    coordinator = await world.coordinators.get(0)
    await coordinator.replace_past()
    world = await world.crashed()
    await asyncio.sleep(LONG_S)
    assert world.coordinators.status(txn_id) is PREPARED
    await world.end(txn_id, ABORT)
    assert await world.read() == []
    await books_closed()
    assert (await world.crashed()).coordinators.status(txn_id) is ABORTED


@pytest.mark.parametrize("action", TxnAction)
def test_a_crash_at_any_write_leaves_it_open_or_prepared_or_ended_as_asked(
    action: TxnAction,
) -> None:
    async def first_life() -> tuple[World, TxnId, int]:
        world = await World().start()
        await world.cursor("keeps the log")
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "a")
        before = len(world.storage._durable)
        await prepare(world, txn_id)
        await world.end(txn_id, action)
        await asyncio.sleep(1)
        return world, txn_id, before

    async def next_life(storage: StorageToBreak, txn_id: TxnId) -> TxnStatus:
        world = await World(storage).start()
        await asyncio.sleep(LONG_S)
        found = world.coordinators.status(txn_id)
        assert found is not None
        assert await world.read() == (["a"] if found is COMMITTED else [])
        if found is PREPARED:
            await world.end(txn_id, action)
            assert await world.read() == (["a"] if action is COMMIT else [])
        return found

    world, txn_id, before = run_virtually(first_life())
    writes, found = list(world.storage._durable), list[TxnStatus]()
    for count in range(before, len(writes) + 1):
        world.storage._durable = writes[:count]
        found.append(run_virtually(next_life(world.storage.durable_copy(), txn_id)))
    ended = COMMITTED if action is COMMIT else ABORTED
    assert found[0] is ABORTED, "it was open, and has timed out"
    assert PREPARED in found and found[-1] is ended
    assert found[found.index(PREPARED) :] == sorted(
        found[found.index(PREPARED) :], key=[PREPARED, ended].index
    )


@in_world
async def test_nothing_can_be_added_to_it(world: World) -> None:
    txn_id = await prepared(world)
    with pytest.raises(InvalidTxnStatus, match="PREPARED, not OPEN: nothing can be added"):
        await world.add(txn_id, ORDERS)
    with pytest.raises(Undecided, match="PREPARED, not OPEN: nothing can be added"):
        await world.add_subscription(txn_id)
    with pytest.raises(InvalidTxnStatus, match="PREPARED, not OPEN"):
        await world.send(txn_id, "late")
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]
    with pytest.raises(InvalidTxnStatus) as refused:
        await world.add_subscription(txn_id)
    assert not isinstance(refused.value, Undecided)


@in_world
async def test_prepare_again_is_answered_as_before_and_only_with_the_same_name(
    world: World,
) -> None:
    txn_id = await prepared(world, "db")
    first = world.coordinators.begun(txn_id)
    assert first is not None
    at = first.prepared
    await asyncio.sleep(5)
    assert await prepare(world, txn_id, "db") == txn_id
    assert first.prepared == at, "it is as old as it was"
    with pytest.raises(InvalidTxnStatus, match="prepared with the name 'db', not 'other'"):
        await prepare(world, txn_id, "other")


@pytest.mark.parametrize(("action", "state"), [(COMMIT, "COMMITTED"), (ABORT, "ABORTED")])
def test_prepare_after_the_end_is_refused(action: TxnAction, state: str) -> None:
    @in_world
    async def scenario(world: World) -> None:
        for txn_id in (await prepared(world), await world.begin_on(ORDERS)):
            await world.end(txn_id, action)
            with pytest.raises(InvalidTxnStatus, match=f"is {state}: only an OPEN one can be"):
                await prepare(world, txn_id)

    scenario()


@in_world
async def test_prepare_is_answered_when_it_is_durable_and_so_is_a_repeated_one(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.storage.holding = True
    asking = [asyncio.ensure_future(prepare(world, txn_id)) for _ in range(2)]
    await asyncio.sleep(1)
    assert not any(each.done() for each in asking)
    world.storage.release()
    assert await asyncio.gather(*asking) == [txn_id, txn_id]


@in_world
async def test_a_prepare_that_could_not_be_written_has_not_happened(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await prepare(world, txn_id)
    world.storage.full = False
    await asyncio.sleep(5)
    assert world.coordinators.status(txn_id) is OPEN
    await asyncio.sleep(TIMEOUT_MS / 1000)
    assert world.coordinators.status(txn_id) is ABORTED


@in_world
async def test_only_its_owner_prepares_it_and_decides(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(TIMEOUT_MS, "alice")
    with pytest.raises(TransactionNotFound, match="belongs to another principal than 'bob'"):
        await prepare(world, txn_id, owner="bob")
    await prepare(world, txn_id, owner="alice")
    for action in TxnAction:
        with pytest.raises(TransactionNotFound, match="belongs to another principal than 'bob'"):
            await coordinator.end(txn_id, action, "bob")
    await coordinator.end(txn_id, COMMIT, "alice")


@pytest.mark.parametrize("by", [DecidedBy.TIMEOUT, DecidedBy.DISCONNECT, DecidedBy.FENCING])
def test_nothing_else_aborts_it(by: DecidedBy) -> None:
    @in_world
    async def scenario(world: World) -> None:
        txn_id = await prepared(world)
        coordinator = await world.coordinators.get(0)
        with pytest.raises(InvalidTxnStatus, match="only its owner or an administrator"):
            await coordinator.abort(txn_id, "so", by)
        await coordinator.abort(txn_id, "an administrator aborted it: stuck")
        with pytest.raises(InvalidTxnStatus, match=r"ABORTED.*stuck"):
            await world.end(txn_id, COMMIT)

    scenario()


@in_world
async def test_a_newer_session_of_its_id_leaves_it_to_its_owner(world: World) -> None:
    sessions, older, newer = TransactionalSessions(world.coordinators), Connection(), Connection()
    first = await sessions.join(older, claim())
    coordinator = await world.coordinators.get(0)
    kept, left = [
        await coordinator.new_transaction(TIMEOUT_MS, None, session=first.ref) for _ in range(2)
    ]
    await prepare(world, kept)
    await sessions.join(newer, claim())
    assert statuses(world, [kept, left]) == [PREPARED, ABORTED]
    await world.end(kept, COMMIT)
    await sessions.close()


@in_world
async def test_a_newer_session_waits_for_a_prepare_that_is_being_written(world: World) -> None:
    sessions, older, newer = TransactionalSessions(world.coordinators), Connection(), Connection()
    first = await sessions.join(older, claim())
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(TIMEOUT_MS, None, session=first.ref)
    await soon()
    log, written = coordinator._log, list[Callable[[Exception | None], None]]()
    coordinator.preparing._core = coordinator.preparing._core._replace(
        log_then=lambda record, done: (coordinator._store.apply(record), written.append(done))[0]
    )
    preparing = asyncio.ensure_future(prepare(world, txn_id))
    joining = asyncio.ensure_future(sessions.join(newer, claim()))
    await asyncio.sleep(1)
    assert not joining.done()
    written.pop()(None)
    await preparing
    await joining
    assert log is coordinator._log and world.coordinators.status(txn_id) is PREPARED
    await sessions.close()


# -- groups


@in_world
async def test_a_prepared_group_commits_by_one_decision(world: World) -> None:
    txn_ids = await begun(world)
    for each in txn_ids:
        await prepare(world, each, "db")
    world = await world.crashed()
    await asyncio.sleep(LONG_S)
    assert statuses(world, txn_ids) == [PREPARED] * 3
    await commit(world, txn_ids)
    assert statuses(world, txn_ids) == [COMMITTED] * 3


@in_world
async def test_a_member_whose_leader_is_aborted_is_prepared_again(world: World) -> None:
    txn_ids = await begun(world)
    for each in txn_ids[1:]:
        await prepare(world, each)
    await world.end(txn_ids[0], ABORT)
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        await commit(world, txn_ids)
    await asyncio.sleep(LONG_S)
    assert statuses(world, txn_ids) == [ABORTED, PREPARED, PREPARED]
    await world.end(txn_ids[1], COMMIT)
    await world.end(txn_ids[2], ABORT)


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("turns", range(0, 24, 4))
def test_a_prepared_group_commits_whole_whatever_fails(failing: int, turns: int) -> None:
    async def life() -> None:
        world = await World().start()
        txn_ids = await begun(world)
        for each in txn_ids:
            await prepare(world, each)
        committing = asyncio.create_task(commit(world, txn_ids))
        for _ in range(turns):
            await asyncio.sleep(0)
        fail(world, failing)
        await asyncio.wait([committing])
        committing.exception()
        await asyncio.sleep(LONG_S)
        assert set(statuses(world, txn_ids)) in ({PREPARED}, {COMMITTED})
        await commit(world, txn_ids)

    run_virtually(life())


@in_world
async def test_a_promised_one_is_prepared_when_its_leader_has_released_it(world: World) -> None:
    txn_ids = await begun(world)
    world.coordinators.groups._collecting[txn_ids[0]] = None  # type: ignore[assignment]
    coordinator = await world.coordinators.get(1)
    await coordinator.group_ends.promise([txn_ids[1].least], txn_ids[0], None)
    preparing = asyncio.create_task(prepare(world, txn_ids[1]))
    await soon()
    assert not preparing.done()
    del world.coordinators.groups._collecting[txn_ids[0]]
    world.coordinators.groups.settle(1)
    assert await preparing == txn_ids[1]
    await asyncio.sleep(LONG_S)
    assert world.coordinators.status(txn_ids[1]) is PREPARED


# -- number and age


@in_world
async def test_an_owner_has_a_limited_number_of_them(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    txn_ids = [await coordinator.new_transaction(TIMEOUT_MS, "alice") for _ in range(3)]
    for each in txn_ids[:2] * 2:  # again is not one more
        await coordinator.preparing.prepare(each, "", "alice", most=2)
    with pytest.raises(NotAllowed, match="maxPreparedTransactionsPerPrincipal"):
        await coordinator.preparing.prepare(txn_ids[2], "", "alice", most=2)
    assert world.coordinators.status(txn_ids[2]) is OPEN
    await coordinator.end(txn_ids[0], COMMIT, "alice")
    await coordinator.preparing.prepare(txn_ids[2], "", "alice", most=2)


@in_world_with(prepared_transaction_max_age_ms=120_000)
async def test_an_old_one_is_said_once_and_stays(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    await prepared(world)
    await asyncio.sleep(119)
    assert coordinator.preparing.too_old == 0
    await asyncio.sleep(2)
    assert coordinator.preparing.too_old == 1
    await asyncio.sleep(LONG_S)
    assert coordinator.preparing.too_old == 1
    assert len(coordinator.prepared) == 1


@in_world_with(prepared_transaction_max_age_ms=120_000)
async def test_one_without_a_timeout_is_warned_of_too(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(None, None)
    await asyncio.sleep(2 * LONG_S)
    assert world.coordinators.status(txn_id) is OPEN
    assert coordinator.preparing.too_old == 1
    world = await world.crashed()
    await asyncio.sleep(2 * LONG_S)
    assert world.coordinators.status(txn_id) is OPEN
    await world.end(txn_id, COMMIT)


@in_world_with(prepared_transaction_max_age_ms=120_000)
async def test_the_warning_names_it(world: World) -> None:
    lines = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pybroker.transaction.coordinator.preparing")
    logger.addHandler(handler)
    try:
        txn_id = await prepared(world, "db")
        await asyncio.sleep(121)
    finally:
        logger.removeHandler(handler)
    (line,) = lines
    assert f"Transaction {txn_id}, named 'db', has been prepared for more than 120 s" in line
    assert "commit or abort" in line


@in_world_with(
    prepared_transaction_max_age_ms=120_000, abort_prepared_transactions_after_max_age=True
)
async def test_an_old_one_is_aborted_where_the_configuration_says_so(world: World) -> None:
    txn_id = await prepared(world)
    await asyncio.sleep(60)
    world = await world.crashed()
    await asyncio.sleep(58)
    assert world.coordinators.status(txn_id) is PREPARED
    await asyncio.sleep(3)
    assert world.coordinators.status(txn_id) is ABORTED


@pytest.mark.parametrize("apart_ms", [-3_600_000, 0, 3_600_000])
def test_the_age_of_one_prepared_on_another_broker_begins_there(apart_ms: int) -> None:
    settings: dict[str, Any] = {
        "prepared_transaction_max_age_ms": 120_000,
        "abort_prepared_transactions_after_max_age": True,
    }

    async def scenario() -> None:
        world = await World(**settings).start()
        coordinator = await world.coordinators.get(0)
        txn_id = await coordinator.new_transaction(None, None)
        other = World(world.storage.durable_copy(), **settings)
        other.clock.wall_offset_ms = world.clock.wall_offset_ms + apart_ms
        other.coordinators.share_with(Mock(), Mock(), Mock())
        other = await other.start()
        await asyncio.sleep(100)
        await (await other.coordinators.get(0)).preparing.prepare(txn_id, "", None)
        await asyncio.sleep(119)
        assert other.coordinators.status(txn_id) is PREPARED
        await asyncio.sleep(2)
        assert other.coordinators.status(txn_id) is ABORTED

    run_virtually(scenario())
