"""What is aborted when a connection closes, and what is not; without a network."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from txn_world import COMMIT, ORDERS, World, in_world, in_world_with, soon

from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import InvalidTxnStatus
from pybroker.base.names import TxnId
from pybroker.broker.policies.effective import Effective
from pybroker.server.connections.connection import Connection
from pybroker.server.transactions import on_transaction
from pybroker.server.transactions.added_participants import AddedParticipants
from pybroker.server.transactions.begun_transactions import BegunTransactions, Left
from pybroker.server.transactions.disconnections import Disconnections
from pybroker.server.transactions.transaction_share import AskedFor, begin_within_share
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb


async def abort_of(world: World, *, by_default: bool = False) -> Disconnections:
    config = BrokerConfig(transaction_abort_on_disconnect=by_default)
    policies = SimpleNamespace(of_namespace=lambda name: Effective(config, ()))
    return Disconnections(world.coordinators, policies)


def begun_by(*txn_ids: TxnId, asked: bool = True) -> Left:
    return dict.fromkeys(txn_ids, asked)


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
    disconnections.left(begun_by(txn_id))
    await soon()
    blocked.set()
    await committing
    assert await world.read() == ["a"]


@in_world
async def test_all_of_a_connection_are_aborted_by_default_where_the_broker_says_so(
    world: World,
) -> None:
    txn_ids = [await world.begin() for _ in range(50)]
    (await abort_of(world)).left(begun_by(*txn_ids, asked=False))
    await soon()
    assert {world.coordinators.status(each) for each in txn_ids} == {TxnStatus.OPEN}
    (await abort_of(world, by_default=True)).left(begun_by(*txn_ids, asked=False))
    await soon()
    assert {world.coordinators.status(each) for each in txn_ids} == {TxnStatus.ABORTED}


def connection_of(world: World, begun: BegunTransactions) -> Connection:
    services = SimpleNamespace(config=BrokerConfig(), coordinators=world.coordinators)
    session: Any = SimpleNamespace(
        login=None,
        owner=None,
        begun=begun,
        services=services,
        sessions={},
        peer="127.0.0.1:1",
        client_version="test",
    )
    return cast("Connection", session)


@in_world
async def test_a_begin_that_is_durable_after_the_connection_closed_is_aborted(
    world: World,
) -> None:
    disconnections, begun = await abort_of(world), BegunTransactions(world.coordinators)
    coordinator = await world.coordinators.get(0)
    asked = AskedFor(60_000, abort_on_disconnect=True)
    beginning = begin_within_share(connection_of(world, begun), coordinator, asked)
    begun.leave(disconnections.left)
    txn_id = await beginning
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world_with(max_active_transactions_per_coordinator=1)
async def test_a_begin_whose_connection_closed_after_it_waited_for_room_is_aborted(
    world: World,
) -> None:
    disconnections, begun = await abort_of(world), BegunTransactions(world.coordinators)
    coordinator, first = await world.coordinators.get(0), await world.begin()
    asked = AskedFor(60_000, abort_on_disconnect=True)
    waiting = asyncio.ensure_future(
        begin_within_share(connection_of(world, begun), coordinator, asked)
    )
    await soon()
    await world.end(first, COMMIT)
    world.storage.holding = True
    await asyncio.sleep(0.2)
    waiting.cancel()  # as the tasks of a closed connection are
    begun.leave(disconnections.left)
    await soon()
    world.storage.release()
    await soon()
    assert waiting.cancelled()
    assert world.coordinators.status(TxnId(0, 1)) is TxnStatus.ABORTED


@in_world
async def test_the_broker_s_own_stop_aborts_nothing(world: World) -> None:
    txn_id, disconnections = await world.begin(), await abort_of(world)
    await disconnections.close()
    disconnections.left(begun_by(txn_id))
    await soon()
    assert world.coordinators.status(txn_id) is TxnStatus.OPEN


@in_world
async def test_a_coordinator_that_is_being_opened_again_is_asked_again(world: World) -> None:
    txn_id, disconnections = await world.begin(), await abort_of(world)
    coordinator = await world.coordinators.get(0)
    coordinator._fail(RuntimeError("its log failed"))
    disconnections.left(begun_by(txn_id))
    await soon()
    assert world.coordinators.serving(0) is None
    await asyncio.sleep(5)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_a_connection_forgets_those_that_others_have_ended(world: World) -> None:
    begun, left = BegunTransactions(world.coordinators), list[Left]()
    coordinator = await world.coordinators.get(0)
    for number in range(2500):
        beginning = coordinator.new_transaction(60_000, None)
        begun.begins(beginning, False)
        txn_id = await beginning
        if number % 2:
            await world.end(txn_id, COMMIT)
    assert len(begun) < 1800
    first = TxnId(0, 0)
    begun.ended(first)
    begun.leave(left.append)
    assert first not in left[0]
    assert len(begun) == 0


@in_world
async def test_a_transaction_whose_end_was_answered_is_not_aborted_again(world: World) -> None:
    txn_id, left = await world.begin(), list[Left]()
    begun: Any = BegunTransactions(world.coordinators)
    begun._asked[txn_id] = True
    added = AddedParticipants(world.coordinators)
    session: Any = SimpleNamespace(begun=begun, added=added, write=lambda data: None)
    on_transaction.ended(session, pb.CommandEndTxn(request_id=1), txn_id)
    begun.leave(left.append)
    assert left == []
    with pytest.raises(InvalidTxnStatus):
        await (await world.coordinators.get(0)).abort(await ended(world), "late")


async def ended(world: World) -> TxnId:
    txn_id = await world.begin()
    await world.end(txn_id, COMMIT)
    return txn_id


@in_world
async def test_a_connection_does_not_remember_participants_whose_transactions_others_end(
    world: World,
) -> None:
    added, live = AddedParticipants(world.coordinators), await world.begin_on(ORDERS)
    added.add(live, 1)
    for number in range(5000):
        added.add(TxnId(0, live.least + 1 + number), 1)
    assert len(added._added) <= 1000
    assert live in added._added
