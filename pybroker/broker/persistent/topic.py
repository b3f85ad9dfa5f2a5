"""A persistent topic: one managed ledger, its producers, its subscriptions, its open transactions.

    publish: [deduplication] → [transaction buffer] → ledger → (durable) → receipt, dispatch
    read:    subscriptions read the ledger up to `max_read_position`, skipping `hidden` entries

Everything here runs on the event loop; the ledger calls back when entries are durable, in order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Final

from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from pybroker.base.errors import (
    PersistenceError,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
)
from pybroker.base.names import TopicName, TxnId
from pybroker.base.runtime import Tasks, do_nothing
from pybroker.broker.compaction.compaction import NO_TURN, PROPERTY, Compaction
from pybroker.broker.deduplication import Deduplication, Taken, snapshot
from pybroker.broker.dispatch.delayed import Delays, delay_policy
from pybroker.broker.dispatch.delayed_account import DelayedAccount
from pybroker.broker.persistent.entry_metadata import stamping
from pybroker.broker.persistent.life import Life, everything
from pybroker.broker.persistent.producers import Granted, Producer, Producers, ProducerState
from pybroker.broker.persistent.publishing import LAST_WRITES_S, OnTheWay, Published, PublishRun
from pybroker.broker.persistent.termination import Termination
from pybroker.broker.persistent.topic_services import TopicServices
from pybroker.broker.persistent.write_counts import WriteCounts
from pybroker.broker.policies.effective import Effective
from pybroker.broker.policies.gate import Gate
from pybroker.broker.policies.limits import Quota, check_producers
from pybroker.broker.policies.subscribe_rate import SubscribeLimit
from pybroker.broker.policies.table import DEDUPLICATION
from pybroker.broker.policies.throttle import Throttle
from pybroker.broker.subscriptions.isolation import Isolation
from pybroker.broker.subscriptions.subscribing import Subscribing
from pybroker.broker.subscriptions.subscription import Subscription
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.buffer.topic_transactions import TopicTransactions
from pybroker.transaction.buffer.transactional_entries import with_sent
from pybroker.transaction.txn_status import TxnAction
from pybroker.wire.message_metadata import last_batch_index

_EPOCH: Final = "topic.epoch"

log = logging.getLogger(__name__)


class Topic(Life[Subscription]):
    __slots__ = (
        "_compaction",
        "_notified",
        "_on_the_way",
        "_subscribing",
        "_termination",
        "aborted",
        "buffer",
        "bytes_in",
        "chunked",
        "clock",
        "committed",
        "compaction_turn",
        "config",
        "deduplication",
        "delayed_account",
        "deletions",
        "dispatch_throttle",
        "factory",
        "gate",
        "ledger",
        "messages_in",
        "metadata",
        "outcomes",
        "policies",
        "published_at_ms",
        "quota",
        "subscribe_limit",
        "tasks",
        "writes",
    )

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        services: TopicServices,
        policies: Effective,
    ) -> None:
        epoch = ledger.properties.get(_EPOCH)
        super().__init__(
            name, Producers(name, None if epoch is None else int(epoch), self._store_epoch)
        )
        self.ledger = ledger
        self.factory, self.metadata = services.factory, services.metadata
        self.deletions = services.deletions
        self.outcomes = services.outcomes
        self.clock = services.clock
        self.config = services.config
        self.policies = policies  # the current ones: see policies/following
        self.gate: Gate | None = None  # checks on messages, if any
        self.quota: Quota | None = None  # checks on producers, if any
        self.subscribe_limit: SubscribeLimit | None = None
        self.dispatch_throttle: Throttle | None = None
        self.tasks = Tasks(name)
        self.deduplication: Deduplication | None = None
        self.messages_in = self.bytes_in = 0
        self.writes = WriteCounts(services.measures)
        self.published_at_ms = 0  # time of the last message since the topic was loaded
        self.chunked = False  # whether there was a chunked message since then
        self.committed = self.aborted = 0  # transactions that wrote here, since then
        self.buffer: TopicTransactions
        self.compaction_turn = NO_TURN
        self.delayed_account = DelayedAccount()
        self._compaction = Compaction(self) if PROPERTY in ledger.properties else None
        self._subscribing = Subscribing()
        self._on_the_way = OnTheWay()
        self._termination = Termination(name, ledger, self.producers, self._on_the_way)
        self._notified = False

    @classmethod
    async def open(
        cls,
        name: TopicName,
        services: TopicServices,
        policies: Effective,
    ) -> "Topic":
        """Load the ledger and recover everything; the topic serves when this returns. Nothing is
        trimmed before `keeps_what_policies_say`, however long this takes.
        """
        ledger = await services.factory.open(name.ledger_name)
        ledger.trimmer.keep(everything)
        topic = cls(name, ledger, services, policies)
        try:
            await stamping(ledger, services.config, services.clock)
            await topic._recover()
        except BaseException:
            with suppress(ManagedLedgerError):  # keep no references from this attempt to the next
                await ledger.close()
            raise
        return topic

    def keeps_what_policies_say(self) -> None:
        """Call when policies and needed entries are known: everything else may be trimmed."""
        if self.ledger.trimmer.keep_no_longer(everything) and self.ledger.has_old_ledgers:
            self.ledger.touch()

    @property
    def to_be_deduplicated(self) -> bool:
        return self.policies[DEDUPLICATION] and not self.name.system

    async def _recover(self) -> None:
        self.buffer = await TopicTransactions.recover(
            self.ledger,
            self.factory,
            self.metadata,
            self.outcomes,
            self.clock,
            self.config,
            self.notify,
            lambda: snapshot.undecided(self.metadata, self.ledger.name),
        )
        self.buffer.on_ended = self._transaction_ended
        try:
            if self.to_be_deduplicated:
                await self.enable_deduplication()
            else:
                await snapshot.forget(self.metadata, self.ledger.name)
        except BaseException:
            await self.buffer.stop()
            raise
        self.buffer.loaded()
        for name, cursor in list(self.ledger.cursors.items()):
            self.subscriptions[name] = await Subscription.open(self, cursor)

    # -- publish

    def publish(
        self,
        producer: Producer,
        run: PublishRun,
        published: Published,
        taken: Taken | None = None,
    ) -> None:
        """Queue a run for the next group commit; `published` is called once it is durable. `taken`
        comes from `deduplication`, if there is one; the run then has only the messages that were
        new.
        """
        if taken is not None:
            assert self.deduplication is not None
            published = self.deduplication.noting(taken, published)
        refusal = self._refusal(producer)
        if refusal is not None:
            published(None, refusal)
            if self._termination.done:
                self._termination.tell([producer])
            return
        self.messages_in += sum(run.message_counts)
        self.published_at_ms = self.clock.now_ms()
        sent = None if taken is None else taken.sent_by(producer.name)
        if run.txn_id is None:
            tag = b"" if sent is None else with_sent(sent)
            self.ledger.append(run.entries, run.message_counts, self._notifying(published), tag)
        else:
            done = self._notifying(published)
            self.buffer.append(run.txn_id, run.entries, run.message_counts, done, sent)

    def _refusal(self, producer: Producer) -> PulsarError | None:
        if producer.state is not ProducerState.WRITING:
            return ProducerFenced(
                f"Producer {producer.name} on {self.name} {producer.state.value}; it cannot publish"
            )
        if self._closed is not None:
            return self._unloading()
        return self._termination.refusal() if self._termination.begun else None

    def _notifying(self, published: Published) -> Published:
        self._on_the_way.count += 1

        def done(position: Position | None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, PulsarError):
                error = PersistenceError(f"{self.name}: the write failed: {error}")
            published(position, error)
            self._on_the_way.arrived()
            if (self.subscriptions or self.view) and not self._notified:
                self._notified = True
                asyncio.get_running_loop().call_soon(self._notify_now)

        return done

    def notify(self) -> None:
        """Notify all subscriptions once this tick: new entries, or the stable position moved."""
        if not self._notified and self._closed is None:
            self._notified = True
            asyncio.get_running_loop().call_soon(self._notify_now)

    def _notify_now(self) -> None:
        self._notified = False
        for subscription in self.subscriptions.values():
            subscription.notify()
        if self.view is not None:
            self.view.notify()

    async def add_producer(self, producer: Producer, granted: Granted) -> bool:
        """True if it may publish now; False if it waits, and `granted` will be called. Raises
        ProducerBusy, ProducerFenced, TopicTerminated, ServiceNotReady.
        """
        self._termination.admit(producer, self.deduplication)
        await check_producers(self, producer.encrypts)
        self._termination.admit(producer, self.deduplication)
        with self._told_when_unloaded():
            return await self.producers.add(producer, granted)

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
        self.deduplication = deduplication  # it must be told of transactions that end meanwhile
        await deduplication.recover(self.buffer)
        self.buffer.deduplicated_by(deduplication)

    # -- read positions

    @property
    def max_read_position(self) -> Position:
        """Nothing after it may be read: an open transaction begins there, or the log ends."""
        return self.buffer.max_read_position

    @property
    def max_uncommitted_position(self) -> Position:
        return self.buffer.max_uncommitted_position

    @property
    def hidden(self) -> HiddenEntries:
        return self.buffer.hidden

    async def last_message_id(self, limit: Position | None = None) -> tuple[Position, int]:
        """The last deliverable entry, with entry id -1 if there is none; and the last index of a
        batch, -1 for other entries. Looks only up to `limit`, by default up to `max_read_position`.
        """
        position = self.buffer.last_visible_position(None if limit is None else limit.after)
        if position.entry_id < 0:
            return position, -1
        with self._told_when_unloaded():
            run = await self.ledger.read(position, position, 1, 1)
        if run is None:  # trimmed meanwhile: the last entry may be another one now
            return await self.last_message_id(limit)
        return position, last_batch_index(run.entries[0])

    async def message_count(self, position: Position) -> int:
        """The number of messages in an entry; 0 if the entry does not exist."""
        count = self.ledger.message_count(position)
        if count is None:
            with self._told_when_unloaded():
                run = await self.ledger.read(position, position, 1, 1)
            count = run.message_counts[0] if run is not None else 0
        return count

    def known_message_count(self, position: Position) -> int | None:
        """Like `message_count`; None if the entry would have to be read."""
        return self.ledger.message_count(position)

    @property
    def compaction(self) -> Compaction:
        """The topic's Compaction, created on demand; `compacted` never creates it."""
        self._compaction = self._compaction or Compaction(self)
        return self._compaction

    @property
    def compacted(self) -> Compaction | None:
        return self._compaction

    @property
    def delays(self) -> Delays:
        clock, housekeeper, account = self.clock, self.ledger.housekeeper, self.delayed_account
        return Delays(lambda: self.policies.made(delay_policy), clock, housekeeper, account)

    # -- subscriptions

    async def subscription(
        self, name: str, start: Position | None, properties: dict[str, str], create: bool
    ) -> Subscription:
        """The durable subscription; if it does not exist, it is created at `start` (None: at the
        end). Raises SubscriptionNotFound if it may not be created.
        """
        with self._told_when_unloaded():
            return await self._subscribing.durable(self, name, start, properties, create)

    async def reader_subscription(
        self, name: str, start: Position | None, asked: Isolation | None = None
    ) -> Subscription:
        """A subscription without a durable cursor; it ends with its last consumer."""
        return await self._subscribing.reader(self, name, start, asked)

    async def delete_subscription(self, name: str) -> None:
        """Disconnects its consumers. Raises SubscriptionNotFound."""
        await self._subscribing.delete(self, name)

    # -- transactions

    def end_transaction(
        self, txn_id: TxnId, action: TxnAction, low_watermark: int, not_later: bool = False
    ) -> Awaitable[object] | None:
        """Write the marker; see TopicTransactions.end. Raises ServiceNotReady."""
        self.check_open()
        return self.buffer.end(txn_id, action, low_watermark, not_later)

    def _transaction_ended(self, txn_id: TxnId, action: TxnAction, first: Position | None) -> None:
        """Called when a transaction has ended here. Its entries, if there are any, begin at
        `first`.
        """
        if action is TxnAction.COMMIT:
            self.committed += 1
        else:
            self.aborted += 1
            if first is not None:
                for subscription in self.subscriptions.values():
                    subscription.reader.aborted(first)
        if self.deduplication is not None:
            self.deduplication.ended(txn_id, action is TxnAction.ABORT)
        self._tell_of_the_end()

    # -- life

    @property
    def terminated(self) -> bool:
        return self._termination.begun

    @property
    def ended(self) -> bool:
        """Terminated, and no commit can append messages from the side log any more."""
        return self._termination.done and not self.buffer.has_aside

    async def terminate(self) -> Position:
        """Accept no more messages; returns the position of the last one. Readers may not have
        reached it yet because of an open transaction, and commits still append messages from the
        side log. Raises ServiceNotReady.
        """
        await self._termination.terminate(self._tell_of_the_end)
        return self.buffer.last_visible_position(self.ledger.last_confirmed.after)

    def _tell_of_the_end(self) -> None:
        if self.ended:
            for subscription in self.subscriptions.values():
                subscription.dispatch.topic_ended()

    @property
    def idle(self) -> bool:
        """Whether the schema is undetermined: no data, and no client that determines it."""
        stored = self.ledger.total_size_bytes or self.buffer.aside_bytes
        return self.no_client_has_its_schema and not stored

    @property
    def retention_ms(self) -> int:
        """The retention time of acknowledged messages; -1 forever."""
        return self.ledger.config.retention.time_ms

    @property
    def busy(self) -> bool:
        """Whether the topic is in use without clients: an open transaction has written to it, a
        subscribe is in progress, or a message is not durable yet.
        """
        return self._on_the_way.count > 0 or self._subscribing.busy or self.buffer.has_open

    @contextmanager
    def _told_when_unloaded(self) -> Iterator[None]:
        """Reports a closed ledger to clients as an unloading topic, so that they retry."""
        try:
            yield
        except LedgerClosed as error:
            raise ServiceNotReady(f"{self.name} is being unloaded: {error}") from error

    async def close(self, reason: str = "closed") -> None:
        """Disconnect all clients and make everything durable. Producers first get their pending
        receipts, so that they send nothing twice.

        Raises if something could not be written. The topic is closed even then: otherwise a
        consumer could read messages here that the next load of the topic hides.
        """
        self._closed = reason
        if not await self._on_the_way.settled():
            log.error("%s: messages were not written within %g s", self.name, LAST_WRITES_S)
        self.producers.disconnect_all(self._unloading())
        async with AsyncExitStack() as steps:  # runs in reverse order, even if a step raises
            steps.callback(self.break_cycles)
            steps.push_async_callback(self.ledger.close)
            if self.deduplication is not None:
                steps.push_async_callback(self.deduplication.close)
            steps.push_async_callback(self.buffer.close)
            for each in (self._compaction, self.view):
                if each is not None:
                    steps.push_async_callback(each.close)
            steps.push_async_callback(self.tasks.close)
            for subscription in reversed(self.subscriptions.values()):
                steps.push_async_callback(subscription.close)

    async def discard(self) -> None:
        """Disconnect all clients and write nothing more, because the topic is being deleted."""
        self.retire("deleted")
        for subscription in list(self.subscriptions.values()):
            await subscription.discard()
        self.subscriptions.clear()
        await self.tasks.close()
        await self.buffer.stop()
        if self.deduplication is not None:
            await self.deduplication.stop()
        if self._compaction is not None:
            await self._compaction.close()
        self.break_cycles()

    def break_cycles(self) -> None:
        super().break_cycles()
        self._compaction = None
        self.buffer.on_ended = self.buffer.stable_moved = do_nothing

    async def _store_epoch(self, epoch: int) -> None:
        await self.ledger.set_property(_EPOCH, str(epoch))
