"""A topic over a memory backend, and consumers with recording sinks."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.storage.backend import EntryRun
from managed_ledger.storage.memory import MemoryBackend
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks
from pybroker.broker.dispatch.delayed import DelayPolicy, Delays
from pybroker.broker.dispatch.hash_ring import HashRing, slot_of
from pybroker.broker.policies.effective import Effective
from pybroker.broker.subscriptions.consumer import (
    Consumer,
    KeySharedPolicy,
    SubscribeRequest,
    SubscriptionType,
)
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.pending_acks.records import Held
from pybroker.transaction.txn_status import TxnStatus
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.message_metadata import build_entry

T = TypeVar("T")
EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


class SteppedClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class ColdLedger:
    """A managed ledger with entries in memory only while `warm`, and only after `cold_up_to`."""

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self.warm = True
        self.cold_up_to = EARLIEST
        self.reads = 0
        self.failures = 0  # the number of next reads that fail
        self.most_entries = 2**31  # limit of one read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def read_cached(
        self, position: Position, up_to: Position, max_entries: int, max_bytes: int
    ) -> EntryRun | None:
        if not self.warm or position <= self.cold_up_to:
            return None
        most = min(max_entries, self.most_entries)
        return self._ledger.read_cached(position, up_to, most, max_bytes)

    async def read(self, *args: Any) -> EntryRun | None:
        self.reads += 1
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OSError("the disk does not answer")
        return await self._ledger.read(*args)


@dataclass
class Received:
    """One MESSAGE as the client would get it."""

    position: Position
    redelivery_count: int
    unacked: tuple[int, int] | None


@dataclass(eq=False)
class RecordingSink:
    writable: bool = True
    received: list[Received] = field(default_factory=list)
    writes: int = 0
    active: list[bool] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    ends: int = 0
    pause_after: int | None = None
    turns: "list[RecordingSink]" = field(default_factory=list)  # shared: the sink of each message

    def deliver(
        self,
        consumer: Consumer,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        redelivery_counts: Sequence[int] | None,
        unacked_indexes: Mapping[int, tuple[int, int]] | None,
    ) -> None:
        assert len(entry_ids) == len(entries) > 0
        self.writes += 1
        self.turns.extend([self] * len(entries))
        for index, entry_id in enumerate(entry_ids):
            count = redelivery_counts[index] if redelivery_counts is not None else 0
            unacked = unacked_indexes.get(entry_id) if unacked_indexes is not None else None
            self.received.append(Received(Position(ledger_id, entry_id), count, unacked))
        if self.pause_after is not None and len(self.received) >= self.pause_after:
            self.writable = False

    def active_consumer_changed(self, consumer: Consumer, is_active: bool) -> None:
        self.active.append(is_active)

    def reached_end_of_topic(self, consumer: Consumer) -> None:
        self.ends += 1

    def close_consumer(self, consumer: Consumer, reason: str) -> None:
        self.closed.append(reason)

    @property
    def entry_ids(self) -> list[int]:
        return [message.position.entry_id for message in self.received]

    def take(self) -> list[int]:
        """Entry ids received since the last call."""
        taken = self.entry_ids
        self.received.clear()
        return taken


class FakeOutcomes:
    """Transactions are OPEN until a test says otherwise."""

    def __init__(self) -> None:
        self.ended: dict[TxnId, TxnStatus] = {}

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return self.ended.get(txn_id, TxnStatus.OPEN)

    def has_partition(self, txn_id: TxnId, topic: str) -> bool:
        return True

    def why_aborted(self, txn_id: TxnId) -> str:
        return ""

    def has_subscription(self, txn_id: TxnId, topic: str, subscription: str) -> bool:
        return True


KEYS = [f"key-{number}" for number in range(40)]
LEDGER = TopicName.parse("orders").ledger_name


class FakeTopic:
    def __init__(
        self, ledger: ManagedLedger, factory: ManagedLedgerFactory, config: BrokerConfig
    ) -> None:
        self.name = TopicName.parse("orders")
        self.ledger: Any = ColdLedger(ledger)
        self.clock = SteppedClock()
        self.delays = Delays(lambda: DelayPolicy.of(config), self.clock, factory.housekeeper)
        self.factory = factory
        self.outcomes = FakeOutcomes()
        self.config = config
        self.policies = Effective(config, ())
        self.dispatch_throttle = self.quota = None
        self.producers: list[object] = []
        self.hidden = HiddenEntries()
        self.tasks = Tasks("orders")
        self.compacted = None
        self.ended = False
        self.limit: Position | None = None  # an open transaction begins after it
        self.subscriptions: dict[str, Subscription] = {}

    @property
    def max_read_position(self) -> Position:
        return self.limit if self.limit is not None else self.ledger.last_confirmed

    @property
    def max_uncommitted_position(self) -> Position:
        return self.ledger.last_confirmed

    def forget_subscription(self, name: str) -> None:
        self.subscriptions.pop(name, None)

    # -- for tests

    async def publish(self, count: int = 1, *, key: str = "", batch: int = 1) -> list[Position]:
        return await self.publish_keys([key] * count, batch=batch)

    async def publish_keys(self, keys: Sequence[str], batch: int = 1) -> list[Position]:
        positions = []
        for key in keys:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)
            if key:
                metadata.partition_key = key
            entry = build_entry(metadata, b"x" * 10)
            positions.append(await self.ledger.append_one(entry, batch))
        await self.changed()
        return positions

    async def hide(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self.hidden.hide(position.ledger_id, position.entry_id, position.entry_id)
        await self.changed()

    async def changed(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.notify()
        await self.settled()

    async def settled(self) -> None:
        """Wait until no task runs any more."""
        for _ in range(3):
            await asyncio.sleep(0)
            while len(self.tasks):  # noqa: ASYNC110 - tasks end without telling
                await asyncio.sleep(0)

    async def abort(self, positions: Sequence[Position]) -> None:
        """Hide these entries, as the abort of their transaction does."""
        for position in positions:
            self.hidden.hide(position.ledger_id, position.entry_id, position.entry_id)
        for subscription in self.subscriptions.values():
            subscription.reader.aborted(min(positions))
        await self.changed()

    async def subscribe(
        self, name: str = "sub", durable: bool = True, properties: dict[str, str] | None = None
    ) -> Subscription:
        if durable:
            cursor = await self.ledger.open_cursor(name, EARLIEST, properties or {})
        else:
            cursor = self.ledger.new_non_durable_cursor(name, EARLIEST)
        subscription = await Subscription.open(self, cursor)
        self.subscriptions[name] = subscription
        return subscription

    async def consumer(
        self,
        subscription: Subscription,
        kind: SubscriptionType,
        permits: int = 0,
        *,
        name: str = "c",
        priority_level: int = 0,
        key_shared: KeySharedPolicy | None = None,
        request_id: int = 0,
    ) -> tuple[Consumer, RecordingSink]:
        sink = RecordingSink()
        request = SubscribeRequest(
            1, name, priority_level=priority_level, key_shared=key_shared, request_id=request_id
        )
        consumer = Consumer(request, sink)
        await subscription.add_consumer(consumer, kind)
        if permits:
            subscription.flow(consumer, permits)
        await self.settled()
        return consumer, sink


def owner_among(*names: str) -> Callable[[str], str]:
    """A function that returns a key's owner once these consumers have joined."""
    ring = HashRing()
    for name in names:
        ring.add(Consumer(SubscribeRequest(1, name), RecordingSink()))

    def owner(key: str) -> str:
        consumer = ring.owner(slot_of(key.encode()))
        assert consumer is not None
        return consumer.name

    return owner


def key_of(owner: str, *names: str) -> str:
    """A key that belongs to `owner` among these consumers."""
    owner_of = owner_among(*names)
    return next(key for key in KEYS if owner_of(key) == owner)


def given_back(subscription: Subscription) -> dict[Position, Held]:
    """The messages that aborted transactions have given back and that are noted."""
    lives = subscription.reader.lives
    return {} if lives is None else dict(lives.given_back)


def check_parked(subscription: Subscription) -> None:
    """Check the count of parked entries on Key_Shared, which limits how far reads go ahead."""
    dispatcher = subscription.dispatch.key_shared
    if dispatcher is not None:
        parked = [*dispatcher._waiting.values(), *dispatcher._draining.values()]
        assert dispatcher._parked == sum(map(len, parked))


def with_topic(scenario: Callable[[FakeTopic], Coroutine[Any, Any, T]], **config: Any) -> T:
    """Run the scenario with a new topic; `config` overrides the broker's settings."""

    async def run() -> T:
        backend = MemoryBackend()
        await backend.open()
        factory = ManagedLedgerFactory(backend, SteppedClock())
        topic = FakeTopic(await factory.open(LEDGER), factory, replace(BrokerConfig(), **config))
        try:
            return await scenario(topic)
        finally:
            for subscription in list(topic.subscriptions.values()):
                await subscription.close()
            await topic.tasks.close()
            await factory.close()
            await backend.close()

    return asyncio.run(run())
