"""A coordinator at work and after its failure: its counts, its refusals, the timers it leaves."""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from txn_world import (
    ABORT,
    COMMIT,
    ORDERS,
    World,
    in_world,
    in_world_with,
    soon,
)
from virtual_loop import run_virtually

from managed_ledger.errors import StorageFull
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import TransactionCoordinatorNotFound, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions.begun_transactions import BegunTransactions
from pybroker.server.transactions.transaction_share import AskedFor, begin_within_share
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.txn_status import TxnStatus


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def timers_of(coordinator: TransactionCoordinator) -> int:
    """Timers that will still fire."""
    loop: Any = asyncio.get_running_loop()
    callbacks = [handle._callback for handle in loop._scheduled if not handle.cancelled()]
    return sum(
        getattr(callback, "__self__", None) is coordinator._timeouts for callback in callbacks
    )


async def hang(participant: str) -> None:
    await asyncio.get_running_loop().create_future()


# -- counts


@in_world
async def test_what_happened_is_counted(world: World) -> None:
    coordinator = await world.coordinators.get(0)

    def counted() -> tuple[int, ...]:
        stats = coordinator.stats()
        return (stats.active, stats.opened, stats.committed, stats.aborted, stats.timed_out)

    assert counted() == (0, 0, 0, 0, 0)
    for action in (COMMIT, COMMIT, ABORT):
        await world.end(await world.begin(), action)
    assert counted() == (0, 3, 2, 1, 0)
    for _ in range(2):
        await world.begin(timeout_ms=1000)
    await world.begin()
    await asyncio.sleep(2)
    assert counted() == (1, 6, 2, 3, 2)
    assert (coordinator.stats().coordinator_id, coordinator.stats().retries) == (0, [])


# -- too many


async def begin_on_a_connection(world: World) -> TxnId:
    config = BrokerConfig()
    services = SimpleNamespace(config=config, coordinators=world.coordinators)
    session = SimpleNamespace(
        login=None,
        owner=None,
        begun=BegunTransactions(world.coordinators),
        services=services,
        sessions={},
        peer="127.0.0.1:1",
        client_version="test",
    )
    coordinator = await world.coordinators.get(0)
    return await begin_within_share(cast("Connection", session), coordinator, AskedFor(1000))


@in_world_with(max_active_transactions_per_coordinator=1)
async def test_one_too_many_begins_if_another_ends_within_a_moment(world: World) -> None:
    first = await world.begin()
    second = asyncio.ensure_future(begin_on_a_connection(world))
    await soon()
    await world.end(first, COMMIT)
    assert await second == TxnId(0, 1)


@in_world_with(max_active_transactions_per_coordinator=1)
async def test_one_too_many_is_refused_when_the_coordinator_is_closed_meanwhile(
    world: World,
) -> None:
    await world.begin()
    second = asyncio.ensure_future(begin_on_a_connection(world))
    await soon()
    await world.coordinators.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await second


# -- failed or closed

COMMANDS: dict[str, Callable[[TransactionCoordinator, TxnId], object]] = {
    "new": lambda coordinator, txn_id: coordinator.new_transaction(1000, None),
    "partitions": lambda coordinator, txn_id: coordinator.add_partitions(txn_id, [ORDERS], None),
    "subscriptions": lambda coordinator, txn_id: coordinator.add_subscriptions(
        txn_id, [(ORDERS, "sub")], None
    ),
    "end": lambda coordinator, txn_id: coordinator.end(txn_id, COMMIT, None),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_coordinator_that_is_done_for_takes_nothing(command: str) -> None:
    @in_world
    async def life(world: World) -> None:
        txn_id = await world.begin()
        coordinator = await world.coordinators.get(0)
        await coordinator.close()
        with pytest.raises(TransactionCoordinatorNotFound):
            COMMANDS[command](coordinator, txn_id)

    life()


@in_world
async def test_who_is_told_nothing_yet_is_told_when_the_log_fails(world: World) -> None:
    """Callers that wait for the decision, for the end, or for a refusal based on it."""
    txn_id, other = await world.begin(), await world.begin()
    coordinator = await world.coordinators.get(0)
    world.storage.holding = True
    waiting = [
        coordinator.end(txn_id, COMMIT, None),
        coordinator.end(txn_id, COMMIT, None),
        coordinator.end(txn_id, ABORT, None),
        coordinator.add_partitions(txn_id, [ORDERS], None),
        coordinator.add_partitions(other, [ORDERS], None),
        coordinator.new_transaction(1000, None),
    ]
    await soon()
    assert not any(answer.done() for answer in waiting)
    world.storage.full = True
    world.storage.release()
    await soon()
    for answer in waiting:
        assert isinstance(answer.exception(), TransactionCoordinatorNotFound)


@in_world
async def test_who_left_is_no_trouble_to_those_that_still_wait(world: World) -> None:
    txn_id = await world.begin()
    coordinator = await world.coordinators.get(0)
    world.storage.holding = True
    leaving = [
        coordinator.end(txn_id, COMMIT, None),
        coordinator.end(txn_id, ABORT, None),
        coordinator.new_transaction(1000, None),
    ]
    waiting = coordinator.end(txn_id, COMMIT, None)
    for answer in leaving:
        answer.cancel()
    world.storage.release()
    assert await waiting == txn_id


@in_world
async def test_who_asked_in_the_turn_in_which_the_log_fails_is_told(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    txn_id = await world.begin()
    world.storage.holding = True
    begun = coordinator.new_transaction(60_000, None)
    await soon()
    world.storage.full = True
    world.storage.release()
    added = coordinator.add_partitions(txn_id, [ORDERS], None)  # the failure is not known yet
    for asked in (begun, added):
        with pytest.raises(TransactionCoordinatorNotFound):
            await asyncio.wait_for(asked, 1.0)
    world.storage.full = False


@in_world
async def test_a_log_that_fails_while_participants_are_told_fails_their_waiters(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world.before_end, working = hang, world.before_end
    ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.begin()
    with pytest.raises(TransactionCoordinatorNotFound):
        await ended
    world.storage.full, world.before_end = False, working
    await asyncio.sleep(3)
    assert world.coordinators.status(txn_id) is TxnStatus.COMMITTED
    assert await world.read() == ["a"]


# -- time


@in_world
async def test_there_is_one_timer_for_all_transactions(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    for timeout_ms in (60_000, 30_000, 10_000):
        await world.begin(timeout_ms=timeout_ms)
        assert timers_of(coordinator) == 1
    timer = coordinator._timeouts._timer
    await world.begin(timeout_ms=20_000)
    assert coordinator._timeouts._timer is timer
    await world.end(TxnId(0, 2), COMMIT)
    await asyncio.sleep(25)
    assert timers_of(coordinator) == 1
    assert [world.coordinators.status(TxnId(0, at)) for at in range(4)] == [
        TxnStatus.OPEN,
        TxnStatus.OPEN,
        TxnStatus.COMMITTED,
        TxnStatus.ABORTED,
    ]
    await asyncio.sleep(40)
    assert timers_of(coordinator) == 0


@in_world
async def test_it_says_when_it_was_recovered(world: World) -> None:
    await asyncio.sleep(5)
    begun_ms = world.clock.now_ms()
    coordinator = await (await world.crashed()).coordinators.get(0)
    began, ended = coordinator.recovered_ms
    assert begun_ms <= began <= ended <= world.clock.now_ms()


@in_world
async def test_a_transaction_that_ended_leaves_no_deadline(world: World) -> None:
    await world.end(await world.begin(timeout_ms=900_000), COMMIT)
    assert len((await world.coordinators.get(0))._timeouts) == 0


@in_world
async def test_transactions_that_time_out_at_once_are_aborted_some_in_a_turn(world: World) -> None:
    for number in range(450):
        txn_id = await world.begin(timeout_ms=1000)
        if number < 10:
            await world.add(txn_id, *(f"persistent://public/default/t-{at}" for at in range(99)))
    coordinator, timed_out = await world.coordinators.get(0), [0]
    await asyncio.sleep(0.99)
    while timed_out[-1] < 450:
        await asyncio.sleep(0 if timed_out[-1] else 0.01)
        timed_out.append(coordinator.stats().timed_out)
    turns = [after - before for before, after in pairwise(timed_out) if after > before]
    assert turns == [200, 200, 42, 2, 2, 2, 2]  # the latest of those due together come first
    await asyncio.sleep(0.1)
    assert coordinator.stats().active == 0


async def decided_before_a_crash(world: World, count: int) -> tuple[World, list[TxnId], TxnId]:
    """The world after the crash, not started yet; the transactions decided before it; one that was
    open.
    """
    world.before_end = hang
    decided = [await world.begin_on(ORDERS) for _ in range(count)]
    undecided = await world.begin_on(ORDERS)
    ends = [asyncio.ensure_future(world.end(each, COMMIT)) for each in decided]
    await soon()
    after = World(world.storage.durable_copy(), **world.settings)
    await world.stopped()
    await asyncio.gather(*ends, return_exceptions=True)
    return after, decided, undecided


@in_world
async def test_decided_transactions_are_driven_some_in_a_turn_after_a_restart(world: World) -> None:
    after, decided, _ = await decided_before_a_crash(world, 450)
    with patch.object(after, "end_on_partition", wraps=after.end_on_partition) as told:
        starting, driven = asyncio.ensure_future(after.start()), [0]
        while after.coordinators.serving(0) is None:
            await asyncio.sleep(0)
            driven.append(told.call_count)
        assert driven[-1] == 450
        assert max(later - sooner for sooner, later in pairwise(driven)) == 100  # one topic each
    await starting
    await asyncio.sleep(1)
    assert {after.coordinators.status(each) for each in decided} == {TxnStatus.COMMITTED}
    await after.stopped()


@in_world
async def test_an_end_waits_for_those_decided_before_a_restart(world: World) -> None:
    after, decided, undecided = await decided_before_a_crash(world, 450)
    starting = asyncio.ensure_future(after.start())
    while not after.coordinators.served():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0)
    assert after.coordinators.serving(0) is None
    ends = [asyncio.ensure_future(after.end(each, COMMIT)) for each in (decided[-1], undecided)]
    await asyncio.sleep(0)
    assert after.coordinators.status(undecided) is TxnStatus.OPEN
    await ends[0]
    assert after.coordinators.status(decided[-1]) is TxnStatus.COMMITTED
    await ends[1]
    assert after.coordinators.status(undecided) is TxnStatus.COMMITTED
    await starting
    await after.stopped()


@in_world
async def test_a_long_timeout_is_as_exact_as_a_short_one(world: World) -> None:
    txn_id = await world.begin(timeout_ms=900_000)
    await asyncio.sleep(899.9)
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN
    await asyncio.sleep(0.3)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_closing_leaves_no_timer_and_no_task(world: World) -> None:
    world.before_end = hang
    ending = asyncio.ensure_future(world.end(await world.begin_on(ORDERS), COMMIT))
    await soon()
    await world.begin()
    coordinator = await world.coordinators.get(0)
    assert timers_of(coordinator) == 1
    assert len(coordinator._tasks) == 1
    await world.coordinators.close()
    assert (timers_of(coordinator), len(coordinator._tasks)) == (0, 0)
    with pytest.raises(TransactionCoordinatorNotFound):
        await ending


@in_world
async def test_a_deadline_that_passed_while_nothing_ran_is_kept_at_the_start(world: World) -> None:
    txn_id = await world.begin(timeout_ms=1000)
    copy = world.storage.durable_copy()
    await world.stopped()
    await asyncio.sleep(60)
    world = await World(copy).start()
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@pytest.mark.parametrize("apart_ms", [-3_600_000, 0, 3_600_000])
def test_on_another_broker_a_transaction_gets_its_whole_time_whatever_the_clocks_say(
    apart_ms: int,
) -> None:
    async def scenario() -> None:
        world = await World().start()
        txn_id = await world.begin(timeout_ms=10_000)
        other = World(world.storage.durable_copy())
        other.clock.wall_offset_ms = world.clock.wall_offset_ms + apart_ms
        other.coordinators.share_with(Mock(), Mock(), Mock())
        other = await other.start()
        await asyncio.sleep(9.8)
        assert other.coordinators.status(txn_id) is TxnStatus.OPEN
        await asyncio.sleep(0.4)
        assert other.coordinators.status(txn_id) is TxnStatus.ABORTED

    run_virtually(scenario())


@pytest.mark.parametrize(("moved_ms", "left_s"), [(-3_600_000, 10), (4_000, 6), (3_600_000, 0)])
def test_a_wall_clock_set_over_a_restart_gives_no_more_time_than_asked_for(
    moved_ms: int, left_s: int
) -> None:
    async def scenario() -> None:
        world = await World().start()
        txn_id = await world.begin(timeout_ms=10_000)
        copy = World(world.storage.durable_copy())
        copy.clock.wall_offset_ms = world.clock.wall_offset_ms + moved_ms
        world = await copy.start()
        if left_s:
            await asyncio.sleep(left_s - 0.2)
            assert world.coordinators.status(txn_id) is TxnStatus.OPEN
        await asyncio.sleep(0.4)
        assert world.coordinators.status(txn_id) is TxnStatus.ABORTED

    run_virtually(scenario())


@in_world_with(transaction_outcome_retention_ms=60_000)
async def test_an_end_is_not_found_once_its_outcome_is_too_old(world: World) -> None:
    """It expires although no other transaction ended meanwhile."""
    txn_id = await world.begin()
    for _ in range(2):
        await world.end(txn_id, COMMIT)
        await asyncio.sleep(59)
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(2)
    with pytest.raises(TransactionNotFound):
        await world.end(txn_id, COMMIT)


@pytest.mark.parametrize("life_s", [0, 3500])
def test_outcomes_are_kept_for_the_whole_retention_over_a_restart(life_s: int) -> None:
    async def scenario() -> None:
        world = await World(transaction_outcome_retention_ms=3_600_000).start()
        txn_id = await world.begin()
        for _ in range(2):
            await world.end(txn_id, COMMIT)
            await world.end(await world.begin(), COMMIT)
            await asyncio.sleep(life_s / 2)
        world = await world.restarted()
        await asyncio.sleep(3598 - life_s)
        await world.end(txn_id, COMMIT)

    run_virtually(scenario())


@in_world_with(transaction_outcome_retention_ms=60_000)
async def test_a_clock_that_is_set_between_two_lives_forgets_no_outcome(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(30)
    await world.end(await world.begin(), COMMIT)
    await soon()
    coordinator = await world.coordinators.get(0)
    await coordinator._log.snapshot(coordinator._store)
    world = World(world.storage.durable_copy(), **world.settings)
    world.clock.wall_offset_ms += 365 * 86_400_000
    await world.start()
    await world.end(await world.begin(), COMMIT)
    await soon()
    await world.end(txn_id, COMMIT)


# -- snapshots


@in_world_with(transaction_metadata_snapshot_entries=20)
async def test_a_snapshot_is_written_when_it_is_due_and_one_at_a_time(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    for _ in range(4):
        await world.end(await world.begin(), COMMIT)  # three records
        assert len(coordinator._tasks) == 0
    txn_id = await world.begin()
    for _ in range(2):
        world.storage.holding = True
        for number in range(60):
            coordinator.add_partitions(txn_id, [f"t{number}"], None)
            await soon()
        assert len(coordinator._tasks) == 1
        world.storage.release()
        await soon()
        assert len(coordinator._tasks) == 0
        await asyncio.sleep(5)
    await world.end(txn_id, COMMIT)
    assert coordinator._log.records_since_snapshot < 60


@in_world_with(transaction_metadata_snapshot_entries=20)
async def test_a_snapshot_that_fails_is_made_good_by_opening_the_log_again(world: World) -> None:
    """Otherwise the next snapshot would lack what the failed one had taken."""
    coordinator = await world.coordinators.get(0)
    put = world.storage.metadata.put

    async def refuse(key: str, *args: Any) -> Any:
        if key.startswith("transaction-outcomes/"):
            raise StorageFull("no space left")
        return await put(key, *args)

    ended = []
    with patch.object(coordinator._log, "_metadata", Mock(put=refuse)):
        for _ in range(7):
            ended.append(await world.begin())
            await world.end(ended[-1], COMMIT)
        await soon()
    await asyncio.sleep(2)
    assert await world.coordinators.get(0) is not coordinator
    world = await world.crashed()
    assert {world.coordinators.status(txn_id) for txn_id in ended} == {TxnStatus.COMMITTED}
