"""Deduplication of messages kept aside: sequence ids that an abort gives back, and copies of
waiting messages.
"""

import asyncio
from collections.abc import Callable, Container, Coroutine
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from aside_world import ABORT, COMMIT, ORDERS, AsideWorld, soon
from virtual_loop import run_virtually

from managed_ledger.errors import StorageFull
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Copy, Deduplication, Duplicate, New
from pybroker.broker.deduplication.snapshot import forget, undecided
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.topic_transactions import TopicTransactions
from pybroker.transaction.buffer.transactional_entries import with_sent
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry


class Run:
    """One message of a producer."""

    message_counts: ClassVar = [1]

    def __init__(self, sequence_id: int, txn_id: TxnId | None, chunk: int, chunks: int) -> None:
        self.txn_id, self._id = txn_id, sequence_id
        self.chunked = chunks > 1
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=0)
        if self.chunked:
            metadata.chunk_id, metadata.num_chunks_from_msg = chunk, chunks
        self.entries = [build_entry(metadata, f"{sequence_id}".encode())]

    def sequence_ids(self) -> list[int]:
        return [self._id]

    highest_sequence_ids = sequence_ids


class DeduplicatedWorld(AsideWorld):
    deduplication: Deduplication

    async def undecided(self, ledger: ManagedLedger) -> Container[TxnId]:
        return await undecided(self.storage.metadata, ledger.name)

    async def recovered(self, topic: str, buffer: TopicTransactions) -> None:
        ledger = await self.ledger(topic)
        self.deduplication = Deduplication(ledger, self.storage.metadata, 100, 1000)
        await self.deduplication.recover(buffer)
        buffer.deduplicated_by(self.deduplication)
        buffer.on_ended = lambda txn_id, action, first: self.deduplication.ended(
            txn_id, action is ABORT
        )

    async def publish(
        self, sequence_id: int, txn_id: TxnId | None = None, chunk: int = 0, chunks: int = 1
    ) -> str:
        """ "new", "duplicate" or "copy"; durable when it returns."""
        buffer = await self.buffer()
        run = Run(sequence_id, txn_id, chunk, chunks)
        (piece,) = self.deduplication.pieces("p", run)
        if isinstance(piece, Duplicate):
            return "duplicate"
        if isinstance(piece, Copy):
            return "copy"
        assert isinstance(piece, New), piece
        sent = piece.taken.sent_by("p")
        taken: list[Position | None] = []

        def done(position: Position | None, error: Exception | None) -> None:
            taken.append(position)

        noting = self.deduplication.noting(piece.taken, done)
        if txn_id is None:
            self.log_of(buffer).append(run.entries, [1], noting, with_sent(sent))
        else:
            buffer.append(txn_id, run.entries, [1], noting, sent)
        await soon()
        assert taken[0] is not None
        return "new"

    async def snapshot(self) -> None:
        await self.deduplication.snapshot()


class SwitchedOff(DeduplicatedWorld):
    """Deduplication is off."""

    async def recovered(self, topic: str, buffer: TopicTransactions) -> None:
        await forget(self.storage.metadata, (await self.ledger(topic)).name)


async def over(world: AsideWorld, then: type[DeduplicatedWorld]) -> DeduplicatedWorld:
    """The world after a reload, as `then`: deduplicated or not."""
    await world.stopped()
    again = await then(world.storage.durable_copy()).start()
    await again.buffer()
    return again


Test = Callable[[DeduplicatedWorld], Coroutine[Any, Any, None]]


def deduplicated(test: Test) -> Callable[[], None]:
    async def life() -> None:
        world = await DeduplicatedWorld().start()
        await world.buffer()
        await test(world)

    def wrapped() -> None:
        run_virtually(life())

    wrapped.__name__ = test.__name__
    return wrapped


@deduplicated
async def test_what_waits_aside_is_neither_new_nor_a_duplicate(world: DeduplicatedWorld) -> None:
    txn_id, other = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    assert await world.publish(5, txn_id) == "new"
    for _ in range(2):
        assert await world.publish(5, txn_id) == "duplicate"
        assert await world.publish(5, other) == "copy"
        assert await world.publish(5) == "copy"
        world = await world.crashed()
        await world.buffer()


@deduplicated
async def test_a_commit_makes_it_a_duplicate_for_good(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.end(txn_id, COMMIT)
    assert await world.publish(5) == "duplicate"
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "duplicate"
    assert await world.read() == ["5"]


@deduplicated
async def test_an_abort_gives_it_back_for_good(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.publish(6)
    await world.end(txn_id, ABORT)
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(6) == "duplicate"
    assert await world.publish(5) == "new"
    assert await world.publish(5) == "duplicate"
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "duplicate"
    assert await world.read() == ["6", "5"]


@deduplicated
async def test_an_abort_that_could_not_be_written_gives_it_back_when_it_comes_again(
    world: DeduplicatedWorld,
) -> None:
    txn_id, buffer = await world.begin_on(ORDERS), await world.buffer()
    await world.publish(5, txn_id)
    await world.publish(6)

    def no_marker(_: object, __: TxnId, ___: object, done: Callable[..., None], *____: Any) -> None:
        asyncio.get_running_loop().call_later(0.01, done, StorageFull("no space left"))

    with patch.object(LogOrderBuffer, "end_copy", no_marker):  # the ids given back are durable
        await fails(buffer.end(txn_id, ABORT, -1))
    assert await world.publish(5) == "copy"
    world.storage.full = True
    await fails(buffer.end(txn_id, ABORT, -1))
    world.storage.full = False
    await world.end(txn_id, ABORT)
    assert not buffer.has_open
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "new"
    assert await world.publish(5) == await world.publish(6) == "duplicate"
    assert await world.read() == ["6", "5"]


async def fails(ending: "asyncio.Future[Any] | None") -> None:
    assert ending is not None
    with pytest.raises(StorageFull):
        await asyncio.shield(ending)


@deduplicated
async def test_an_abort_behind_a_snapshot_gives_it_back(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.publish(6)
    await world.snapshot()
    await world.end(txn_id, ABORT)
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "new"


@deduplicated
async def test_what_was_sent_again_after_an_abort_stays_over_a_lost_deletion(
    world: DeduplicatedWorld,
) -> None:
    txn_id, again = await world.begin_on(ORDERS), await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.end(txn_id, ABORT)
    assert await world.publish(5, again) == "new"
    world = await world.crashed()  # the side log still holds the first transaction, which has ended
    await world.buffer()
    assert await world.publish(5) == "copy"
    await world.end(again, COMMIT)
    assert await world.publish(5) == "duplicate"
    assert await world.read() == ["5"]


@deduplicated
async def test_later_plain_messages_are_not_forgotten_for_what_waits(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.publish(6)
    await world.publish(7)
    world = await world.crashed()
    await world.buffer()
    assert [await world.publish(number) for number in (5, 6, 7, 8)] == [
        "copy",
        "duplicate",
        "duplicate",
        "new",
    ]


@deduplicated
async def test_what_was_refused_may_still_come_though_only_the_side_log_tells(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(4)
    world.deduplication.refused("p", 5, 5)
    await world.publish(6, txn_id)
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "new", "it was never stored"
    for _ in range(2):  # the second time, the id comes from a snapshot
        await world.snapshot()
        world = await world.crashed()
        await world.buffer()
        assert await world.publish(5) == "duplicate"
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "duplicate"
    assert await world.read() == ["4", "5", "6"]


@deduplicated
async def test_what_was_refused_may_still_come_after_the_copy(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.deduplication.refused("p", 5, 5)
    await world.publish(6, txn_id)
    await world.end(txn_id, COMMIT)
    world = await world.restarted()
    await world.buffer()
    assert await world.publish(6) == "duplicate"
    assert await world.publish(5) == "new"


@deduplicated
async def test_what_came_again_while_others_waited_stays_though_they_are_copied_without(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.deduplication.refused("p", 5, 5)
    await world.publish(6, txn_id)
    assert await world.publish(5) == "new"
    off = await over(world, SwitchedOff)
    await off.end(txn_id, COMMIT)
    world = await over(off, DeduplicatedWorld)
    assert await world.publish(5) == "duplicate"
    assert await world.read() == ["5", "6"]


@deduplicated
async def test_what_was_refused_may_still_come_though_the_copy_was_made_without(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    world.deduplication.refused("p", 5, 5)
    await world.publish(6, txn_id)
    off = await over(world, SwitchedOff)
    await off.end(txn_id, COMMIT)
    world = await over(off, DeduplicatedWorld)
    assert await world.publish(6) == "duplicate"
    assert await world.publish(5) == "new"


@deduplicated
async def test_what_waits_while_nobody_compares_is_known_again_afterwards(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    world = await over(await over(world, SwitchedOff), DeduplicatedWorld)
    assert await world.publish(5, txn_id) == "duplicate"
    assert await world.publish(5) == "copy"
    await world.end(txn_id, ABORT)
    assert await world.publish(5) == "new"


@deduplicated
async def test_a_message_in_chunks_waits_as_a_whole(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    assert await world.publish(5, txn_id, 0, 3) == "new"
    assert await world.publish(5, txn_id, 1, 3) == "new"
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5, txn_id, 1, 3) == "duplicate"
    assert await world.publish(5, txn_id, 2, 3) == "new"
    assert await world.publish(5) == "copy"
    await world.end(txn_id, COMMIT)
    world = await world.crashed()
    await world.buffer()
    assert await world.publish(5) == "duplicate"
    assert len(await world.read()) == 3


@deduplicated
async def test_nothing_that_an_abort_tells_deduplication_is_read(world: DeduplicatedWorld) -> None:
    txn_id = await world.begin_on(ORDERS)
    await world.publish(5, txn_id)
    await world.publish(7, txn_id)
    await world.end(txn_id, ABORT)
    assert await world.read() == []
    assert (await world.buffer()).last_visible_position().entry_id == -1
    assert await (await world.crashed()).read() == []


@deduplicated
async def test_an_abort_gives_back_a_message_whose_chunks_were_not_complete(
    world: DeduplicatedWorld,
) -> None:
    txn_id = await world.begin_on(ORDERS)
    assert await world.publish(5, txn_id, chunk=0, chunks=2) == "new"
    assert await world.publish(6) == "new"
    await world.end(txn_id, ABORT)
    world = await world.restarted()
    await world.buffer()
    assert await world.publish(5) == "new"
    assert await world.publish(6) == "duplicate"


class InLogOrder(DeduplicatedWorld):
    in_commit_order = False


@pytest.mark.parametrize(("action", "again"), [(ABORT, "new"), (COMMIT, "duplicate")])
def test_deduplication_learns_the_end_of_a_transaction_that_was_trimmed_before(
    action: TxnAction, again: str
) -> None:
    """Even if nobody knew the outcome when the topic was loaded after a crash."""

    async def test() -> None:
        world = await InLogOrder().start()
        buffer, txn_id = await world.buffer(), await world.begin_on(ORDERS)
        await world.publish(0, txn_id)
        ledger = await world.ledger(ORDERS)
        await ledger.roll_over()
        await world.publish(1)
        await world.snapshot()
        await buffer._log.write_snapshot()
        await ledger.trim()
        assert ledger.first_position > Position(0, 0)
        world = InLogOrder(world.storage.durable_copy())
        await world.buffer()
        await world.start()
        await world.end(txn_id, action)
        assert await world.publish(0) == again

    run_virtually(test())
