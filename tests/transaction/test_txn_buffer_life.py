"""The transaction buffer over time: failed writes, snapshots, deleted ledgers, lost markers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock, patch

import pytest
from txn_world import (
    ABORT,
    COMMIT,
    ORDERS,
    World,
    ended,
    in_world,
    message,
    soon,
    told_to_nobody,
)

from managed_ledger.errors import ManagedLedgerError, StorageFull
from managed_ledger.position import Position
from pybroker.base.errors import InvalidTxnStatus, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.transaction import paced_visits
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.transactional_entries import SINCE
from pybroker.transaction.paced_visits import EVERY_S
from pybroker.transaction.txn_status import TxnAction, TxnStatus


async def skip_topic(world: World, txn_id: TxnId) -> None:
    """The coordinator will not tell the topic how the transaction ended."""
    transaction = (await world.coordinators.get(txn_id.most)).metadata(txn_id)
    assert transaction is not None
    transaction.partitions.clear()


def snapshot_position(buffer: LogOrderBuffer) -> Position:
    head = buffer._index.snapshots.head()
    assert head is not None
    return head.position


# -- failed


@in_world
async def test_a_failed_append_lets_what_was_durable_before_it_stand(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.start_send(buffer, txn_id, "b")
    world.storage.full = False
    assert [ongoing.txn_id for ongoing in buffer.ongoing()] == [txn_id]
    assert await world.read() == []
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_readers_are_told_when_a_failed_append_lets_them_go_on(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.start_send(buffer, txn_id, "a")
    assert world.stable_moves == [ORDERS]


@in_world
async def test_readers_are_told_once_of_a_transaction_s_appends(world: World) -> None:
    """The first append releases the messages before it; the next ones change nothing."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    first = await world.send(txn_id, "a")
    assert world.stable_moves == [ORDERS]
    await world.send(txn_id, "b")
    assert world.stable_moves == [ORDERS]
    assert buffer.has_open
    assert [each.first_position for each in buffer.ongoing()] == [first]


@in_world
async def test_one_whose_first_append_failed_keeps_its_place(world: World) -> None:
    """Its second append becomes durable after another transaction's first."""
    failing, other = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    appends: list[Callable[..., None]] = []

    def append(entries: list[bytes], counts: list[int], done: Any, tag: bytes) -> None:
        appends.append(done)
        if len(appends) > 1:
            real(entries, counts, done, tag)

    real = ledger.append
    with patch.object(ledger, "append", append):
        sent = [world.start_send(buffer, txn_id, "x") for txn_id in (failing, other, failing)]
        appends[0](None, StorageFull("no space left"))
    await asyncio.gather(*sent, return_exceptions=True)
    assert await world.read() == []
    await buffer.close()
    world = await world.crashed()
    assert await world.read() == []
    await world.end(failing, ABORT)
    assert await world.read() == []
    await world.end(other, COMMIT)
    assert await world.read() == ["x"]


@in_world
async def test_a_topic_whose_mark_was_not_written_is_marked_by_the_next_transaction(
    world: World,
) -> None:
    """Otherwise recovery would not look for transactions."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await world.start_send(buffer, txn_id, "a")
    await soon()
    world.storage.full = False
    await world.send(txn_id, "a")
    world = await world.crashed()
    assert await world.read() == []
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["a"]


@in_world
async def test_a_topic_is_marked_once_and_where_that_fails_it_is_tried_again_and_again(
    world: World,
) -> None:
    """It retries although the transaction has ended and everything else is durable."""
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    update, tries = ledger.update_properties, list[bool]()

    def fails_at_first(changes: Mapping[str, str | None]) -> asyncio.Future[None]:
        tries.append(len(tries) >= 5)
        if tries[-1]:
            return update(changes)
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(StorageFull("no space left"))
        return failed

    with patch.object(ledger, "update_properties", fails_at_first):
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "a")
        await world.end(txn_id, COMMIT)
        await asyncio.sleep(120)
        assert SINCE in ledger.properties
        txn_id = await world.begin_on(ORDERS)
        await world.send(txn_id, "b")
        await world.send(txn_id, "c")
        await world.end(txn_id, COMMIT)
        await asyncio.sleep(120)
    assert tries == [False] * 5 + [True]
    assert buffer._visits.due is None


@in_world
async def test_a_message_that_gets_there_though_the_mark_did_not_brings_it_along(
    world: World,
) -> None:
    """The message waits for a new ledger. There is room neither for that ledger nor for the mark.
    Without the mark, a crash would show the message to all readers.
    """
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    await world.send(None, "plain")
    txn_id, finish = await world.begin_on(ORDERS), world.storage._finish

    def finish_with_room(*arguments: Any) -> None:
        finish(*arguments)
        world.storage.full = False

    with patch.object(world.storage, "_finish", finish_with_room):
        rolling = asyncio.ensure_future(ledger.roll_over())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.storage.full = True
        sent = world.start_send(buffer, txn_id, "a")
        with pytest.raises(StorageFull):
            await rolling
        await sent
    world = await world.crashed()
    assert await world.read() == ["plain"]
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["plain", "a"]


@in_world
async def test_a_message_that_comes_before_the_failure_of_the_mark_is_heard_of_brings_it_along(
    world: World,
) -> None:
    """The first message and the mark fail. Within that turn there is room for one write, and then
    none.
    """
    buffer = await world.buffer()
    await world.send(None, "plain")
    txn_id, finish = await world.begin_on(ORDERS), world.storage._finish
    full, sent = iter((True, False)), list[asyncio.Future[Position]]()

    def finish_with_room_for_one(*arguments: Any) -> None:
        world.storage.full = next(full, True)
        finish(*arguments)

    def try_again(position: Position | None, error: Exception | None) -> None:
        assert isinstance(error, StorageFull)
        sent.append(world.start_send(buffer, txn_id, "a"))

    with patch.object(world.storage, "_finish", finish_with_room_for_one):
        buffer.append(txn_id, [message("lost")], [1], try_again)
        await soon()
    assert sent[0].result()
    world = await world.crashed()
    assert await world.read() == ["plain"]
    await world.end(txn_id, COMMIT)
    assert await world.read() == ["plain", "a"]


@in_world
async def test_a_marker_that_was_not_written_can_be_repeated(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    told: list[tuple[TxnId, TxnAction, Position | None]] = []
    buffer.on_ended = lambda *ended_: told.append(ended_)
    world.storage.full = True
    with pytest.raises(ManagedLedgerError):
        await ended(buffer.end(txn_id, COMMIT, -1))
    world.storage.full = False
    assert await world.read() == [] and told == []
    await ended(buffer.end(txn_id, COMMIT, -1))
    assert await world.read() == ["a"] and [each[:2] for each in told] == [(txn_id, COMMIT)]


@in_world
async def test_a_marker_is_no_message(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    position = await world.send(txn_id, "a")
    await world.end(txn_id, COMMIT)
    ledger = await world.ledger(ORDERS)
    assert [ledger.message_count(at) for at in (position, position.after)] == [1, 0]


@in_world
async def test_a_marker_that_nobody_waits_for_may_fail(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")

    async def leave() -> None:
        world.storage.full = True
        buffer.end(txn_id, COMMIT, -1)

    assert await told_to_nobody(leave) == []


@in_world
async def test_a_send_is_refused_while_the_marker_is_on_its_way(world: World) -> None:
    """It is refused even while the coordinator reports the transaction as open."""
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    world.storage.holding = True
    ending = buffer.end(txn_id, ABORT, -1)
    with pytest.raises(InvalidTxnStatus, match="being ended"):
        await world.start_send(buffer, txn_id, "late")
    world.storage.release()
    await ended(ending)
    assert await world.read() == []


# -- lost ends


@in_world
async def test_only_a_watermark_of_the_oldest_one_s_coordinator_asks_how_it_ended(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.end(await world.begin(), COMMIT)
    later = await world.begin_on(ORDERS)
    await world.send(later, "b")
    asked = Mock(wraps=world.coordinators)
    buffer._outcomes = asked
    most, least = later
    for ending, watermark in ((txn_id, least - 1), (TxnId(most + 1, 0), least + 5)):
        assert buffer.end(ending, COMMIT, watermark) is None
    assert asked.status.mock_calls == []
    for watermark in (least, least + 1):
        assert buffer.end(txn_id, COMMIT, watermark) is None
    assert asked.status.call_count == 2
    assert [each.txn_id for each in buffer.ongoing()] == [later]


@in_world
async def test_an_end_lost_before_a_crash_is_done_by_recovery(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.send(txn_id, "a")
    await skip_topic(world, txn_id)
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    await world.buffer()
    await soon()
    assert await world.read() == ["a"]


@in_world
async def test_an_end_lost_long_after_a_crash_is_asked_for(world: World) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.cursor("sub")  # keeps the first ledger
    await world.send(txn_id, "a")
    world = await world.crashed()
    await world.buffer()
    await asyncio.sleep(12)
    await skip_topic(world, txn_id)
    await world.end(txn_id, COMMIT)
    assert await world.read() == []
    await asyncio.sleep(6)
    assert await world.read() == ["a"]


@in_world
async def test_many_lost_ends_are_asked_for_some_at_a_time(world: World) -> None:
    txn_ids = [await world.begin_on(ORDERS) for _ in range(5)]
    for txn_id in txn_ids:
        await world.send(txn_id, "a")
        await skip_topic(world, txn_id)
    for txn_id in txn_ids:
        await world.end(txn_id, COMMIT)
    buffer = await world.buffer()
    assert buffer.open_count == 5
    left = []
    with patch.object(paced_visits, "A_TURN", 2):
        await asyncio.sleep(4.9)
        for _ in range(3):
            await asyncio.sleep(EVERY_S)
            left.append(buffer.open_count)
    assert left == [3, 1, 0]


@in_world
async def test_a_topic_whose_mark_was_not_written_is_marked_when_it_is_closed(world: World) -> None:
    buffer, ledger = await world.buffer(), await world.ledger(ORDERS)
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(StorageFull("no space left"))
    with patch.object(ledger, "update_properties", Mock(return_value=failed)):
        await world.send(await world.begin_on(ORDERS), "a")
    assert SINCE not in ledger.properties
    await buffer.close()
    assert SINCE in ledger.properties
    assert await (await world.crashed()).read() == []


@in_world
async def test_a_coordinator_that_recovers_pins_no_other_s_transaction(world: World) -> None:
    recovering, lost = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.send(recovering, "a")
    await world.send(lost, "b")
    buffer = await world.buffer()

    def status(txn_id: TxnId) -> TxnStatus:
        if txn_id == recovering:
            raise TransactionCoordinatorNotFound("it is recovering")
        return TxnStatus.ABORTED

    buffer._outcomes = Mock(status=status)
    await asyncio.sleep(6)
    assert [each.txn_id for each in buffer.ongoing()] == [recovering]


@in_world
async def test_a_marker_on_its_way_is_not_written_again(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    position = await world.send(txn_id, "a")
    world.storage.holding = True
    ending = buffer.end(txn_id, ABORT, -1)
    buffer._outcomes = Mock(status=lambda txn_id: TxnStatus.ABORTED)
    await asyncio.sleep(12)
    assert buffer.end(txn_id, ABORT, txn_id.least) is ending
    world.storage.release()
    await ended(ending)
    await soon()
    assert (await world.ledger(ORDERS)).last_confirmed == position.after


@in_world
async def test_a_closed_buffer_requests_no_more_outcomes(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    for _ in range(2):
        await buffer.close()
    buffer._outcomes = asked = Mock()
    await asyncio.sleep(20)
    assert asked.mock_calls == [] and buffer._visits.due is None


@in_world
async def test_an_idle_topic_is_left_alone_when_all_is_over(world: World) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.send(txn_id, "a")
    assert (visit := buffer._visits.due) is not None
    other = await world.begin_on(ORDERS)
    await world.send(other, "b")
    assert buffer._visits.due is visit
    await world.end(other, COMMIT)
    await world.end(txn_id, COMMIT)
    await asyncio.sleep(12)
    assert buffer._visits.due is None


@in_world
async def test_a_transaction_that_failed_with_its_marker_does_not_pin_the_topic(
    world: World,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    world.storage.holding = True
    sent = world.start_send(buffer, txn_id, "a")
    ending = buffer.end(txn_id, ABORT, 0)
    assert ending is not None
    await soon()
    world.storage.full, world.storage.holding = True, False
    world.storage.release()
    for failing in (sent, ending):
        with pytest.raises(ManagedLedgerError):
            await failing
    world.storage.full = False
    assert buffer.ongoing() == []
    assert buffer.end(txn_id, ABORT, 0) is None
    await world.send(None, "plain")
    assert await world.read() == ["plain"]


@in_world
async def test_a_marker_makes_sure_that_recovery_looks_for_it(world: World) -> None:
    """If no mark had been written before it, a crash would leave the marker to be delivered as an
    empty message.
    """
    ledger = await world.ledger(ORDERS)
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    with patch.object(ledger, "update_properties", side_effect=_fails):
        await world.start_send(buffer, txn_id, "a")
    assert await world.read() == []
    ending = buffer.end(txn_id, ABORT, 0)
    assert ending is not None
    await ending
    world = await world.crashed()
    assert await world.read() == []


def _fails(properties: object) -> "asyncio.Future[None]":
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(StorageFull("no space left"))
    return failed
