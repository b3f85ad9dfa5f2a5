"""A transaction's timeline for people: when participants joined, who decided, who followed."""

import asyncio

import pytest
from txn_world import ABORT, COMMIT, COPIES, ORDERS, World, books_closed, in_world

from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId
from pybroker.transaction.buffer.buffer_stats import Marked
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.coordinator.ends import ended_transactions, timeline
from pybroker.transaction.coordinator.ends.ended_transactions import KEPT_MS, EndedTransaction
from pybroker.transaction.coordinator.ends.timeline import DecidedBy
from pybroker.transaction.txn_status import TxnStatus


async def coordinator_of(world: World) -> TransactionCoordinator:
    return await world.coordinators.get(0)


def ended(world: World, txn_id: TxnId) -> EndedTransaction:
    found = world.coordinators.ended.find(txn_id)
    assert found is not None
    return found


def decided_by(world: World, txn_id: TxnId) -> DecidedBy:
    end = ended(world, txn_id).transaction.end
    assert end is not None
    return end.by


@in_world
async def test_a_participant_keeps_the_time_of_its_first_add(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    first_ms = world.clock.now_ms()
    await asyncio.sleep(2)
    await world.add(txn_id, ORDERS, COPIES)
    await world.add_subscription(txn_id)
    transaction = (await coordinator_of(world)).metadata(txn_id)
    assert transaction is not None
    assert list(transaction.partitions) == [ORDERS, COPIES]
    added_ms = list(transaction.partitions.values())
    assert added_ms[0] is not None and added_ms[1] is not None
    assert added_ms[0] <= first_ms and added_ms[1] >= first_ms + 2000
    assert (transaction.subscriptions[ORDERS, "sub"] or 0) >= first_ms + 2000


@in_world
async def test_an_ended_transaction_shows_who_decided_and_when_each_participant_ended_it(
    world: World,
) -> None:
    txn_id = await world.begin_on(ORDERS, COPIES)
    at = await world.send(txn_id, "a")
    await asyncio.sleep(1)
    await world.end(txn_id, COMMIT)
    found = ended(world, txn_id)
    assert (found.status, found.topic_count, found.reason) == (TxnStatus.COMMITTED, 2, "")
    end = found.transaction.end
    assert end is not None and end.at_ms is not None and end.by is DecidedBy.CLIENT
    assert found.ended_at_ms >= end.at_ms >= found.transaction.opened_at_ms + 1000
    followed = {topic: result for (topic, _), _, result in end.followed}
    assert followed == {ORDERS: Marked(at, at._replace(entry_id=at.entry_id + 1)), COPIES: None}
    assert all(end.at_ms <= at_ms <= found.ended_at_ms for _, at_ms, _ in end.followed)


@in_world
async def test_who_decided_is_told_apart(world: World) -> None:
    coordinator = await coordinator_of(world)
    timed_out = await world.begin(timeout_ms=500)
    await asyncio.sleep(2)
    aborted, left, fenced = await world.begin(), await world.begin(), await world.begin()
    await coordinator.abort(aborted, "an administrator aborted it: old")
    await coordinator.abort(left, "it was left", DecidedBy.DISCONNECT)
    await coordinator.abort(fenced, "it was fenced", DecidedBy.FENCING)
    given_up = await world.begin()
    await world.end(given_up, ABORT)
    assert decided_by(world, timed_out) is DecidedBy.TIMEOUT
    assert decided_by(world, aborted) is DecidedBy.ADMINISTRATOR
    assert decided_by(world, left) is DecidedBy.DISCONNECT
    assert decided_by(world, fenced) is DecidedBy.FENCING
    assert decided_by(world, given_up) is DecidedBy.CLIENT
    assert ended(world, aborted).reason == "an administrator aborted it: old"


@in_world
async def test_an_end_that_comes_too_late_changes_nothing_of_the_record(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    with pytest.raises(InvalidTxnStatus):
        await (await coordinator_of(world)).abort(txn_id, "too late")
    assert decided_by(world, txn_id) is DecidedBy.CLIENT
    assert len(list(world.coordinators.ended)) == 1


@in_world
async def test_a_restart_forgets_times_and_ended_ones(world: World) -> None:
    gone, txn_id = await world.begin(), await world.begin_on(ORDERS)
    await world.end(gone, COMMIT)
    await books_closed()
    world = await world.crashed()
    assert list(world.coordinators.ended) == []
    transaction = (await coordinator_of(world)).metadata(txn_id)
    assert transaction is not None and transaction.partitions == {ORDERS: None}
    await world.end(txn_id, COMMIT)
    assert decided_by(world, txn_id) is DecidedBy.CLIENT


@in_world
async def test_a_decision_of_before_a_restart_has_no_time_and_its_end_has(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")

    async def never(participant: str) -> None:
        await asyncio.Event().wait()

    world.before_end = never
    ending = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await asyncio.sleep(1)
    world = await world.crashed()
    await asyncio.sleep(1)
    ending.cancel()
    end = ended(world, txn_id).transaction.end
    assert end is not None
    assert (end.at_ms, end.by) == (None, DecidedBy.UNKNOWN)
    assert [participant for participant, _, _ in end.followed] == [(ORDERS, None)]


@in_world
async def test_what_ended_is_forgotten_after_an_hour(world: World) -> None:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(KEPT_MS / 1000 - 1)
    assert len(list(world.coordinators.ended)) == 1
    await asyncio.sleep(2)
    assert list(world.coordinators.ended) == []


@in_world
async def test_what_is_kept_is_bounded(world: World) -> None:
    many = [f"{ORDERS}-{number}" for number in range(2 * timeline.MOST_FOLLOWED)]
    txn_id = await world.begin_on(*many)
    await world.end(txn_id, COMMIT)
    found = ended(world, txn_id)
    assert found.topic_count == len(many)
    assert list(found.transaction.partitions) == many[: ended_transactions.MOST_PARTICIPANTS]
    assert found.transaction.namespaces == {} and found.transaction.end is not None
    assert len(found.transaction.end.followed) == timeline.MOST_FOLLOWED
    for _ in range(ended_transactions.MOST_ENDED):
        await world.end(await world.begin(), COMMIT)
    assert len(list(world.coordinators.ended)) == ended_transactions.MOST_ENDED
    assert world.coordinators.ended.find(txn_id) is None


def test_the_end_times_of_a_limited_number_of_participants_are_noted() -> None:
    end = timeline.DecidedEnd()
    for number in range(2 * timeline.MOST_FOLLOWED):
        end.note((f"{number}", None), number, None)
    assert [at_ms for _, at_ms, _ in end.followed] == list(range(timeline.MOST_FOLLOWED))
