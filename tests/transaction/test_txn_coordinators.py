"""All coordinators of a broker: a failed one is opened again, a closed one serves nothing."""

import asyncio
import logging
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from txn_world import (
    ABORT,
    COMMIT,
    World,
    in_world,
    soon,
    told_to_nobody,
)

from managed_ledger.errors import StorageFull
from managed_ledger.storage.operations import Append
from pybroker.base.errors import AuthorizationError, TransactionCoordinatorNotFound
from pybroker.server.transactions.transaction_owner import check_owner
from pybroker.transaction.coordinator.coordinator import TransactionCoordinator
from pybroker.transaction.txn_status import TxnStatus


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@in_world
async def test_a_log_of_which_several_writes_fail_is_opened_again_once(world: World) -> None:
    coordinator = await world.coordinators.get(0)
    assert world.coordinators.serving(0) is coordinator
    assert world.coordinators.serving(1) is None
    world.storage.holding = True
    beginning = []
    for _ in range(3):
        beginning.append(coordinator.new_transaction(1000, None))
        await soon()
    world.storage.full = True
    world.storage.release()
    await asyncio.wait(beginning)
    assert world.coordinators.serving(0) is None
    world.storage.full = False
    await asyncio.sleep(2)
    again = await world.coordinators.get(0)
    assert again is not coordinator and world.coordinators.served() == [again]
    await world.begin()


@in_world
async def test_what_a_failed_one_was_about_to_write_ends_before_its_log_is_opened_again(
    world: World,
) -> None:
    """Otherwise an outdated snapshot could follow the next coordinator's writes. A failed opening
    is retried.
    """
    coordinator = await world.coordinators.get(0)
    snapshot = coordinator._tasks.start(asyncio.Event().wait(), "snapshot")
    opened: list[tuple[float, bool]] = []
    opening = world.coordinators._open

    def refuse(coordinator_id: int) -> Any:
        opened.append((world.clock.monotonic_s(), snapshot.done()))
        if len(opened) < 4:
            raise StorageFull("no space left")
        return opening(coordinator_id)

    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.begin()
    world.storage.full = False
    with patch.object(world.coordinators, "_open", refuse):
        await asyncio.sleep(10)
    times, ended = zip(*opened, strict=True)
    assert ended == (True,) * 4
    assert [round(later - at, 1) for at, later in pairwise(times)] == [1.0] * 3
    assert await world.coordinators.get(0) is not coordinator


@in_world
async def test_a_log_that_opens_but_takes_nothing_is_opened_once_a_second(world: World) -> None:
    """As on a nearly full disk: the writes of an opening would take the remaining room."""
    txn_id = await world.begin(timeout_ms=1000)
    opened: list[int] = []
    opening = world.coordinators._open

    def count(coordinator_id: int) -> Any:
        opened.append(coordinator_id)
        return opening(coordinator_id)

    commits = world.storage._commits
    with (
        patch.object(world.coordinators, "_open", count),
        patch.object(commits, "_room_is_low", lambda: True),
        patch.object(commits, "_must_wait", lambda operation: isinstance(operation, Append)),
    ):
        await asyncio.sleep(11.5)
    assert len(opened) == 11
    await asyncio.sleep(2)
    assert world.coordinators.status(txn_id) is TxnStatus.ABORTED


@in_world
async def test_one_that_fails_in_the_turn_in_which_it_is_open_again_is_opened_once_more(
    world: World,
) -> None:
    """The task that opened it learns of its success when another task is already replacing it."""
    coordinators = world.coordinators
    first, opening = await coordinators.get(0), coordinators._open
    opened: list[TransactionCoordinator] = []

    async def open_and_fail(coordinator_id: int) -> TransactionCoordinator:
        opened.append(await opening(coordinator_id))
        if len(opened) == 1:
            coordinators._reopen(opened[0])
        return opened[-1]

    with patch.object(coordinators, "_open", open_and_fail):
        coordinators._reopen(first)
        await asyncio.sleep(1.5)
        with pytest.raises(TransactionCoordinatorNotFound):
            await coordinators.get(0)
        await asyncio.sleep(10)
    assert opened[1:] == coordinators.served() == [await coordinators.get(0)]
    assert len(coordinators._tasks) == 0, "nobody tries to open it any more"


@in_world
async def test_whose_a_transaction_is_is_known_while_its_coordinator_is_opened_again(
    world: World,
) -> None:
    """Otherwise any principal could write into it during that second."""
    coordinators = world.coordinators
    txn_id = await (await coordinators.get(0)).new_transaction(60_000, "alice")
    world.storage.full = True
    with pytest.raises(TransactionCoordinatorNotFound):
        await world.begin()
    assert coordinators.serving(0) is None
    services = SimpleNamespace(coordinators=coordinators)
    alice, bob = (SimpleNamespace(principal=p, services=services) for p in ("alice", "bob"))
    for _ in range(2):
        check_owner(cast(Any, alice), txn_id)
        with pytest.raises(AuthorizationError):
            check_owner(cast(Any, bob), txn_id)
        world.storage.full = False
        await asyncio.sleep(2)
        assert coordinators.serving(0) is not None


@pytest.mark.parametrize("failed", [False, True])
def test_nothing_is_served_after_closing(failed: bool) -> None:
    @in_world
    async def life(world: World) -> None:
        await world.begin()
        if failed:
            world.storage.full = True
            with pytest.raises(TransactionCoordinatorNotFound):
                await world.begin()
        await world.coordinators.close()
        world.storage.full = False
        assert len(world.coordinators._tasks) == 0
        await asyncio.sleep(3)
        assert world.coordinators.served() == []
        for coordinator_id in (0, 1):
            with pytest.raises(TransactionCoordinatorNotFound):
                await world.coordinators.get(coordinator_id)

    life()


@in_world
async def test_one_that_fails_while_all_are_closed_is_not_opened_again(world: World) -> None:
    world.coordinators.count = 2
    first, second = [await world.coordinators.get(number) for number in range(2)]
    world.storage.holding = True
    begun = [each.new_transaction(1000, None) for each in (first, second)]
    await soon()
    closing = asyncio.ensure_future(world.coordinators.close())
    await soon()
    world.storage.full = True
    world.storage.release()
    await asyncio.wait([closing, *begun])
    world.storage.full = False
    await asyncio.sleep(3)
    assert len(world.coordinators._tasks) == 0
    assert world.coordinators.served() == []


@in_world
async def test_all_are_closed_though_one_cannot_close_well(world: World) -> None:
    world.coordinators.count = 2
    first, second = [await world.coordinators.get(number) for number in range(2)]
    retrying = second._tasks.start(asyncio.Event().wait(), "end again")
    with (
        patch.object(first._log, "close", side_effect=StorageFull("full")),
        pytest.raises(StorageFull),
    ):
        await world.coordinators.close()
    assert retrying.cancelled()
    assert world.coordinators.served() == []


def test_closing_while_an_end_is_written_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    @in_world
    async def life(world: World) -> None:
        txn_id = await world.begin()
        coordinator = await world.coordinators.get(0)
        world.storage.holding = True
        ending = coordinator.end(txn_id, COMMIT, None)
        await soon()
        closing = asyncio.ensure_future(world.coordinators.close())
        await soon()
        world.storage.release()
        await closing
        assert isinstance(ending.exception(), TransactionCoordinatorNotFound)

    caplog.set_level(logging.ERROR)
    life()
    assert caplog.records == []


@in_world
async def test_a_log_failure_after_its_consumer_left_harms_no_other(world: World) -> None:
    txn_id = await world.begin()

    async def leave() -> None:
        coordinator = await world.coordinators.get(0)
        world.storage.full = True
        coordinator.new_transaction(1000, None)
        coordinator.end(txn_id, COMMIT, None)
        coordinator.end(txn_id, ABORT, None)

    assert await told_to_nobody(leave) == []
