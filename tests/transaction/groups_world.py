"""Groups of transactions of several coordinators, for the tests of their commits."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any
from unittest.mock import patch

from txn_world import (
    COPIES,
    ORDERS,
    World,
)

from managed_ledger.errors import StorageFull
from pybroker.base.names import TxnId
from pybroker.transaction.txn_status import TxnStatus

OPEN, COMMITTED, ABORTED = TxnStatus.OPEN, TxnStatus.COMMITTED, TxnStatus.ABORTED
TIMEOUT_MS = 60_000
TOPICS = (ORDERS, COPIES, ORDERS)


async def begin(world: World, coordinator_id: int, owner: str | None = None) -> TxnId:
    coordinator = await world.coordinators.get(coordinator_id)
    return await coordinator.new_transaction(TIMEOUT_MS, owner)


async def begun(world: World) -> list[TxnId]:
    """The leader first, then two members of other coordinators. Each has sent a message."""
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
    """Fails the coordinator's log. The coordinator is opened again after a second."""
    coordinator = world.coordinators.serving(coordinator_id)
    assert coordinator is not None
    coordinator._fail(StorageFull("no space left on device"))


async def decided_and_not_told(world: World) -> list[TxnId]:
    """The leader has decided, and its members have not heard. It has no participants: only its
    members keep it alive.
    """

    async def never(leader: TxnId, members: Sequence[TxnId]) -> None:
        await asyncio.Event().wait()

    txn_ids = [await begin(world, number) for number in range(3)]
    (await world.coordinators.get(0)).group_ends.follow = never
    with patch.object(world.coordinators.groups, "settle", lambda _: None):
        asyncio.ensure_future(commit(world, txn_ids)).add_done_callback(lambda _: None)
        await asyncio.sleep(1)
    assert statuses(world, txn_ids) == [TxnStatus.COMMITTING, OPEN, OPEN]
    return txn_ids
