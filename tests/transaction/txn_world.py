"""A broker's transactions without a broker: coordinators, topics' buffers, subscriptions' acks.

Time is virtual: waiting takes none. `World.crashed()` is what the next process finds after a kill:
everything durable by then and nothing else.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Self

from virtual_loop import LoopClock, run_virtually

from managed_ledger.cursor import ManagedCursor
from managed_ledger.errors import StorageFull
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledger_index import LedgerIndex
from managed_ledger.position import Position
from managed_ledger.storage.group_commit import Group
from managed_ledger.storage.memory import MemoryBackend
from managed_ledger.storage.operations import Operation
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName, TxnId, pending_ack_log
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.coordinator.coordinators import Coordinators
from pybroker.transaction.coordinator.ends.participants import TransactionEnd
from pybroker.transaction.pending_acks.pending_ack import PendingAcks
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry, payload_of

COMMIT, ABORT = TxnAction.COMMIT, TxnAction.ABORT
ORDERS = "persistent://public/default/orders"
COPIES = "persistent://public/default/copies"


class StorageToBreak(MemoryBackend):
    """`full`: writes fail. `holding`: they stay in flight until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.holding = False
        self._held: list[tuple[Group, asyncio.Future[None]]] = []
        self._durable: list[Operation] = []

    def _write(self, group: Group) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.holding:
            self._held.append((group, done))
        else:
            self._finish(group, done)
        return done

    def _finish(self, group: Group, done: asyncio.Future[None]) -> None:
        if self.full:
            done.set_exception(StorageFull("no space left on device"))
        else:
            self._durable += group.operations
            done.set_result(None)

    def release(self) -> None:
        self.holding = False
        held, self._held = self._held, []
        for group, done in held:
            self._finish(group, done)

    def _new(self) -> "StorageToBreak":
        return StorageToBreak()

    def durable_copy(self) -> "StorageToBreak":
        copy = self._new()
        for operation in self._durable:
            copy._state.apply(operation)
            copy._state.withdraw(operation)  # nothing is queued
        copy._state.next_ledger_id = self._state.next_ledger_id
        copy._durable = list(self._durable)
        return copy

    def forget_keys(self, part: str) -> None:
        table = self._state.table
        table.load(item for item in table.items() if part not in item[0])


def cursor_over(entries: int) -> ManagedCursor:
    """A cursor over ledger 0, to which nothing more is written."""
    index = LedgerIndex([], 0)
    index.grow(entries, entries)
    return ManagedCursor("sub", index, Position(0, -1), {})


def message(payload: str) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
    return build_entry(metadata, payload.encode())


class World:
    def __init__(self, storage: StorageToBreak | None = None, **settings: Any) -> None:
        self.storage = storage or StorageToBreak()
        self.settings = settings
        self.config = replace(BrokerConfig(), **settings)
        self.clock = LoopClock()
        self.factory = ManagedLedgerFactory(self.storage, self.clock)
        self.coordinators = Coordinators(
            self.factory, self.storage.metadata, self.clock, self.config
        )
        self.buffers: dict[str, LogOrderBuffer] = {}
        self.pending: dict[tuple[str, str], PendingAcks] = {}
        self._loading = asyncio.Lock()
        self.stable_moves: list[str] = []
        # Called before a participant ends a transaction; may raise or wait.
        self.before_end: Callable[[str], Coroutine[Any, Any, None]] = nothing

    async def start(self) -> Self:
        await self.coordinators.recover_all(self)
        return self

    async def crashed(self) -> Self:
        return await type(self)(self.storage.durable_copy(), **self.settings).start()

    async def restarted(self) -> Self:
        await self.stopped()
        return await self.crashed()

    async def stopped(self) -> None:
        """Stops everything. Later writes are lost."""
        await self.coordinators.close()
        for buffer in self.buffers.values():
            await buffer.close()
        for pending in self.pending.values():
            await pending.close()
        await self.factory.close()

    # topics and subscriptions

    async def ledger(self, topic: str) -> ManagedLedger:
        return await self.factory.open(TopicName.parse(topic).ledger_name)

    async def buffer(self, topic: str = ORDERS) -> LogOrderBuffer:
        async with self._loading:
            if topic not in self.buffers:
                self.buffers[topic] = await LogOrderBuffer.recover(
                    await self.ledger(topic),
                    self.storage.metadata,
                    self.coordinators,
                    self.clock,
                    self.config,
                    lambda: self.stable_moves.append(topic),
                )
            return self.buffers[topic]

    async def cursor(self, subscription: str, topic: str = ORDERS) -> ManagedCursor:
        ledger = await self.ledger(topic)
        return await ledger.open_cursor(subscription, ledger.first_position.before)

    async def acks(self, subscription: str = "sub", topic: str = ORDERS) -> PendingAcks:
        async with self._loading:
            if (topic, subscription) not in self.pending:
                self.pending[topic, subscription] = await PendingAcks.open(
                    self.factory,
                    TopicName.parse(topic),
                    await self.cursor(subscription, topic),
                    self.coordinators,
                    self.config,
                )
            return self.pending[topic, subscription]

    # Participants

    def end_on_partition(
        self, end: TransactionEnd, topic: str, not_later: bool = False
    ) -> Awaitable[None] | None:
        if not not_later:
            return self._end_on_partition(end, topic)
        if (buffer := self.buffers.get(topic)) is None or self.before_end is not nothing:
            raise WouldWait
        return buffer.end(*end, not_later)

    def end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str, not_later: bool = False
    ) -> Awaitable[None] | None:
        if not not_later:
            return self._end_on_subscription(end, topic, subscription)
        if (acks := self.pending.get((topic, subscription))) is None:
            raise WouldWait
        if self.before_end is not nothing:
            raise WouldWait
        return acks.end(end.txn_id, end.action, not_later)

    async def _end_on_partition(self, end: TransactionEnd, topic: str) -> None:
        await self.before_end(topic)
        if self.factory.exists(TopicName.parse(topic).ledger_name):
            await ended((await self.buffer(topic)).end(*end))

    async def _end_on_subscription(
        self, end: TransactionEnd, topic: str, subscription: str
    ) -> None:
        await self.before_end(f"{topic}/{subscription}")
        if self.factory.exists(pending_ack_log(TopicName.parse(topic), subscription)):
            await ended((await self.acks(subscription, topic)).end(end.txn_id, end.action))

    # What clients do

    async def begin(self, timeout_ms: int = 60_000) -> TxnId:
        return await (await self.coordinators.get(0)).new_transaction(timeout_ms, None)

    async def begin_on(self, *topics: str) -> TxnId:
        txn_id = await self.begin()
        await self.add(txn_id, *topics)
        return txn_id

    async def begin_acking(self, subscription: str = "sub") -> TxnId:
        txn_id = await self.begin()
        await self.add_subscription(txn_id, subscription)
        return txn_id

    async def add(self, txn_id: TxnId, *topics: str) -> None:
        await (await self.coordinators.get(0)).add_partitions(txn_id, list(topics), None)

    async def add_subscription(self, txn_id: TxnId, subscription: str = "sub") -> None:
        coordinator = await self.coordinators.get(0)
        await coordinator.add_subscriptions(txn_id, [(ORDERS, subscription)], None)

    async def end(self, txn_id: TxnId, action: TxnAction) -> None:
        await (await self.coordinators.get(txn_id.most)).end(txn_id, action, None)

    async def send(self, txn_id: TxnId | None, *payloads: str, topic: str = ORDERS) -> Position:
        """Raises the error with which the append was refused."""
        return await self.start_send(await self.buffer(topic), txn_id, *payloads)

    def start_send(
        self, buffer: LogOrderBuffer, txn_id: TxnId | None, *payloads: str
    ) -> asyncio.Future[Position]:
        sent: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

        def done(position: Position | None, error: Exception | None) -> None:
            if sent.cancelled():
                return
            if position is not None:
                sent.set_result(position)
            else:
                sent.set_exception(error or AssertionError("neither position nor error"))

        entries, counts = [message(text) for text in payloads], [1] * len(payloads)
        if txn_id is None:
            self.log_of(buffer).append(entries, counts, done)
        else:
            buffer.append(txn_id, entries, counts, done)
        return sent

    def log_of(self, buffer: LogOrderBuffer) -> ManagedLedger:
        return buffer._ledger

    async def read(self, topic: str = ORDERS) -> list[str]:
        """What a new consumer from the beginning receives."""
        buffer, ledger = await self.buffer(topic), await self.ledger(topic)
        found: list[str] = []
        position, end = ledger.first_position, buffer.max_read_position
        while run_ := await ledger.read(position, end, 100, 1 << 20):
            last = run_.first_entry_id + len(run_.entries) - 1
            for entry_id, entry in enumerate(run_.entries, run_.first_entry_id):
                if not buffer.hidden.contains((run_.ledger_id, entry_id)):
                    found.append(payload_of(entry).decode())
            position = Position(run_.ledger_id, last + 1)
        return found


async def nothing(participant: str) -> None:
    """The participant answers normally."""


async def ended(ending: Awaitable[object] | None) -> None:
    """Waits for the future that a participant's `end` returns; callers share it. None: it has
    ended.
    """
    if ending is not None:
        await asyncio.shield(ending)


async def told_to_nobody(work: Callable[[], Coroutine[Any, Any, None]]) -> list[str]:
    """The event loop's complaints when all is over: exceptions that were never retrieved."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    await work()
    await soon()
    gc.collect()
    loop.set_exception_handler(None)
    return complaints


async def soon() -> None:
    """Let all work run that can continue without waiting."""
    await asyncio.sleep(0.001)


async def books_closed() -> None:
    """Waits until the coordinators have recorded that ended transactions have ended."""
    await asyncio.sleep(0.1)


Test = Callable[[World], Coroutine[Any, Any, None]]


def in_world(test: Test) -> Callable[[], None]:
    return in_world_with()(test)


def in_world_with(**settings: Any) -> Callable[[Test], Callable[[], None]]:
    def decorate(test: Test) -> Callable[[], None]:
        async def life() -> None:
            await test(await World(**settings).start())

        def wrapped() -> None:
            run_virtually(life())

        wrapped.__name__ = test.__name__
        return wrapped

    return decorate
