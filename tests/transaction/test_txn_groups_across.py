"""Groups of transactions of several coordinators: killed after any write, all commit or none do."""

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast
from unittest.mock import patch

import pytest
from groups_world import (
    ABORTED,
    COMMITTED,
    OPEN,
    TIMEOUT_MS,
    begin,
    begun,
    commit,
    decided_and_not_told,
    fail,
    promised,
    shown,
    statuses,
)
from txn_world import (
    ABORT,
    COMMIT,
    COPIES,
    StorageToBreak,
    World,
    in_world,
    in_world_with,
    soon,
)
from virtual_loop import run_virtually

from managed_ledger.errors import StorageUnavailable
from managed_ledger.prompt import Prompt, prompt, when_done
from pybroker.base.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    Undecided,
)
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.group_commits.groups import RemoteGroups
from pybroker.transaction.coordinator.group_commits.settling import Settling, Verdicts
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.transaction.txn_status import TxnStatus


@in_world
async def test_all_of_them_commit(world: World) -> None:
    txn_ids = await begun(world)
    assert await commit(world, txn_ids) == txn_ids[0]
    assert statuses(world, txn_ids) == [COMMITTED] * 3
    assert await shown(world) == {"0", "1", "2"}


@in_world
async def test_the_same_again_succeeds_again(world: World) -> None:
    txn_ids = await begun(world)
    first, second = await asyncio.gather(commit(world, txn_ids), commit(world, txn_ids))
    assert first == second == await commit(world, txn_ids)
    after = await world.crashed()
    assert await commit(after, txn_ids) == txn_ids[0]


@in_world
async def test_others_of_the_leaders_coordinator_commit_too(world: World) -> None:
    txn_ids = [*await begun(world), await begin(world, 0), await begin(world, 1)]
    await commit(world, txn_ids)
    assert statuses(world, txn_ids) == [COMMITTED] * 5


@pytest.mark.parametrize("snapshots", [1, 100_000])
def test_a_crash_after_any_write_leaves_all_or_none_and_no_promise(snapshots: int) -> None:
    settings = {"transaction_metadata_snapshot_entries": snapshots}

    async def first_life() -> tuple[World, list[TxnId], int]:
        world = await World(**settings).start()
        txn_ids = await begun(world)
        before = len(world.storage._durable)
        await commit(world, txn_ids)
        await asyncio.sleep(1)
        return world, txn_ids, before

    async def next_life(storage: StorageToBreak, txn_ids: list[TxnId], again: bool) -> TxnStatus:
        world = await World(storage, **settings).start()
        await asyncio.sleep(3)
        (found,) = set(statuses(world, txn_ids))
        assert found in (OPEN, COMMITTED)
        assert not promised(world, txn_ids)
        assert await shown(world) == ({"0", "1", "2"} if found is COMMITTED else set())
        if again:
            await commit(world, txn_ids)
        else:
            await asyncio.sleep(TIMEOUT_MS / 1000)
        at_last = COMMITTED if again or found is COMMITTED else ABORTED
        assert set(statuses(world, txn_ids)) == {at_last}
        return found

    world, txn_ids, before = run_virtually(first_life())
    writes = list(world.storage._durable)
    found = []
    for count in range(before, len(writes) + 1):
        for again in (False, True):
            world.storage._durable = writes[:count]
            storage = world.storage.durable_copy()
            found.append(run_virtually(next_life(storage, txn_ids, again)))
    assert found == sorted(found), "once it is decided it stays so"
    assert set(found) == {OPEN, COMMITTED}


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_a_coordinator_that_fails_at_any_time_leaves_all_or_none(failing: int, turns: int) -> None:
    async def life() -> None:
        world = await World().start()
        txn_ids = await begun(world)
        committing = asyncio.create_task(commit(world, txn_ids))
        for _ in range(turns):
            await asyncio.sleep(0)
        fail(world, failing)
        try:
            await committing
            committed = True
        except TransactionCoordinatorNotFound:
            committed = False
        await asyncio.sleep(5)
        found = statuses(world, txn_ids)
        assert set(found) in ({OPEN}, {COMMITTED}), found
        assert not committed or set(found) == {COMMITTED}
        assert not promised(world, txn_ids)
        await commit(world, txn_ids)
        assert await shown(world) == {"0", "1", "2"}

    run_virtually(life())


@in_world
async def test_one_that_was_aborted_keeps_all_from_it_and_nobody_stays_bound(world: World) -> None:
    txn_ids = await begun(world)
    await world.end(txn_ids[2], ABORT)
    with pytest.raises(InvalidTxnStatus, match="ABORTED"):
        await commit(world, txn_ids)
    assert statuses(world, txn_ids) == [OPEN, OPEN, ABORTED]
    assert not promised(world, txn_ids)
    await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
    assert statuses(world, txn_ids) == [ABORTED] * 3


@in_world
async def test_one_that_has_committed_by_itself_keeps_the_rest_from_it(world: World) -> None:
    txn_ids = await begun(world)
    await world.end(txn_ids[1], COMMIT)
    with pytest.raises(InvalidTxnStatus, match="cannot commit together any more"):
        await commit(world, txn_ids)
    await world.end(txn_ids[0], COMMIT)
    with pytest.raises(InvalidTxnStatus, match="cannot commit together any more"):
        await commit(world, txn_ids)
    assert statuses(world, txn_ids) == [COMMITTED, COMMITTED, OPEN]
    await world.end(txn_ids[2], COMMIT)
    await commit(world, txn_ids)


@in_world
async def test_an_unknown_one_is_not_found(world: World) -> None:
    txn_ids = [await begin(world, 0), TxnId(1, 404)]
    with pytest.raises(TransactionNotFound):
        await commit(world, txn_ids)
    with pytest.raises(TransactionCoordinatorNotFound):
        await commit(world, [txn_ids[0], TxnId(10_000, 0)])
    assert statuses(world, txn_ids[:1]) == [OPEN]


@in_world
async def test_another_principals_are_not_committed(world: World) -> None:
    mine, theirs = await begin(world, 0, "me"), await begin(world, 1, "them")
    for leader, other in ((mine, theirs), (theirs, mine)):
        with pytest.raises(TransactionNotFound, match="another principal"):
            await world.coordinators.groups.commit(leader, [other], "me")
    assert statuses(world, [mine, theirs]) == [OPEN, OPEN]


@in_world
async def test_one_leader_is_not_committed_with_two_groups_at_once(world: World) -> None:
    txn_ids = await begun(world)
    committing = asyncio.create_task(commit(world, txn_ids))
    await asyncio.sleep(0)
    with pytest.raises(InvalidTxnStatus, match="already committing with others"):
        await commit(world, txn_ids[:2])
    await committing


@in_world
async def test_a_leader_that_commits_alone_meanwhile_has_not_committed_the_group(
    world: World,
) -> None:
    txn_ids = await begun(world)
    world.storage.holding = True
    committing = asyncio.create_task(commit(world, txn_ids))
    await soon()
    assert promised(world, txn_ids) == txn_ids[1:]
    alone = asyncio.create_task(world.end(txn_ids[0], COMMIT))
    member = await world.coordinators.get(txn_ids[1].most)
    with pytest.raises(Undecided):  # a client must not take it for ended
        await member.add_subscriptions(txn_ids[1], [("orders", "sub")], None)
    await soon()
    world.storage.release()
    await alone
    with pytest.raises(InvalidTxnStatus, match="cannot commit together any more"):
        await committing
    assert statuses(world, txn_ids) == [COMMITTED, OPEN, OPEN]
    assert not promised(world, txn_ids)


@in_world
async def test_nothing_is_told_of_a_decision_that_is_not_durable(world: World) -> None:
    txn_ids, groups = await begun(world), world.coordinators.groups
    world.storage.holding = True
    committing = asyncio.create_task(commit(world, txn_ids))
    await soon()
    world.storage.release()  # the promises
    world.storage.holding = True
    await soon()
    assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, OPEN, OPEN]
    assert {groups.verdict(txn_ids[0], each) for each in txn_ids[1:]} == {None}
    groups.settle(1)
    assert promised(world, txn_ids) == txn_ids[1:]
    assert not committing.done()
    world.storage.release()
    await committing


@in_world
async def test_nothing_is_decided_before_the_promises_are_durable(world: World) -> None:
    txn_ids = await begun(world)
    world.storage.holding = True
    committing = asyncio.create_task(commit(world, txn_ids))
    await soon()
    assert promised(world, txn_ids) == txn_ids[1:]
    assert statuses(world, txn_ids) == [OPEN] * 3
    world.storage.release()
    await committing


@in_world
async def test_a_full_disk_fails_the_commit_and_leaves_all_open(world: World) -> None:
    txn_ids = await begun(world)
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await commit(world, txn_ids)
    world.storage.full = False
    await asyncio.sleep(5)
    assert statuses(world, txn_ids) == [OPEN] * 3
    await commit(world, txn_ids)


@in_world
async def test_a_coordinator_that_is_done_for_promises_and_commits_nothing(world: World) -> None:
    txn_ids = await begun(world)
    ends = (await world.coordinators.get(1)).group_ends
    fail(world, 1)
    with pytest.raises(TransactionCoordinatorNotFound):
        await ends.promise([txn_ids[1].least], txn_ids[0], None)
    with pytest.raises(TransactionCoordinatorNotFound):
        ends.commit([txn_ids[1].least], (), None)
    with pytest.raises(TransactionCoordinatorNotFound):
        ends.commit_members([txn_ids[1].least])


@in_world
async def test_a_leader_waits_for_members_whose_coordinator_is_slow_to_come_back(
    world: World,
) -> None:
    txn_ids = await decided_and_not_told(world)
    opened = TransactionLog.open

    async def slowly(coordinator_id: int, *others: Any) -> TransactionLog:
        await asyncio.sleep(20 * coordinator_id)
        return await opened(coordinator_id, *others)

    with patch.object(TransactionLog, "open", slowly):
        after = World(world.storage.durable_copy())
        starting = asyncio.create_task(after.start())
        await asyncio.sleep(10)
        assert after.coordinators.status(txn_ids[0]) is TxnStatus.COMMITTING
        await starting
    await asyncio.sleep(3)
    assert statuses(after, txn_ids) == [COMMITTED] * 3


@in_world
async def test_members_wait_for_a_leader_whose_coordinator_is_slow_to_come_back(
    world: World,
) -> None:
    txn_ids = await decided_and_not_told(world)
    opened = TransactionLog.open

    async def slowly(coordinator_id: int, *others: Any) -> TransactionLog:
        await asyncio.sleep(0 if coordinator_id else 200)
        return await opened(coordinator_id, *others)

    with patch.object(TransactionLog, "open", slowly):
        after = World(world.storage.durable_copy())
        starting = asyncio.create_task(after.start())
        await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        assert promised(after, txn_ids[1:]) == txn_ids[1:]
        await starting
    await asyncio.sleep(3)
    assert statuses(after, txn_ids) == [COMMITTED] * 3


@in_world_with(transaction_metadata_snapshot_entries=1)
async def test_the_leader_is_kept_until_its_members_have_followed(world: World) -> None:
    txn_ids, well = await begun(world), asyncio.Event()

    async def before_end(topic: str) -> None:
        if topic == COPIES:
            await well.wait()

    world.before_end = before_end
    committing = asyncio.create_task(commit(world, txn_ids))
    await asyncio.sleep(30)
    assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, TxnStatus.COMMITTING, COMMITTED]
    verdicts = {world.coordinators.groups.verdict(txn_ids[0], each) for each in txn_ids[1:]}
    assert verdicts == {True}
    assert "0" not in await shown(world)  # the members' must be visible first
    after = await world.crashed()
    await asyncio.sleep(3)
    assert statuses(after, txn_ids) == [COMMITTED] * 3
    well.set()
    await committing


@in_world
async def test_an_end_that_waits_for_a_leader_is_cancelled_with_what_it_waits_for(
    world: World,
) -> None:
    ends = (await world.coordinators.get(0)).group_ends
    ending: Prompt[TxnId] = prompt()
    waiting = ends.end_when_free(7, lambda: ending)
    ends._free([7], None)
    assert not waiting.done()
    ending.cancel()
    assert waiting.cancelled()


@in_world
async def test_an_end_that_waited_for_a_leader_is_answered_in_the_turn_in_which_it_is_over(
    world: World,
) -> None:
    ends = (await world.coordinators.get(0)).group_ends
    ending: Prompt[TxnId] = prompt()
    told: list[TxnId] = []
    when_done(ends.end_when_free(7, lambda: ending), lambda ended: told.append(ended.result()))
    ends._free([7], None)
    ending.set_result(TxnId(0, 7))
    assert told == [TxnId(0, 7)]


@in_world
async def test_a_stop_in_the_middle_of_a_commit_leaves_no_task_behind(world: World) -> None:
    txn_ids = await begun(world)
    world.storage.holding = True
    committing = asyncio.ensure_future(commit(world, txn_ids))
    await soon()
    assert promised(world, txn_ids) == txn_ids[1:]
    fail(world, 0)  # the leader's coordinator, which would answer that it did not decide
    closing = asyncio.ensure_future(world.coordinators.close())
    await soon()
    world.storage.release()
    await closing
    with pytest.raises(asyncio.CancelledError):
        await committing
    await soon()
    assert len(world.coordinators._tasks) == 0


@in_world
async def test_a_refused_group_leaves_no_garbage_in_cycles(world: World) -> None:
    async def refused() -> None:
        txn_ids = await begun(world)
        await world.end(txn_ids[1], ABORT)
        with suppress(InvalidTxnStatus):
            await commit(world, txn_ids)

    async def left() -> int:
        gc.collect()
        await refused()
        return gc.collect()

    await refused()
    gc.disable()
    try:
        # Threads that earlier tests left in this process may leave something, but not each time.
        assert 0 in [await left() for _ in range(5)]
    finally:
        gc.enable()


class Leaders:
    """Leaders whose coordinators other brokers serve. Implements the part of RemoteGroups in
    use.
    """

    def serves(self, coordinator_id: int) -> bool:
        return coordinator_id == 2

    async def verdicts(self, leader: TxnId, members: Sequence[TxnId]) -> Verdicts:
        if leader.most == 0:
            await asyncio.Event().wait()  # its broker hangs
        return [False] * len(members)


@in_world
async def test_a_leaders_broker_that_hangs_does_not_hold_members_of_other_leaders(
    world: World,
) -> None:
    groups = world.coordinators.groups
    groups.share_with(cast(RemoteGroups, Leaders()))
    waits, is_free = await begin(world, 2), await begin(world, 2)
    await groups.promise_to(TxnId(0, 0), [waits], None)
    await asyncio.sleep(5)
    await groups.promise_to(TxnId(1, 0), [is_free], None)
    await asyncio.sleep(5)
    assert promised(world, [waits, is_free]) == [waits]


@in_world
async def test_a_promise_in_the_turn_in_which_the_last_one_settled_is_asked_about(
    world: World,
) -> None:
    groups = world.coordinators.groups
    groups.share_with(cast(RemoteGroups, Leaders()))
    first, second = await begin(world, 2), await begin(world, 2)
    members = (await world.coordinators.get(2)).group_ends
    settled = Settling._settled

    async def then_another(settling: Settling, coordinator_id: int) -> None:
        await settled(settling, coordinator_id)
        if not members.pledges and world.coordinators.begun(second).promised_to is None:  # type: ignore[union-attr]
            asyncio.get_running_loop().call_soon(members._pledge, second.least, TxnId(1, 1))
            asyncio.get_running_loop().call_soon(groups.settle, 2)

    with patch.object(Settling, "_settled", then_another):
        await groups.promise_to(TxnId(1, 0), [first], None)
        await asyncio.sleep(0.2)
    await asyncio.sleep(5)
    assert not members.pledges


@in_world
async def test_a_group_commits_although_a_members_log_cannot_be_opened_at_first(
    world: World,
) -> None:
    """As when its coordinator moves to this broker while too few bookies are registered."""
    txn_ids = await begun(world)
    coordinators = world.coordinators
    follow, open_log = coordinators.groups.follow, coordinators.open_log
    failures = [StorageUnavailable("too few bookies")]

    async def opened(coordinator_id: int, *arguments: Any) -> TransactionLog:
        if coordinator_id == 1 and failures:
            raise failures.pop()
        return await open_log(coordinator_id, *arguments)

    async def lost(leader: TxnId, members: Sequence[TxnId]) -> None:
        await coordinators.release(1)
        failures.extend([StorageUnavailable("too few bookies")] * 3)
        await follow(leader, members)

    coordinators.open_log = opened
    await coordinators.release(1)
    with pytest.raises(TransactionCoordinatorNotFound, match=r"1 cannot be opened.*few bookies"):
        await coordinators.get(1)
    (await coordinators.get(0)).group_ends.follow = lost
    committing = asyncio.ensure_future(commit(world, txn_ids))
    await asyncio.sleep(10)
    assert committing.done() and await committing == txn_ids[0]
    assert await shown(world) == {"0", "1", "2"}
