"""Sessions of transactional ids: which ones wait for which, what a failure leaves, which expire."""

import asyncio
from unittest.mock import patch

import pytest
from txn_sessions_world import Connection, claim, epoch
from txn_world import COMMIT, ORDERS, World, in_world, in_world_with

from managed_ledger.errors import ManagedLedgerError
from pybroker.base.errors import ProducerFenced, ServiceNotReady
from pybroker.base.names import TxnId
from pybroker.server.transactions import transactional_sessions
from pybroker.server.transactions.held_ids import Claim
from pybroker.server.transactions.transactional_session import TransactionalSession
from pybroker.server.transactions.transactional_sessions import TransactionalSessions
from pybroker.transaction.coordinator.sessions.transactional_ids import TransactionalId
from pybroker.transaction.txn_status import TxnStatus

HOUR_S = 3600.0


def sessions_of(world: World) -> TransactionalSessions:
    return TransactionalSessions(world.coordinators)


async def publish_in(world: World, session: TransactionalSession) -> TxnId:
    coordinator = await world.coordinators.get(0)
    txn_id = await coordinator.new_transaction(60_000, None, session=session.ref)
    await world.add(txn_id, ORDERS)
    await world.send(txn_id, "a")
    return txn_id


@in_world
async def test_many_newer_sessions_at_once_come_one_after_the_other(world: World) -> None:
    sessions, connections = sessions_of(world), [Connection() for _ in range(20)]
    world.storage.holding = True
    joining = [asyncio.ensure_future(sessions.join(each, claim())) for each in connections]
    await asyncio.sleep(0.1)
    world.storage.release()
    results = await asyncio.gather(*joining, return_exceptions=True)
    granted = [each for each in results if isinstance(each, TransactionalSession)]
    assert [epoch(each) for each in granted if not each.is_fenced] == [20]
    refused = [each for each in results if isinstance(each, BaseException)]
    assert all(isinstance(each, ProducerFenced) for each in refused)
    await sessions.close()


@in_world
async def test_who_asks_again_meanwhile_waits_for_the_same_grant(world: World) -> None:
    sessions, connection = sessions_of(world), Connection()
    world.storage.holding = True
    asking = [asyncio.ensure_future(sessions.join(connection, claim())) for _ in range(3)]
    await asyncio.sleep(0.1)
    world.storage.release()
    first, *others = await asyncio.gather(*asking)
    assert all(other is first for other in others)
    assert epoch(first) == 1
    await sessions.close()


@in_world
async def test_an_end_that_takes_long_is_told_and_can_be_waited_for_again(world: World) -> None:
    sessions, older, newer = sessions_of(world), Connection(), Connection()
    txn_id = await publish_in(world, await sessions.join(older, claim()))
    gate = asyncio.Event()

    async def wait(participant: str) -> None:
        await gate.wait()

    world.before_end = wait
    committing = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await asyncio.sleep(0.1)
    with pytest.raises(ServiceNotReady, match="still being ended"):
        await sessions.join(newer, claim())
    asking = asyncio.ensure_future(sessions.join(newer, claim()))
    await asyncio.sleep(1)
    gate.set()
    assert epoch(await asking) == 2
    await committing
    await sessions.close()


@in_world
async def test_an_epoch_that_is_not_recorded_in_time_is_told_to_all_who_wait(world: World) -> None:
    sessions = sessions_of(world)
    world.storage.holding = True
    asking = [asyncio.ensure_future(sessions.join(Connection(), claim(name))) for name in "ab"]
    await asyncio.sleep(30)
    for each in asking:
        with pytest.raises(ServiceNotReady, match=r"'x': .* epoch is still being recorded"):
            each.result()
    world.storage.release()
    assert epoch(await sessions.join(Connection(), claim("b"))) == 2
    await sessions.close()


@in_world
async def test_a_session_that_could_not_begin_leaves_the_older_one_as_it_was(
    world: World,
) -> None:
    sessions, older, newer = sessions_of(world), Connection(), Connection()
    first = await sessions.join(older, claim())
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await sessions.join(newer, claim())
    world.storage.full = False
    assert not first.is_fenced
    assert await sessions.join(older, claim()) is first
    assert epoch(await sessions.join(newer, claim())) == 2
    assert first.is_fenced
    await sessions.close()


@in_world
async def test_an_older_one_that_left_while_a_newer_could_not_begin_is_forgotten(
    world: World,
) -> None:
    sessions, older, newer = sessions_of(world), Connection(), Connection()
    await sessions.join(older, claim())
    world.storage.holding = True
    joining = asyncio.ensure_future(sessions.join(newer, claim()))
    await asyncio.sleep(0.1)
    older.closed = True
    sessions.left(older)
    world.storage.full = True
    world.storage.release()
    with pytest.raises(ManagedLedgerError):
        await joining
    assert not sessions._newest
    world.storage.full = False
    await sessions.close()


@in_world
async def test_who_left_while_it_began_is_forgotten(world: World) -> None:
    sessions, gone = sessions_of(world), Connection()
    world.storage.holding = True
    joining = asyncio.ensure_future(sessions.join(gone, claim()))
    await asyncio.sleep(0.1)
    gone.closed = True
    sessions.left(gone)
    world.storage.release()
    await joining
    assert sessions._newest == {}
    again = await sessions.join(Connection(), claim(epoch=1))
    assert epoch(again) == 1
    await sessions.close()


@in_world
async def test_a_session_that_comes_again_first_ends_what_a_crash_left_of_older_ones(
    world: World,
) -> None:
    sessions = sessions_of(world)
    txn_id = await publish_in(world, await sessions.join(Connection(), claim()))
    await world.coordinators.ids.begin(claim().id, claim("b").session)
    after = await world.crashed()
    again = sessions_of(after)
    assert epoch(await again.join(Connection(), claim("b"))) == 2
    assert after.coordinators.begun(txn_id) is None
    assert await after.read() == []
    await again.close()


@in_world_with(transactional_id_expiration_ms=28 * int(HOUR_S * 1000))
async def test_ids_that_nobody_uses_expire_and_those_in_use_do_not(world: World) -> None:
    sessions, connection = sessions_of(world), Connection()
    await sessions.join(connection, claim())
    gone = Connection()
    await sessions.join(gone, Claim.of(None, "unused", "", 0))
    sessions.left(gone)
    bound = await world.coordinators.ids.begin(TransactionalId(None, "open"), "")
    coordinator = await world.coordinators.get(0)
    await coordinator.new_transaction(86_400_000, None, session=bound)
    await asyncio.sleep(20 * HOUR_S)
    assert len(world.coordinators.ids) == 3
    await asyncio.sleep(10 * HOUR_S)
    left = [transactional_id.name for transactional_id, _ in world.coordinators.ids]
    assert left == ["x", "open"]
    sessions.left(connection)
    await asyncio.sleep(60 * HOUR_S)
    assert len(world.coordinators.ids) == 0
    with pytest.raises(ProducerFenced):
        await sessions.join(Connection(), claim(epoch=1))
    assert epoch(await sessions.join(Connection(), claim())) == 2
    await sessions.close()


@in_world_with(transactional_id_expiration_ms=28 * int(HOUR_S * 1000))
async def test_ids_of_an_earlier_life_expire_too(world: World) -> None:
    await world.coordinators.ids.begin(TransactionalId(None, "x"), "")
    after = await world.crashed()
    sessions = sessions_of(after)
    sessions.look_after_ids()
    await asyncio.sleep(30 * HOUR_S)
    assert len(after.coordinators.ids) == 0
    await sessions.close()


@in_world
async def test_a_session_whose_predecessors_could_not_be_ended_is_not_taken_for_granted(
    world: World,
) -> None:
    sessions, connection = sessions_of(world), Connection()
    open_one = await publish_in(world, await sessions.join(Connection(), claim("older")))

    async def fails(*_: object) -> int:
        raise OSError("not foreseen")

    with (
        patch.object(transactional_sessions, "end_older", fails),
        pytest.raises(OSError, match="not foreseen"),
    ):
        await sessions.join(connection, claim("newer"))
    assert sessions.granted(connection, claim("newer")) is None
    assert epoch(await sessions.join(connection, claim("newer"))) == 2
    assert world.coordinators.status(open_one) is TxnStatus.ABORTED
