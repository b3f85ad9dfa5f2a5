"""A persistent topic: one managed ledger, its producers, its subscriptions, its open transactions.

    publish: [deduplication] → [transaction buffer] → ledger → (durable) → receipt, dispatch
    read:    subscriptions read the ledger up to `max_read_position`, skipping `hidden` entries

Everything here runs on the event loop; the ledger calls back when entries are durable, in order.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import MetadataStore
from pybroker.broker.deduplication import Deduplication
from pybroker.broker.producers import Producer, Producers
from pybroker.broker.subscription import Subscription
from pybroker.config import BrokerConfig
from pybroker.errors import (
    PersistenceError,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicTerminated,
)
from pybroker.names import TopicName, TxnId
from pybroker.runtime import Clock, Tasks
from pybroker.transaction.aborted_txns import HiddenEntries
from pybroker.transaction.transaction_buffer import TransactionBuffer
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction
from pybroker.wire.message_metadata import parse_metadata

_EPOCH: Final = "topic.epoch"
_TERMINATED: Final = "terminated"

# Called once: with the first entry's position, or with the reason why nothing was written.
Published = Callable[[Position | None, Exception | None], None]


class PublishRun(Protocol):
    """Consecutive messages of one producer, by column (wire.frames.SendRun is one)."""

    @property
    def txn_id(self) -> TxnId | None: ...
    @property
    def entries(self) -> list[bytes]: ...
    @property
    def message_counts(self) -> list[int]: ...

    def sequence_ids(self) -> list[int]: ...
    def highest_sequence_ids(self) -> list[int]: ...


class Topic:
    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.factory = factory
        self.metadata = metadata
        self.outcomes = outcomes
        self.clock = clock
        self.config = config
        self.tasks = Tasks(str(name))
        self.subscriptions: dict[str, Subscription] = {}
        self.deduplication: Deduplication | None = None
        self.messages_in = 0
        self.bytes_in = 0
        epoch = ledger.properties.get(_EPOCH)
        self.producers = Producers(
            str(name), None if epoch is None else int(epoch), self._store_epoch
        )
        self.buffer: TransactionBuffer
        self._subscribing = asyncio.Lock()
        self._closed: str | None = None
        self._notified = False

    @classmethod
    async def open(
        cls,
        name: TopicName,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
        deduplicated: bool,
    ) -> "Topic":
        """Load the ledger and recover everything; the topic serves when this returns."""
        ledger = await factory.open(name.ledger_name)
        topic = cls(name, ledger, factory, metadata, outcomes, clock, config)
        topic.buffer = await TransactionBuffer.recover(
            ledger, metadata, outcomes, clock, config, topic.notify
        )
        topic.buffer.on_ended = topic._transaction_ended
        if deduplicated:
            await topic.enable_deduplication()
        for cursor in list(ledger.cursors.values()):
            topic.subscriptions[cursor.name] = await Subscription.open(topic, cursor)
        return topic

    # -- publish

    def publish(self, producer: Producer, run: PublishRun, published: Published) -> None:
        """Queue a run for the next group commit; `published` is called once it is durable.

        The caller has dropped duplicates (`split_duplicates`) where deduplication is on.
        """
        refusal = self._refusal(producer)
        if refusal is not None:
            published(None, refusal)
            return
        self.messages_in += len(run.entries)
        if self.deduplication is not None:
            published = self._deduplicated(producer, run, published)
        if run.txn_id is None:
            self.ledger.append(run.entries, run.message_counts, self._notifying(published))
        else:
            self.buffer.append(
                run.txn_id, run.entries, run.message_counts, self._notifying(published)
            )

    def _refusal(self, producer: Producer) -> PulsarError | None:
        if producer.fenced:
            return ProducerFenced(f"Producer {producer.name} on {self.name} was fenced")
        if self._closed is not None:
            return ServiceNotReady(f"{self.name} is being unloaded: {self._closed}")
        if self.terminated:
            return TopicTerminated(f"{self.name} was terminated; it takes no more messages")
        return None

    def _notifying(self, published: Published) -> Published:
        def done(position: Position | None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, PulsarError):
                error = PersistenceError(f"{self.name}: the write failed: {error}")
            published(position, error)
            if not self._notified:
                self._notified = True
                asyncio.get_running_loop().call_soon(self._notify_now)

        return done

    def notify(self) -> None:
        """Entries or the stable position moved: let every subscription look, once this tick."""
        if not self._notified and self._closed is None:
            self._notified = True
            asyncio.get_running_loop().call_soon(self._notify_now)

    def _notify_now(self) -> None:
        self._notified = False
        for subscription in self.subscriptions.values():
            subscription.notify()

    # -- deduplication

    async def enable_deduplication(self) -> None:
        if self.deduplication is not None:
            return
        deduplication = Deduplication(
            self.ledger,
            self.metadata,
            self.config.broker_deduplication_max_number_of_producers,
            self.config.broker_deduplication_entries_interval,
        )
        await deduplication.recover()
        self.deduplication = deduplication

    def duplicates(self, producer: Producer, run: PublishRun) -> list[int]:
        """Which of the run's messages were here before, by index; all others are now taken."""
        deduplication = self.deduplication
        if deduplication is None:
            return []
        found: list[int] = []
        bounds = zip(run.sequence_ids(), run.highest_sequence_ids(), strict=True)
        for index, (lowest, highest) in enumerate(bounds):
            if deduplication.is_duplicate(producer.name, lowest, highest):
                found.append(index)
            else:
                deduplication.take(producer.name, lowest, highest, run.txn_id)
        return found

    def _deduplicated(self, producer: Producer, run: PublishRun, published: Published) -> Published:
        deduplication = self.deduplication
        assert deduplication is not None

        def done(position: Position | None, error: Exception | None) -> None:
            published(position, error)
            bounds = zip(run.sequence_ids(), run.highest_sequence_ids(), strict=True)
            for lowest, highest in bounds:
                if error is None:
                    deduplication.became_durable(producer.name, lowest, highest)
                else:
                    deduplication.give_back(producer.name, lowest, highest)
            if deduplication.snapshot_due:
                self.tasks.start(deduplication.snapshot(), "deduplication snapshot")

        return done

    # -- read positions

    @property
    def max_read_position(self) -> Position:
        """Nothing behind it may be read: an open transaction begins there, or the log ends."""
        return self.buffer.max_read_position

    @property
    def hidden(self) -> HiddenEntries:
        return self.buffer.hidden

    async def last_message_id(self) -> tuple[Position, int]:
        """The last deliverable entry and, if it is a batch, its last index; else -1.

        The entry id is -1 when there is nothing to deliver.
        """
        position = self.buffer.last_visible_position()
        if position.entry_id < 0:
            return position, -1
        run = await self.ledger.read(position, position, 1, 1)
        if run is None:
            return Position(position.ledger_id, -1), -1
        metadata = parse_metadata(run.entries[0])
        if not metadata.HasField("num_messages_in_batch"):
            return position, -1
        return position, metadata.num_messages_in_batch - 1

    # -- subscriptions

    async def subscription(
        self, name: str, start: Position | None, properties: dict[str, str], create: bool
    ) -> Subscription:
        """The durable subscription, created at `start` (None: at the end) if it is not there.

        Raises SubscriptionNotFound when it may not be created.
        """
        async with self._subscribing:
            self._check_open()
            subscription = self.subscriptions.get(name)
            if subscription is not None:
                return subscription
            if not create:
                raise SubscriptionNotFound(
                    f"Subscription {name} of {self.name} does not exist and may not be created"
                )
            cursor = await self.ledger.open_cursor(name, start, properties)
            subscription = await Subscription.open(self, cursor)
            self.subscriptions[name] = subscription
            return subscription

    async def reader_subscription(self, name: str, start: Position | None) -> Subscription:
        """A subscription without a durable cursor; it goes with its last consumer."""
        self._check_open()
        existing = self.subscriptions.get(name)
        if existing is not None:
            return existing
        cursor = self.ledger.new_non_durable_cursor(name, start)
        subscription = await Subscription.open(self, cursor)
        self.subscriptions[name] = subscription
        return subscription

    async def delete_subscription(self, name: str) -> None:
        """Disconnects its consumers. Raises SubscriptionNotFound."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} of {self.name} does not exist")
        await subscription.delete()

    async def end_transaction(self, txn_id: TxnId, action: TxnAction, low_watermark: int) -> None:
        """Write the marker; durable and visible when this returns. Idempotent."""
        self._check_open()
        await self.buffer.end(txn_id, action, low_watermark)

    def _transaction_ended(self, txn_id: TxnId, action: TxnAction) -> None:
        if self.deduplication is not None:
            self.deduplication.ended(txn_id, action is TxnAction.ABORT)

    # -- life

    @property
    def terminated(self) -> bool:
        return _TERMINATED in self.ledger.properties

    async def terminate(self) -> Position:
        await self.ledger.set_property(_TERMINATED, "true")
        return self.buffer.last_visible_position()

    @property
    def in_use(self) -> bool:
        return len(self.producers) > 0 or any(s.consumers for s in self.subscriptions.values())

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ServiceNotReady(f"{self.name} is being unloaded: {self._closed}")

    async def close(self, reason: str = "closed") -> None:
        """Disconnect everybody and make what is known durable."""
        self._closed = reason
        self.producers.disconnect_all(reason)
        for subscription in list(self.subscriptions.values()):
            await subscription.close()
        await self.tasks.close()
        await self.buffer.close()
        if self.deduplication is not None:
            await self.deduplication.snapshot()
        await self.ledger.close()

    async def delete(self) -> None:
        self._closed = "deleted"
        self.producers.disconnect_all("the topic was deleted")
        for subscription in list(self.subscriptions.values()):
            await subscription.delete()
        self.subscriptions.clear()
        await self.tasks.close()
        await self.buffer.delete()
        if self.deduplication is not None:
            await self.deduplication.delete()
        await self.factory.delete(self.name.ledger_name)

    async def _store_epoch(self, epoch: int) -> None:
        await self.ledger.set_property(_EPOCH, str(epoch))
