"""The coordinator: its answers, its retries, its timeouts, and every crash between two steps."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from txn_world import ABORT, COMMIT, COPIES, ORDERS, World, in_world, in_world_with, soon
from virtual_loop import run_virtually

from pybroker.base.errors import (
    InvalidTxnStatus,
    NotAllowed,
    TooManyRequests,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from pybroker.base.names import TxnId
from pybroker.transaction.coordinator import outcome_window
from pybroker.transaction.coordinator.log.records import Record
from pybroker.transaction.coordinator.log.transaction_log import log_name
from pybroker.transaction.snapshot_log import PARTS_PER_ENTRY
from pybroker.transaction.txn_status import TxnStatus


async def fail(participant: str) -> None:
    raise OSError(f"{participant} is out of reach")


async def hang(participant: str) -> None:
    await asyncio.get_running_loop().create_future()


@in_world
async def test_ids_count_from_zero_for_each_coordinator(world: World) -> None:
    assert [await world.begin(), await world.begin()] == [TxnId(0, 0), TxnId(0, 1)]
    third = await world.coordinators.get(3)
    assert await third.new_transaction(1000, None) == TxnId(3, 0)


@in_world
async def test_an_empty_transaction_commits(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    assert world.coordinators.status(txn_id) is TxnStatus.COMMITTED


@in_world
async def test_a_commit_reaches_every_topic(world: World) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    await world.send(txn_id, "a", topic=ORDERS)
    await world.send(txn_id, "b", topic=COPIES)
    await world.end(txn_id, COMMIT)
    assert [await world.read(ORDERS), await world.read(COPIES)] == [["a"], ["b"]]


@in_world
async def test_the_same_end_twice_succeeds_twice(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await asyncio.gather(world.end(txn_id, COMMIT), world.end(txn_id, COMMIT))
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    await world.end(txn_id, COMMIT)


@in_world
async def test_abort_after_commit_is_refused(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus, match="COMMITTED"):
        await world.end(txn_id, ABORT)


@in_world
async def test_the_opposite_end_is_refused_while_one_runs(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.before_end = hang
    running = asyncio.ensure_future(world.end(txn_id, ABORT))
    await soon()
    with pytest.raises(InvalidTxnStatus, match="ABORTING"):
        await world.end(txn_id, COMMIT)
    running.cancel()


@in_world
async def test_no_refusal_tells_of_a_decision_that_a_crash_could_undo(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.storage.holding = True
    commit = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    abort = asyncio.ensure_future(world.end(txn_id, ABORT))
    add = asyncio.ensure_future(world.add(txn_id, COPIES))
    await soon()
    assert not abort.done()
    assert not add.done()
    await (await world.crashed()).end(txn_id, ABORT)
    world.storage.release()
    for refused in (abort, add):
        with pytest.raises(InvalidTxnStatus, match="COMMITTING"):
            await refused
    await commit


@in_world
async def test_an_unknown_transaction_is_not_found(world: World) -> None:
    await world.coordinators.get(0)
    with pytest.raises(TransactionNotFound):
        await world.end(TxnId(0, 9), COMMIT)
    with pytest.raises(TransactionNotFound):
        await world.add(TxnId(0, 9), ORDERS)
    assert world.coordinators.status(TxnId(0, 9)) is None


@in_world
async def test_an_unknown_coordinator_is_not_found(world: World) -> None:
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.coordinators.get(16)
    assert world.coordinators.status(TxnId(99, 0)) is None


@in_world
async def test_nothing_can_be_added_after_the_end(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await world.add(txn_id, ORDERS)
    with pytest.raises(InvalidTxnStatus):
        await world.add_subscription(txn_id)


@in_world
async def test_an_end_goes_on_when_its_caller_leaves(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world.storage.holding = True
    caller = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    caller.cancel()
    world.storage.release()
    await soon()
    assert await world.read() == ["a"]


@in_world
async def test_a_participant_that_fails_is_retried_and_shown(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    working, world.before_end = world.before_end, fail
    ended = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await asyncio.sleep(60)
    coordinator = await world.coordinators.get(0)
    (retry,) = coordinator.stats().retries
    assert retry.txn_id == txn_id and retry.participant.topic == ORDERS and retry.attempts > 5
    assert "out of reach" in retry.last_error
    world.before_end = working
    await ended
    assert await world.read() == ["a"]
    assert coordinator.stats().retries == []


@in_world
async def test_a_deleted_topic_does_not_hold_the_commit_up(world: World) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    await world.send(txn_id, "a", topic=COPIES)
    await world.end(txn_id, COMMIT)
    assert await world.read(COPIES) == ["a"]


@in_world
async def test_an_open_transaction_is_aborted_at_its_timeout(world: World) -> None:
    txn_id = await world.begin(timeout_ms=1000)
    await world.add(txn_id, ORDERS)
    await world.send(txn_id, "a")
    await asyncio.sleep(0.9)
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN
    await asyncio.sleep(0.3)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED
    with pytest.raises(InvalidTxnStatus):
        await world.end(txn_id, COMMIT)
    assert (await world.coordinators.get(0)).stats().timed_out == 1


@in_world
async def test_a_short_timeout_is_not_kept_waiting_by_a_long_one(world: World) -> None:
    long, short = await world.begin(timeout_ms=100_000), await world.begin(timeout_ms=500)
    await asyncio.sleep(1)
    assert world.coordinators.status(short) is TxnStatus.ABORTED
    assert world.coordinators.status(long) is TxnStatus.OPEN


@in_world
async def test_the_deadline_survives_a_restart(world: World) -> None:
    txn_id = await world.begin(timeout_ms=10_000)
    await asyncio.sleep(8)
    world = await world.crashed()
    await asyncio.sleep(1)
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN
    await asyncio.sleep(1.5)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_a_jump_of_the_wall_clock_aborts_nobody(world: World) -> None:
    txn_id = await world.begin(timeout_ms=60_000)
    world.clock.wall_offset_ms += 3_600_000
    await asyncio.sleep(30)
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN


@in_world
async def test_a_timeout_out_of_bounds_is_refused(world: World) -> None:
    for timeout_ms in (0, 86_400_001, 2**64 - 1):
        with pytest.raises(NotAllowed, match="86400000"):
            await world.begin(timeout_ms)


@in_world_with(max_active_transactions_per_coordinator=2)
async def test_one_transaction_too_many_is_answered(world: World) -> None:
    first = await world.begin()
    await world.begin()
    with pytest.raises(TooManyRequests):
        await world.begin()
    await world.end(first, ABORT)
    await world.begin()


@in_world
async def test_only_the_owner_may_change_a_transaction(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(1000, "alice")
    with pytest.raises(TransactionNotFound, match="mallory"):
        await coordinator.end(txn_id, COMMIT, "mallory")
    with pytest.raises(TransactionNotFound):
        await coordinator.add_partitions(txn_id, [ORDERS], "mallory")
    await coordinator.end(txn_id, COMMIT, "alice")


@in_world
async def test_a_restart_never_gives_an_id_again(world: World) -> None:
    for _ in range(3):
        await world.end(await world.begin(), COMMIT)
    world = await world.restarted()
    assert await world.begin() == TxnId(0, 3)


@in_world
async def test_committing_completes_unaided_after_a_crash(world: World) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    await world.send(txn_id, "a", topic=ORDERS)
    await world.send(txn_id, "b", topic=COPIES)
    world.before_end = hang
    stuck = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    world = await world.crashed()
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.COMMITTED
    assert [await world.read(ORDERS), await world.read(COPIES)] == [["a"], ["b"]]
    stuck.cancel()


@in_world
async def test_a_crash_between_marker_and_final_record_writes_no_second_marker(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    await world.send(txn_id, "a")

    async def only_orders(participant: str) -> None:
        if participant != ORDERS:
            await hang(participant)

    world.before_end = only_orders
    stuck = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    assert await world.read() == ["a"]
    world = await world.crashed()
    await soon()
    assert (await world.ledger(ORDERS)).last_confirmed.entry_id == 1
    assert world.coordinators.status(txn_id) is TxnStatus.COMMITTED
    stuck.cancel()


@in_world
async def test_a_decision_that_is_not_durable_is_not_acted_on(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    told: list[str] = []

    async def note(participant: str) -> None:
        told.append(participant)

    world.before_end = note
    world.storage.holding = True
    undecided = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    assert told == []
    crashed = await world.crashed()
    assert crashed.coordinators.status(txn_id) is TxnStatus.OPEN
    await crashed.end(txn_id, ABORT)
    assert await crashed.read() == []
    undecided.cancel()


@in_world
async def test_a_log_that_fails_is_opened_again(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.end(txn_id, COMMIT)
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.coordinators.get(0)
    with pytest.raises(TransactionCoordinatorNotFound):
        world.coordinators.status(txn_id)
    world.storage.full = False
    await asyncio.sleep(2)
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_a_caller_that_left_does_not_hide_a_failed_log(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    world.storage.holding = True
    caller = asyncio.ensure_future(world.begin())
    await soon()
    caller.cancel()
    await soon()
    world.storage.full = True
    world.storage.release()
    await soon()
    world.storage.full = False
    await asyncio.sleep(2)
    assert await world.coordinators.get(0) is not coordinator


@in_world_with(transaction_metadata_snapshot_entries=50)
async def test_replay_reads_live_transactions_not_history(world: World) -> None:
    kept = await world.begin_on(ORDERS)
    ended = []
    for _ in range(100):
        ended.append(await world.begin_on(ORDERS, COPIES))
        await world.end(ended[-1], COMMIT)
    world = await world.crashed()
    coordinator = await world.coordinators.get(0)
    assert coordinator._log.records_since_snapshot < 100
    assert {world.coordinators.status(txn_id) for txn_id in ended} == {TxnStatus.COMMITTED}
    assert world.coordinators.has_partition(kept, ORDERS)
    assert await world.begin() == TxnId(0, 101)
    world = await world.restarted()
    assert {world.coordinators.status(txn_id) for txn_id in ended} == {TxnStatus.COMMITTED}


@in_world_with(transaction_metadata_snapshot_entries=20)
async def test_a_crash_while_a_snapshot_is_written_loses_nothing(world: World) -> None:
    kept = [await world.begin_on(ORDERS) for _ in range(5)]
    await world.end(kept.pop(), COMMIT)
    for held in range(12):  # the snapshot falls due in one of these
        world.storage.holding = True
        begun = asyncio.ensure_future(world.begin())
        await soon()
        crashed = await world.crashed()
        assert [crashed.coordinators.status(txn_id) for txn_id in kept] == [TxnStatus.OPEN] * 4
        assert crashed.coordinators.status(TxnId(0, 4)) is TxnStatus.COMMITTED
        assert await crashed.begin() == TxnId(0, 5 + held)
        await crashed.coordinators.close()
        world.storage.release()
        await begun


@in_world
async def test_others_have_their_turn_while_a_snapshot_is_made(world: World) -> None:
    txn_ids = [await world.begin() for _ in range(1200)]
    coordinator = await world.coordinators.get(0)
    store, asked = coordinator._store, list[Record]()

    records = store.snapshot()

    def counted() -> Iterator[Record]:
        for record in records:
            asked.append(record)
            yield record

    store.snapshot = counted  # type: ignore[method-assign]
    snapshot = asyncio.ensure_future(coordinator._log.snapshot(store))
    await asyncio.sleep(0)
    assert 0 < len(asked) <= PARTS_PER_ENTRY
    await world.add(txn_ids[-1], ORDERS)  # the piece with it comes later
    await world.end(txn_ids[-2], ABORT)
    begun = await world.begin()
    await snapshot
    world = await world.crashed()
    status = world.coordinators.status
    assert [status(txn_id) for txn_id in txn_ids[:-2]] == [TxnStatus.OPEN] * 1198
    assert (status(txn_ids[-2]), status(begun)) == (TxnStatus.ABORTED, TxnStatus.OPEN)
    assert world.coordinators.has_partition(txn_ids[-1], ORDERS)
    assert (await world.coordinators.get(0)).stats().low_watermark == -1


@in_world
async def test_the_low_watermark_is_below_every_live_transaction(world: World) -> None:
    first, second, third = [await world.begin() for _ in range(3)]
    coordinator = await world.coordinators.get(0)
    assert coordinator.stats().low_watermark == -1
    await world.end(second, COMMIT)
    assert coordinator.stats().low_watermark == -1
    await world.end(first, ABORT)
    assert coordinator.stats().low_watermark == second.least
    await world.end(third, ABORT)
    assert coordinator.stats().low_watermark == third.least


@in_world
async def test_closing_answers_all_waiters(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.before_end = hang
    running = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    await world.coordinators.close()
    with pytest.raises(TransactionCoordinatorNotFound):
        await running


@in_world
async def test_coordinators_that_were_never_used_have_no_log(world: World) -> None:
    await world.begin()
    assert world.factory.names("pulsar/system/") == [log_name(0)]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


DAY_MS = 86_400_000


async def ended_one(world: World) -> TxnId:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    return txn_id


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_is_set_forgets_no_outcome_too_early_and_keeps_none_for_ever(
    monkeypatch: pytest.MonkeyPatch, jump_ms: int, restarted: bool
) -> None:
    monkeypatch.setattr(outcome_window, "CHUNK_IDS", 2)

    async def scenario() -> None:
        world = await World(transaction_outcome_retention_ms=60_000).start()
        early = await ended_one(world)
        offset_ms = world.clock.wall_offset_ms + jump_ms
        if restarted:
            world = await world.restarted()
        world.clock.wall_offset_ms = offset_ms
        for _ in range(10):
            await ended_one(world)
            await asyncio.sleep(5)
        assert world.coordinators.status(early) is TxnStatus.COMMITTED
        for _ in range(30):
            await ended_one(world)
            await asyncio.sleep(5)
        assert world.coordinators.status(early) is None
        coordinator = await world.coordinators.get(0)
        assert len(coordinator._store.outcomes._chunks) < 15

    run_virtually(scenario())


@in_world_with(transaction_outcome_retention_ms=0)
async def test_without_retention_an_end_is_forgotten_at_once(world: World) -> None:
    txn_id = await ended_one(world)
    assert world.coordinators.status(txn_id) is None
    with pytest.raises(TransactionNotFound):
        await world.end(txn_id, COMMIT)
