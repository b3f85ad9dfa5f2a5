"""A world whose topics keep transactions aside until they commit."""

from txn_world import ABORT, COMMIT, ORDERS, World, soon

__all__ = ["ABORT", "COMMIT", "ORDERS", "AsideWorld", "in_aside_world", "side_entries", "soon"]

from collections.abc import Callable, Container, Coroutine
from functools import partial
from typing import Any

from virtual_loop import run_virtually

from managed_ledger.ledger import ManagedLedger
from pybroker.base.names import TopicName, TxnId, side_log
from pybroker.transaction.buffer.topic_transactions import TopicTransactions


class AsideWorld(World):
    in_commit_order = True

    async def buffer(self, topic: str = ORDERS) -> TopicTransactions:  # type: ignore[override]
        buffers: dict[str, Any] = self.buffers
        async with self._loading:
            if topic not in buffers:
                ledger = await self.ledger(topic)
                buffers[topic] = await TopicTransactions.recover(
                    ledger,
                    self.factory,
                    self.storage.metadata,
                    self.coordinators,
                    self.clock,
                    self.config,
                    lambda: self.stable_moves.append(topic),
                    partial(self.undecided, ledger),
                )
                await self.recovered(topic, buffers[topic])
                buffers[topic].loaded()
                buffers[topic].in_commit_order = self.in_commit_order
            buffer: TopicTransactions = buffers[topic]
            return buffer

    async def undecided(self, ledger: ManagedLedger) -> Container[TxnId]:
        """The transactions whose ends deduplication does not know."""
        return ()

    async def recovered(self, topic: str, buffer: TopicTransactions) -> None:
        """Deduplication's part of recovery, if it is on."""

    def log_of(self, buffer: Any) -> ManagedLedger:
        ledger: ManagedLedger = buffer._log._ledger
        return ledger

    async def side_ledger(self, topic: str = ORDERS) -> ManagedLedger:
        return await self.factory.open(side_log(TopicName.parse(topic).ledger_name))


class ChangingWorld(AsideWorld):
    """The policy changes with every transaction."""

    async def add(self, txn_id: TxnId, *topics: str) -> None:
        await super().add(txn_id, *topics)
        self.in_commit_order = not self.in_commit_order
        for topic in topics:
            (await self.buffer(topic)).in_commit_order = self.in_commit_order


async def side_entries(world: AsideWorld) -> int:
    """The number of entries of the side log that have not been deleted."""
    ledger = await world.side_ledger()
    (cursor,) = ledger.cursors.values()
    return cursor.backlog(ledger.last_confirmed)


Test = Callable[[AsideWorld], Coroutine[Any, Any, None]]


def in_aside_world(test: Test, **settings: Any) -> Callable[[], None]:
    async def life() -> None:
        await test(await AsideWorld(**settings).start())

    def wrapped() -> None:
        run_virtually(life())

    wrapped.__name__ = test.__name__
    return wrapped
