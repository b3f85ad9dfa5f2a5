"""Groups of transactions of several coordinators: killed after each write, all commit or none."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from txn_world import (
    ABORT,
    COMMIT,
    COPIES,
    ORDERS,
    StorageToBreak,
    World,
    in_world,
    in_world_with,
    soon,
)
from virtual_loop import run_virtually

from managed_ledger.errors import StorageFull
from pybroker.base.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator.transaction_log import TransactionLog
from pybroker.transaction.txn_status import TxnStatus

OPEN, COMMITTED, ABORTED = TxnStatus.OPEN, TxnStatus.COMMITTED, TxnStatus.ABORTED
TIMEOUT_MS = 60_000
TOPICS = (ORDERS, COPIES, ORDERS)


async def begin(world: World, coordinator_id: int, owner: str | None = None) -> TxnId:
    coordinator = await world.coordinators.get(coordinator_id)
    return await coordinator.new_transaction(TIMEOUT_MS, owner)


async def begun(world: World) -> list[TxnId]:
    """One that leads, and two of other coordinators; each with a message."""
    txn_ids = [await begin(world, number) for number in range(3)]
    for txn_id, topic in zip(txn_ids, TOPICS, strict=True):
        await (await world.coordinators.get(txn_id.most)).add_partitions(txn_id, [topic], None)
        await world.send(txn_id, str(txn_id.most), topic=topic)
    return txn_ids


def commit(world: World, txn_ids: list[TxnId]) -> Coroutine[Any, Any, TxnId]:
    return world.coordinators.groups.commit(txn_ids[0], txn_ids[1:], None)


def statuses(world: World, txn_ids: list[TxnId]) -> list[TxnStatus | None]:
    return [world.coordinators.status(txn_id) for txn_id in txn_ids]


def promised(world: World, txn_ids: list[TxnId]) -> list[TxnId]:
    found = [world.coordinators.begun(txn_id) for txn_id in txn_ids]
    return [each.txn_id for each in found if each is not None and each.promised_to is not None]


async def shown(world: World) -> set[str]:
    return {*await world.read(ORDERS), *await world.read(COPIES)}


def fail(world: World, coordinator_id: int) -> None:
    """Its log has failed; it is opened again in a second."""
    coordinator = world.coordinators.serving(coordinator_id)
    assert coordinator is not None
    coordinator._fail(StorageFull("no space left on device"))


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
def test_a_crash_after_any_write_leaves_all_or_none_and_binds_nobody(snapshots: int) -> None:
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
    with pytest.raises(InvalidTxnStatus, match="with others than these"):
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


async def decided_and_not_told(world: World) -> list[TxnId]:
    """The leader has no participants: nothing but its members keeps it."""

    async def never(leader: TxnId, members: Sequence[TxnId]) -> None:
        await asyncio.Event().wait()

    txn_ids = [await begin(world, number) for number in range(3)]
    (await world.coordinators.get(0)).group_ends.follow = never
    with patch.object(world.coordinators.groups, "settle", lambda _: None):
        asyncio.ensure_future(commit(world, txn_ids)).add_done_callback(lambda _: None)
        await asyncio.sleep(1)
    assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, OPEN, OPEN]
    return txn_ids


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


class TestPromised:
    """Members that have promised, while the leader's decision does not come."""

    async def promise(self, world: World) -> list[TxnId]:
        txn_ids = await begun(world)
        world.coordinators.groups._collecting[txn_ids[0]] = None  # type: ignore[assignment]
        for txn_id in txn_ids[1:]:
            coordinator = await world.coordinators.get(txn_id.most)
            await coordinator.group_ends.promise([txn_id.least], txn_ids[0], None)
        return txn_ids

    def give_up(self, world: World, txn_ids: list[TxnId]) -> None:
        del world.coordinators.groups._collecting[txn_ids[0]]
        for txn_id in txn_ids[1:]:
            world.coordinators.groups.settle(txn_id.most)

    def test_their_timeout_does_not_abort_them(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            await asyncio.sleep(2 * TIMEOUT_MS / 1000)
            assert statuses(world, txn_ids) == [ABORTED, OPEN, OPEN]
            self.give_up(world, txn_ids)
            await asyncio.sleep(1)
            assert statuses(world, txn_ids) == [ABORTED] * 3

        scenario()

    def test_their_ends_wait_for_the_leader(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            aborting = asyncio.create_task(world.end(txn_ids[1], ABORT))
            committing = asyncio.create_task(world.end(txn_ids[2], COMMIT))
            await soon()
            assert not aborting.done() and not committing.done()
            self.give_up(world, txn_ids)
            await asyncio.gather(aborting, committing)
            assert statuses(world, txn_ids) == [OPEN, ABORTED, COMMITTED]

        scenario()

    def test_an_abort_that_waits_is_refused_when_the_leader_commits(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            aborting = asyncio.create_task(world.end(txn_ids[1], ABORT))
            committing = asyncio.create_task(world.end(txn_ids[2], COMMIT))
            await soon()
            del world.coordinators.groups._collecting[txn_ids[0]]
            await commit(world, txn_ids)
            await committing
            with pytest.raises(InvalidTxnStatus, match="cannot become ABORTING"):
                await aborting

        scenario()

    def test_they_ask_again_and_again(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            for _ in range(2):
                txn_ids = await self.promise(world)
                fail(world, 1)
                await asyncio.sleep(10)
                assert promised(world, txn_ids) == txn_ids[1:]
                del world.coordinators.groups._collecting[txn_ids[0]]
                await asyncio.sleep(1.5)
                assert promised(world, txn_ids[:2]) == []

        scenario()

    def test_whoever_waits_hears_what_the_end_is_refused_with(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            ends = (await world.coordinators.get(1)).group_ends

            def refuses() -> asyncio.Future[TxnId]:
                raise TransactionNotFound("gone")

            ended = ends.end_when_free(5, refuses)
            ends._free([5], None)
            with pytest.raises(TransactionNotFound, match="gone"):
                await ended

        scenario()

    def test_nothing_is_added_to_them(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            coordinator = await world.coordinators.get(1)
            with pytest.raises(InvalidTxnStatus, match="about to commit with"):
                coordinator.add_partitions(txn_ids[1], [COPIES], None)
            with pytest.raises(InvalidTxnStatus, match="about to commit with"):
                await coordinator.group_ends.promise([txn_ids[1].least], TxnId(5, 5), None)
            with pytest.raises(InvalidTxnStatus, match="about to commit with"):
                coordinator.commit_together(txn_ids[1], [], None)

        scenario()

    def test_who_waits_for_their_end_hears_when_the_coordinator_is_done_for(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            aborting = asyncio.create_task(world.end(txn_ids[1], ABORT))
            await soon()
            fail(world, 1)
            with pytest.raises(TransactionCoordinatorNotFound):
                await aborting
            await asyncio.sleep(3)
            assert promised(world, txn_ids) == txn_ids[1:]
            self.give_up(world, txn_ids)
            assert not promised(world, txn_ids)

        scenario()

    def test_a_crash_frees_what_the_leader_never_decided(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            after = await world.crashed()
            await asyncio.sleep(3)
            assert statuses(after, txn_ids) == [OPEN] * 3
            assert not promised(after, txn_ids)
            again = await after.crashed()
            assert not promised(again, txn_ids)

        scenario()

    def test_a_leader_that_is_about_to_commit_without_them_frees_them(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids, well = await self.promise(world), asyncio.Event()

            async def before_end(topic: str) -> None:
                await well.wait()

            world.before_end = before_end
            ending = asyncio.create_task(world.end(txn_ids[0], COMMIT))
            await soon()
            self.give_up(world, txn_ids)
            assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, OPEN, OPEN]
            assert not promised(world, txn_ids)
            well.set()
            await ending

        scenario()

    def test_they_commit_by_asking_too(self) -> None:
        """Whether or not the leader's coordinator gets around to telling them."""

        @in_world
        async def scenario(world: World) -> None:
            async def never(leader: TxnId, members: Sequence[TxnId]) -> None:
                await asyncio.Event().wait()

            txn_ids = await begun(world)
            (await world.coordinators.get(0)).group_ends.follow = never
            committing = asyncio.create_task(commit(world, txn_ids))
            await asyncio.sleep(5)
            assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, COMMITTED, COMMITTED]
            assert await shown(world) == {"1"}  # the leader's stands before the other one
            after = await world.crashed()
            await soon()
            assert statuses(after, txn_ids) == [COMMITTED] * 3
            committing.cancel()

        scenario()

    def test_a_leader_that_committed_without_them_frees_them(self) -> None:
        @in_world
        async def scenario(world: World) -> None:
            txn_ids = await self.promise(world)
            await world.end(txn_ids[0], COMMIT)
            self.give_up(world, txn_ids)
            assert statuses(world, txn_ids) == [COMMITTED, OPEN, OPEN]
            assert not promised(world, txn_ids)

        scenario()


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
    assert "0" not in await shown(world)  # who sees a part of the leader finds the others'
    after = await world.crashed()
    await asyncio.sleep(3)
    assert statuses(after, txn_ids) == [COMMITTED] * 3
    well.set()
    await committing
