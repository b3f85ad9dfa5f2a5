"""What is aborted when a connection closes, and what is not, without a network."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from txn_world import COMMIT, ORDERS, World, in_world, soon

from pybroker.base.config import BrokerConfig
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId
from pybroker.broker.policies.effective import Effective
from pybroker.server import on_transaction
from pybroker.server.connection import Connection
from pybroker.server.owned_transactions import Disconnections, OwnedTransactions
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb


async def abort_of(world: World, *, by_default: bool = False) -> Disconnections:
    config = BrokerConfig(transaction_abort_on_disconnect=by_default)
    policies = SimpleNamespace(of_namespace=lambda name: Effective(config, ()))
    return Disconnections(world.coordinators, policies)


def owning(world: World, *txn_ids: TxnId, asked: bool = True) -> OwnedTransactions:
    owned = OwnedTransactions()
    for txn_id in txn_ids:
        owned.add(txn_id, asked, world.coordinators)
    return owned


@in_world
async def test_what_is_committing_goes_on(world: World) -> None:
    blocked = asyncio.Event()

    async def wait(participant: str) -> None:
        await blocked.wait()

    world.before_end = wait
    txn_id, disconnections = await world.begin_on(ORDERS), await abort_of(world)
    await world.send(txn_id, "a")
    committing = asyncio.ensure_future(world.end(txn_id, COMMIT))
    await soon()
    disconnections.closed(owning(world, txn_id))
    await soon()
    blocked.set()
    await committing
    assert await world.read() == ["a"]


@in_world
async def test_all_of_a_connection_are_aborted_by_default_where_the_broker_says_so(
    world: World,
) -> None:
    txn_ids = [await world.begin() for _ in range(50)]
    (await abort_of(world)).closed(owning(world, *txn_ids, asked=False))
    await soon()
    assert {world.coordinators.status(each) for each in txn_ids} == {TxnStatus.OPEN}
    (await abort_of(world, by_default=True)).closed(owning(world, *txn_ids, asked=False))
    await soon()
    assert {world.coordinators.status(each) for each in txn_ids} == {TxnStatus.ABORTED}


@in_world
async def test_a_begin_that_is_durable_after_the_connection_closed_is_aborted(
    world: World,
) -> None:
    txn_id, disconnections = await world.begin(), await abort_of(world)
    services = SimpleNamespace(coordinators=world.coordinators, disconnections=disconnections)
    session = SimpleNamespace(
        owned=OwnedTransactions(), services=services, closed=True, write=lambda data: None
    )
    command = pb.CommandNewTxn(request_id=1, abort_on_disconnect=True)
    on_transaction.begun(cast("Connection", session), command, txn_id)
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_the_broker_s_own_stop_aborts_nothing(world: World) -> None:
    txn_id, disconnections = await world.begin(), await abort_of(world)
    await disconnections.close()
    disconnections.closed(owning(world, txn_id))
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN


@in_world
async def test_a_coordinator_that_is_being_opened_again_is_asked_again(world: World) -> None:
    txn_id, disconnections = await world.begin(), await abort_of(world)
    coordinator = await world.coordinators.get(0)
    coordinator._fail(RuntimeError("its log failed"))
    disconnections.closed(owning(world, txn_id))
    await soon()
    assert world.coordinators.serving(0) is None
    await asyncio.sleep(5)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_a_connection_forgets_those_that_others_have_ended(world: World) -> None:
    owned = OwnedTransactions()
    for number in range(2500):
        txn_id = await world.begin()
        owned.add(txn_id, False, world.coordinators)
        if number % 2:
            await world.end(txn_id, COMMIT)
    assert len(owned) < 1800
    first = TxnId(0, 0)
    owned.ended(first)
    assert first not in owned.take()
    assert len(owned) == 0


@in_world
async def test_who_ended_a_transaction_is_not_asked_for_it(world: World) -> None:
    txn_id = await world.begin()
    owned: Any = owning(world, txn_id)
    session = SimpleNamespace(
        owned=owned, begun=SimpleNamespace(ended=lambda each: None), write=lambda data: None
    )
    on_transaction.ended(cast("Connection", session), pb.CommandEndTxn(request_id=1), txn_id)
    assert len(owned) == 0
    with pytest.raises(InvalidTxnStatus):
        await (await world.coordinators.get(0)).abort(await ended(world), "late")


async def ended(world: World) -> TxnId:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    return txn_id
