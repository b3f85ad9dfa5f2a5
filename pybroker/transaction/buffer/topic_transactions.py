"""A topic's transactions: those in its own log and, if a policy requests it, those kept aside.

The place of a transaction is decided when it first writes to the topic, and does not change: if the
policy changes meanwhile, existing transactions end as they began. Both kinds leave markers in the
topic's own log, whose order is the order that readers see.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from managed_ledger.appender import Appended
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position
from managed_ledger.storage.backend import EntryRun, MetadataStore
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.names import TxnId, side_log
from pybroker.base.runtime import Clock
from pybroker.transaction.buffer.buffer_stats import BufferTimes, Marked, OngoingTransaction
from pybroker.transaction.buffer.log_order.aborted_txns import HiddenEntries
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.log_order.transaction_index import Undecided
from pybroker.transaction.buffer.open_contents import OnEnded, TopicContents, held_in
from pybroker.transaction.this_turn import WouldWait
from pybroker.transaction.txn_status import TransactionOutcomes, TxnAction

if TYPE_CHECKING:  # loaded when a topic first keeps a transaction aside
    from pybroker.transaction.buffer.commit_order.commit_order_buffer import CommitOrderBuffer
    from pybroker.transaction.buffer.commit_order.copying import SequenceIds


class TopicTransactions:
    """Which transactions are open on one topic. `recover` makes one from what is stored."""

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
        undecided: Undecided | None = None,
    ) -> "TopicTransactions":
        """`stable_moved` is called whenever `max_read_position` may have moved. `undecided`: see
        `LogOrderBuffer.recover`.
        """
        aside = None
        if factory.exists(side_log(ledger.name)):
            from pybroker.transaction.buffer.commit_order.commit_order_buffer import (
                CommitOrderBuffer,
            )

            aside = await CommitOrderBuffer.recover(factory, ledger.name, outcomes, clock, config)
        try:
            kept: Container[TxnId] = () if aside is None else aside.open
            log_order = await LogOrderBuffer.recover(
                ledger, metadata, outcomes, clock, config, stable_moved, kept, undecided
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
        """The topic has recovered: settle transactions that were left open."""
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
        is deduplication's data to store with them.

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

    def _set_up_aside(self) -> "CommitOrderBuffer":
        if self._aside is None:
            from pybroker.transaction.buffer.commit_order.commit_order_buffer import (
                CommitOrderBuffer,
            )

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
        """End the transaction here. Durable and in effect when the future completes; None: the
        transaction never wrote here, or has ended.

        Fails with the log's errors; then retry. The future is shared: do not cancel it.
        `not_later`: raises WouldWait if the marker cannot be queued in the storage in this turn.
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
        """Called for each transaction that has ended here."""
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
        """Make the ends durable elsewhere, so that the topic's log need no longer record them.
        Raises ManagedLedgerError.
        """
        if self._aside is not None:
            await self._aside.forget_ended()

    # Deduplication

    def deduplicated_by(self, sequence_ids: "SequenceIds") -> None:
        """Deduplicate from now on, including the messages that are already kept aside."""
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
        """The last entry that may be read: after it an open transaction begins, or the log ends."""
        return self._log.max_read_position

    @property
    def max_uncommitted_position(self) -> Position:
        """Like `max_read_position`, for readers of uncommitted messages. They, too, wait for
        copies, because a copy may be given up and repeated until its marker is durable.
        """
        return self._log.limit_of_copies()

    def last_visible_position(self, up_to: Position | None = None) -> Position:
        """The newest deliverable entry, before `up_to` if given; entry id -1 if there is none."""
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
        """Whether entries may still be added to the log without a connected producer."""
        return self._aside is not None and bool(self._aside.open)

    @property
    def keeps_aside(self) -> bool:
        """Whether transactions are or were kept aside. Then the entries of the log may not be in
        the order of publication.
        """
        return self._aside is not None

    @property
    def aside_bytes(self) -> int:
        """The size of the log beside the topic's own."""
        return 0 if self._aside is None else self._aside.size_bytes

    @property
    def waiting_bytes(self) -> int:
        """The part of `aside_bytes` that open transactions hold."""
        return 0 if self._aside is None else self._aside.open.size_bytes

    @property
    def open_count(self) -> int:
        """A transaction that is being copied counts once."""
        return sum(1 for _ in self._ongoing()) if self.has_aside else self._log.open_count

    def oldest(self) -> OngoingTransaction | None:
        """The transaction that holds readers back, if any."""
        return self._log.oldest()

    def ongoing(self, most: int | None = None) -> list[OngoingTransaction]:
        """All open transactions, or the first `most`: first those in the topic's own log, ordered
        by their first entries, then those aside, which block no readers.
        """
        if self._aside is None:
            return self._log.ongoing(most)
        return list(islice(self._ongoing(), most))

    def first_position_of(self, txn_id: TxnId) -> Position | None:
        """The position of the transaction's first durable entry, in either log; None if it has
        none, or has ended.
        """
        aside = None if self._aside is None else self._aside.open.get(txn_id)
        if aside is not None:
            return aside.ranges.first_position
        return self._log.ranges_of(txn_id).first_position

    def first_in_log(self, txn_id: TxnId) -> Position | None:
        """Like `first_position_of`, but only in the topic's own log."""
        return self._log.ranges_of(txn_id).first_position

    def ranges_in_log(self, txn_id: TxnId, most: int) -> list[tuple[int, int, int]]:
        """The first `most` ranges of its durable entries in the topic's log: ledger, first,
        last.
        """
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
        """Count in `contents` the messages that open transactions held when the topic was loaded;
        this reads all of them. `ledger` is the topic's own. Only the first call does it, and no
        caller needs to wait.
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
                if self.first_position_of(txn_id) is not None:  # otherwise it ended meanwhile
                    self.contents.add(txn_id, *held)

    # Life

    async def close(self) -> None:
        """Write a snapshot, so that the next recovery scans nothing, and close. Idempotent."""
        self.contents.forget()
        if self._aside is not None:
            await self._aside.stop()
        await self._log.close()
        if self._aside is not None:
            await self._aside.close()

    async def stop(self) -> None:
        """Stop writing: the topic is being deleted or unloaded."""
        self.contents.forget()
        if self._aside is not None:
            await self._aside.stop()
        await self._log.stop()
        if self._aside is not None:
            self._aside.break_cycle()
