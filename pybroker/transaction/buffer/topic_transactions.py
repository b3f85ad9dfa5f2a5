"""A topic's transactions: those in its own log and, once requested, those kept aside.

Where a transaction is kept is decided when it first writes to the topic, and does not change: if
the policy changes meanwhile, existing transactions end as they began. Both kinds leave markers in
the topic's own log, whose order is what readers see.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from itertools import chain, islice

from managed_ledger.appender import Appended
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun, MetadataStore
from pybroker.base.config import BrokerConfig
from pybroker.base.names import TxnId, side_log
from pybroker.base.runtime import Clock
from pybroker.transaction.buffer.buffer_times import BufferTimes
from pybroker.transaction.buffer.commit_order.commit_order_buffer import CommitOrderBuffer
from pybroker.transaction.buffer.commit_order.copying import SequenceIds
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.ongoing import Marked, OngoingTransaction
from pybroker.transaction.buffer.open_contents import OnEnded, TopicContents, held_in
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction


class TopicTransactions:
    """Create it with `recover`."""

    __slots__ = (
        "_aside",
        "_clock",
        "_config",
        "_factory",
        "_ledger_name",
        "_log",
        "_outcomes",
        "_sequence_ids",
        "contents",
        "in_commit_order",
    )

    def __init__(
        self,
        ledger_name: str,
        log_order: LogOrderBuffer,
        factory: ManagedLedgerFactory,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._ledger_name, self._log = ledger_name, log_order
        self._factory, self._outcomes = factory, outcomes
        self._clock, self._config = clock, config
        self._aside: CommitOrderBuffer | None = None
        self._sequence_ids: SequenceIds | None = None
        self.contents = TopicContents()
        log_order.on_ended = self.contents.transaction_ended
        self.in_commit_order = False  # for transactions that begin from now on

    @classmethod
    async def recover(
        cls,
        ledger: ManagedLedger,
        factory: ManagedLedgerFactory,
        metadata: MetadataStore,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
        stable_moved: Callable[[], None],
    ) -> "TopicTransactions":
        """`stable_moved` is called whenever `max_read_position` may have moved."""
        aside = None
        if factory.exists(side_log(ledger.name)):
            aside = await CommitOrderBuffer.recover(factory, ledger.name, outcomes, clock, config)
        try:
            kept: Container[TxnId] = () if aside is None else aside.open
            log_order = await LogOrderBuffer.recover(
                ledger, metadata, outcomes, clock, config, stable_moved, kept
            )
        except BaseException:
            if aside is not None:
                await aside.close()
            raise
        transactions = cls(ledger.name, log_order, factory, outcomes, clock, config)
        if aside is not None:
            aside.serve(log_order)
            transactions._aside = aside
        if transactions.has_open:
            side = None if aside is None else aside.ledger
            transactions.contents.of_before = {
                each.name: each.last_confirmed for each in (ledger, side) if each is not None
            }
        return transactions

    def loaded(self) -> None:
        """The topic has recovered: transactions that were left open may be settled now."""
        if self._aside is not None:
            self._aside.loaded()

    # Publish, end

    def append(
        self,
        txn_id: TxnId,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        done: Appended,
        sent: bytes | None = None,
    ) -> None:
        """Append entries of one transaction; `done` as in ManagedLedger.append. `sent`, if given,
        is stored with them.

        Refused, through `done`: InvalidTxnStatus (not OPEN, or the topic was not added to it),
        TransactionNotFound, TransactionCoordinatorNotFound.
        """
        aside = self._aside
        done = self.contents.counted(txn_id, entries, message_counts, done)
        if aside is not None and txn_id in aside.open:
            aside.append(txn_id, entries, message_counts, done, sent)
        elif self.in_commit_order and not self._log.holds(txn_id):
            self._set_up_aside().append(txn_id, entries, message_counts, done, sent)
        else:
            self._log.append(txn_id, entries, message_counts, done, sent)

    def _set_up_aside(self) -> CommitOrderBuffer:
        if self._aside is None:
            self._aside = CommitOrderBuffer(
                self._factory, self._ledger_name, self._outcomes, self._clock, self._config
            )
            self._aside.sequence_ids = self._sequence_ids
            self._aside.serve(self._log)
            self._aside.loaded()
        return self._aside

    def end(
        self, txn_id: TxnId, action: TxnAction, low_watermark: int, not_later: bool = False
    ) -> "asyncio.Future[Marked] | asyncio.Future[None] | None":
        """Durable and in effect when it completes; None: it never wrote here, or has ended.

        Fails with the log's errors; then repeat it. The future is shared: do not cancel it.
        `not_later`: raises WouldWait if it cannot be queued in the storage in this turn.
        """
        if self._aside is not None:
            if not_later and txn_id in self._aside.open:
                raise WouldWait  # a copy may take long, and an abort takes effect at once
            ending = self._aside.end(txn_id, action)
            self._aside.settle_if_over(txn_id.most, low_watermark)
            if ending is not None:
                return ending
        return self._log.end(txn_id, action, low_watermark, not_later)

    @property
    def on_ended(self) -> OnEnded:
        """Called for each that has ended here."""
        return self.contents.on_ended

    @on_ended.setter
    def on_ended(self, on_ended: OnEnded) -> None:
        self.contents.on_ended = on_ended

    @property
    def stable_moved(self) -> Callable[[], None]:
        return self._log.stable_moved

    @stable_moved.setter
    def stable_moved(self, stable_moved: Callable[[], None]) -> None:
        self._log.stable_moved = stable_moved

    async def forget_ended(self) -> None:
        """The topic's log need not record ended transactions now. Raises ManagedLedgerError."""
        if self._aside is not None:
            await self._aside.forget_ended()

    # Deduplication

    def deduplicated_by(self, sequence_ids: SequenceIds) -> None:
        """From now on, including what is already kept aside."""
        self._sequence_ids = sequence_ids
        if self._aside is not None:
            self._aside.sequence_ids = sequence_ids

    async def read_aside(self) -> AsyncIterator[EntryRun]:
        """The entries of the transactions that are kept aside, piece by piece."""
        if self._aside is not None:
            async for run in self._aside.read_open():
                yield run

    # What may be read

    @property
    def hidden(self) -> HiddenEntries:
        return self._log.hidden

    @property
    def max_read_position(self) -> Position:
        """Nothing behind it may be read: an open transaction begins there, or the log ends."""
        return self._log.max_read_position

    @property
    def max_uncommitted_position(self) -> Position:
        """As `max_read_position`, for readers of uncommitted messages. But a copy may still be
        given up and made again until its marker is durable.
        """
        return self._log.limit_of_copies()

    def last_visible_position(self, up_to: Position | None = None) -> Position:
        """The newest entry that may be delivered now, or is before `up_to`; entry id -1: none."""
        return self._log.last_visible_position(up_to)

    # For stats

    @property
    def times(self) -> BufferTimes:
        return self._log.times

    @property
    def has_open(self) -> bool:
        return self._log.has_open or self.has_aside

    @property
    def has_aside(self) -> bool:
        """Entries may still be added to the log although no producer is connected."""
        return self._aside is not None and bool(self._aside.open)

    @property
    def keeps_aside(self) -> bool:
        """Now or earlier: then the entries of the log need not be in the order of publication."""
        return self._aside is not None

    @property
    def aside_bytes(self) -> int:
        """The size of the log beside the topic's own."""
        return 0 if self._aside is None else self._aside.size_bytes

    @property
    def waiting_bytes(self) -> int:
        """The part of it that open transactions hold."""
        return 0 if self._aside is None else self._aside.open.size_bytes

    @property
    def open_count(self) -> int:
        """A transaction that is being copied counts once."""
        return sum(1 for _ in self._ongoing()) if self.has_aside else self._log.open_count

    def oldest(self) -> OngoingTransaction | None:
        """The one that holds readers back."""
        return self._log.oldest()

    def ongoing(self, most: int | None = None) -> list[OngoingTransaction]:
        """First those in the topic's own log, by their first entries; the others block no readers.
        All of them, or the first `most`.
        """
        if self._aside is None:
            return self._log.ongoing(most)
        return list(islice(self._ongoing(), most))

    def first_position_of(self, txn_id: TxnId) -> Position | None:
        """The first of its durable entries, in whichever log they are; None if there are none, or
        it has ended.
        """
        aside = None if self._aside is None else self._aside.open.get(txn_id)
        if aside is not None:
            return aside.ranges.first_position
        return self._log.ranges_of(txn_id).first_position

    def first_in_log(self, txn_id: TxnId) -> Position | None:
        """As `first_position_of`, in the topic's own log."""
        return self._log.ranges_of(txn_id).first_position

    def ranges_in_log(self, txn_id: TxnId, most: int) -> list[tuple[int, int, int]]:
        """The first ranges of its durable entries in the topic's own log: ledger, first, last."""
        return self._log.ranges_of(txn_id).first_ones(most)

    def _ongoing(self) -> Iterator[OngoingTransaction]:
        if self._aside is None:
            return iter(self._log.ongoing())
        aside = self._aside.open
        in_log = (each for each in self._log.ongoing() if each.txn_id not in aside)
        return chain(
            in_log,
            (
                OngoingTransaction(txn_id, each.ranges.first_position, each.opened_at_ms)
                for txn_id, each in aside.items()
            ),
        )

    async def count_what_was_before(self, ledger: ManagedLedger) -> None:
        """In `contents`: what open transactions held when the topic was loaded; this reads all of
        that. `ledger` is the topic's own. Runs once; no caller has to wait for it.
        """
        before, self.contents.of_before = self.contents.of_before, {}
        for txn_id in [each.txn_id for each in self._ongoing()]:
            aside = None if self._aside is None else self._aside.open.get(txn_id)
            holder, ranges = ledger, self._log.ranges_of(txn_id)
            if self._aside is not None and aside is not None:
                side = self._aside.ledger
                if side is None:
                    continue  # still being created: nothing in it is older
                holder, ranges = side, aside.ranges
            if holder.name in before:
                held = await held_in(holder, ranges, before[holder.name])
                if self.first_position_of(txn_id) is not None:  # it has not ended meanwhile
                    self.contents.add(txn_id, *held)

    # Life

    async def close(self) -> None:
        """Leave a snapshot, so that the next recovery scans nothing. Idempotent."""
        self.contents.forget()
        if self._aside is not None:
            await self._aside.stop()
        await self._log.close()
        if self._aside is not None:
            await self._aside.close()

    async def stop(self) -> None:
        """Write nothing more: the topic is going away."""
        self.contents.forget()
        if self._aside is not None:
            await self._aside.stop()
        await self._log.stop()
        if self._aside is not None:
            self._aside.let_go()
