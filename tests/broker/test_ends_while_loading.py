"""Transactions that end while their topic is being loaded: deduplication learns of each end.

Loading ends transactions that were left open. Their markers become durable at any time, also after
deduplication has read the log.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from deduplication_world import Run, entry_of, one
from topics_world import ORDERS, World, run

from managed_ledger.ledger import ManagedLedger
from managed_ledger.storage.backend import EntryRun
from pybroker.base.names import TxnId
from pybroker.broker.deduplication import Deduplication, Duplicate, New
from pybroker.broker.persistent.topic import Topic
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.transaction.buffer.topic_transactions import TopicTransactions
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire.frames import SendRun

T1 = TxnId(0, 1)
ENDED = {TxnStatus.COMMITTED: Duplicate, TxnStatus.ABORTED: New}


class HeldMarkers:
    """Markers reach the log only when `durable` is awaited."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._held: list[tuple[Callable[[], object], asyncio.Future[None]]] = []
        append = ManagedLedger.append

        def late(
            ledger: ManagedLedger, entries: Any, counts: Any, done: Any, tag: bytes = b""
        ) -> bool:
            if list(counts) != [0]:
                return append(ledger, entries, counts, done, tag)
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def tell(*outcome: Any) -> None:
                done(*outcome)
                told.set_result(None)

            self._held.append((lambda: append(ledger, entries, counts, tell, tag), told))
            return False

        monkeypatch.setattr(ManagedLedger, "append", late)

    async def durable(self) -> None:
        while self._held:
            write, told = self._held.pop()
            write()
            await told


async def left_open(world: World) -> None:
    """The topic has a message of T1, and is not loaded."""
    topic = await world.topic()
    stored: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    sent = SendRun(1, T1, message_counts=[1], entries=[entry_of(one(7), "p", T1)])
    producer = await world.producer(topic)
    topic.publish(producer, sent, lambda position, error: stored.set_result(error))
    assert await stored is None
    await world.topics.unload(ORDERS)


def answer(topic: Topic) -> object:
    """What deduplication says of the message when it comes again, outside of a transaction."""
    assert topic.deduplication is not None
    (piece,) = topic.deduplication.pieces("p", Run([one(7)], None))
    return type(piece)


@pytest.mark.parametrize("status", ENDED)
def test_an_end_while_the_first_snapshot_is_written_is_known(
    monkeypatch: pytest.MonkeyPatch, status: TxnStatus
) -> None:
    async def scenario(world: World) -> None:
        await left_open(world)
        held, catch_up = HeldMarkers(monkeypatch), Deduplication._catch_up

        async def slowly(deduplication: Deduplication) -> None:
            await catch_up(deduplication)
            await held.durable()

        monkeypatch.setattr(ManagedLedger, "is_shared", True)  # as in a cluster
        monkeypatch.setattr(Deduplication, "_catch_up", slowly)
        await world.topics.policies.set_for_namespace("public/default", DEDUPLICATION, True)
        world.outcomes.ended[T1] = status
        assert answer(await world.topic()) is ENDED[status]

    run(scenario)


@pytest.mark.parametrize("status", ENDED)
@pytest.mark.parametrize("reading", [1, 2])
def test_an_end_while_the_side_log_is_read_is_known(
    monkeypatch: pytest.MonkeyPatch, status: TxnStatus, reading: int
) -> None:
    """It is read before the topic's own log, and once more after it."""

    async def scenario(world: World) -> None:
        await left_open(world)
        held, read_aside, count = HeldMarkers(monkeypatch), TopicTransactions.read_aside, 0

        async def slowly(transactions: TopicTransactions) -> AsyncIterator[EntryRun]:
            nonlocal count
            count += 1
            if count == reading:
                await held.durable()
            async for each in read_aside(transactions):
                yield each

        monkeypatch.setattr(TopicTransactions, "read_aside", slowly)
        await world.topics.policies.set_for_namespace("public/default", DEDUPLICATION, True)
        world.outcomes.ended[T1] = status
        assert answer(await world.topic()) is ENDED[status]

    run(scenario)
