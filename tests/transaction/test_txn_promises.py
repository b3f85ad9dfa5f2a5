"""What a promise to a leader blocks, and for how long."""

import asyncio
from collections.abc import Sequence

import pytest
from groups_world import (
    ABORTED,
    COMMITTED,
    OPEN,
    TIMEOUT_MS,
    begun,
    commit,
    fail,
    promised,
    shown,
    statuses,
)
from txn_world import (
    ABORT,
    COMMIT,
    COPIES,
    World,
    in_world,
    soon,
)

from pybroker.base.errors import (
    InvalidTxnStatus,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnStatus


class TestPromised:
    """Members that have promised, while the leader has not decided."""

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

    def test_waiters_learn_why_the_end_is_refused(self) -> None:
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
        """They commit even if the leader's coordinator never tells them."""

        @in_world
        async def scenario(world: World) -> None:
            async def never(leader: TxnId, members: Sequence[TxnId]) -> None:
                await asyncio.Event().wait()

            txn_ids = await begun(world)
            (await world.coordinators.get(0)).group_ends.follow = never
            committing = asyncio.create_task(commit(world, txn_ids))
            await asyncio.sleep(5)
            assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, COMMITTED, COMMITTED]
            assert await shown(world) == {"1"}  # "2" waits: the leader's message stands before it
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
