"""Transactions in commit order: they wait in a side log until a commit copies them to the topic's.

    append   entries go into the side log, tagged with their transaction; no reader waits for them
    commit   the entries, then a marker, are copied into the topic's log: at once if they are few
             and in memory, otherwise piece by piece. Copies run one after the other, in the order
             in which the ENDs arrived. Readers wait before a copy until its marker is durable
    abort    nothing goes into the topic's log, except the data that deduplication needs
    after    the marker, or the abort, the entries of the side log are deleted

A crash leaves one of two states. If the topic's log has no marker, the side log still has the
entries: an incomplete copy is hidden for good, and the copy is repeated when the END is repeated.
If there is a marker, the side log may still have the entries: recovery finds the marker, because no
snapshot of the log-order part passes it before the deletion of the entries is durable.

Differs: PIP-31 would write one entry into the topic that refers to the side log. The ids of its
messages would be the id of that entry with batch indexes, and official clients cannot split an
entry that mixes producers or contains encrypted, compressed or chunked messages. A copy stores the
messages twice, but every client understands it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from managed_ledger.appender import Appended
from managed_ledger.errors import LedgerClosed, ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import LATEST, Position
from managed_ledger.prompt import prompt
from managed_ledger.storage.backend import EntryRun
from pybroker.base.configuration.config import BrokerConfig
from pybroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from pybroker.base.names import TxnId, side_log, topic_of_ledger
from pybroker.base.runtime import Clock, Tasks
from pybroker.transaction.buffer.commit_order.aside_transactions import (
    AsideTransaction,
    AsideTransactions,
)
from pybroker.transaction.buffer.commit_order.copying import Copy, SequenceIds, copy_what_is_told
from pybroker.transaction.buffer.commit_order.end_queue import EndQueue
from pybroker.transaction.buffer.commit_order.known_ends import KnownEnds
from pybroker.transaction.buffer.commit_order.side_log import SideLog
from pybroker.transaction.buffer.log_order.log_order_buffer import LogOrderBuffer
from pybroker.transaction.buffer.transactional_entries import with_sent
from pybroker.transaction.paced_visits import PacedVisits
from pybroker.transaction.txn_status import (
    TransactionOutcomes,
    TxnAction,
    action_to_settle,
    require_open,
    require_partition,
)

_AT_ONCE_BYTES: Final = 256 * 1024
_AT_ONCE_RANGES: Final = 100

Held = tuple[Sequence[bytes], Sequence[int], Appended, bytes]

log = logging.getLogger(__name__)


class CommitOrderBuffer:
    """The transactions whose messages one topic keeps in its side log until they commit. `recover`
    makes one from a side log that exists.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_copying",
        "_ends",
        "_factory",
        "_held",
        "_known_ends",
        "_ledger_name",
        "_live",
        "_log",
        "_outcomes",
        "_side",
        "_tasks",
        "_visits",
        "open",
        "sequence_ids",
    )

    def __init__(
        self,
        factory: ManagedLedgerFactory,
        ledger_name: str,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
    ) -> None:
        self._factory, self._ledger_name = factory, ledger_name
        self._outcomes, self._clock, self._config = outcomes, clock, config
        self._log: LogOrderBuffer | None = None
        self._side: SideLog | None = None  # opened at the first append
        self.open = AsideTransactions()
        self.sequence_ids: SequenceIds | None = None  # if messages are deduplicated
        self._held: list[Held] | None = None  # not None while the side log is being opened
        self._ends = EndQueue()
        self._copying = False  # a copy that takes more than one turn is in progress
        self._known_ends = KnownEnds()
        self._tasks = Tasks(self)
        self._visits = PacedVisits(factory.housekeeper)
        self._live = False

    @classmethod
    async def recover(
        cls,
        factory: ManagedLedgerFactory,
        ledger_name: str,
        outcomes: TransactionOutcomes,
        clock: Clock,
        config: BrokerConfig,
    ) -> "CommitOrderBuffer":
        """Create the buffer of a topic that has a side log. Raises ManagedLedgerError."""
        buffer = cls(factory, ledger_name, outcomes, clock, config)
        buffer._side = await SideLog.open(factory, side_log(ledger_name))
        try:
            await buffer._side.recover(buffer.open, clock.now_ms())
        except BaseException:
            await buffer._side.ledger.close()
            raise
        return buffer

    def serve(self, log_order: LogOrderBuffer) -> None:
        """Copy into `log_order`, which has recovered. Applies what its recovery found about the
        transactions kept aside.
        """
        self._log = log_order
        log_order.written_first = self._flush
        log_order.ledger.trimmer.keep(self._kept_from)
        ended, given_up = log_order.told_of_those_aside()
        for txn_id in dict.fromkeys(ended):
            self._known_ends.found()
            self._drop(txn_id)
        for txn_id in given_up:
            transaction = self.open.get(txn_id)
            if transaction is not None:
                transaction.given_up = True

    def loaded(self) -> None:
        """Begin to end transactions, including those decided before the topic was loaded: an abort
        leaves no durable trace here.
        """
        self._live = True
        self._visited()
        self._go_on()  # with ENDs that have arrived already

    def __str__(self) -> str:
        return f"The side log of {self._topic}"

    @property
    def _topic(self) -> str:
        return topic_of_ledger(self._ledger_name)

    @property
    def log_order(self) -> LogOrderBuffer:
        assert self._log is not None, "it serves"
        return self._log

    # Publish

    def append(
        self,
        txn_id: TxnId,
        entries: Sequence[bytes],
        message_counts: Sequence[int],
        done: Appended,
        sent: bytes | None = None,
    ) -> None:
        """As TopicTransactions.append; but `done` receives the position in the side log: that in
        the topic's log is not known before the commit.
        """
        try:
            require_open(self._outcomes, txn_id)
            transaction = self.open.get(txn_id) or self._begin(txn_id)
            if transaction.ending is not None:
                raise InvalidTxnStatus(f"Transaction {txn_id} is being ended on {self._topic}")
        except PulsarError as refusal:
            done(None, refusal)
            return
        transaction.in_flight += 1
        size_bytes = sum(map(len, entries))
        answered = partial(self._appended, txn_id, transaction, len(entries), size_bytes, done)
        tag = transaction.tag if sent is None else with_sent(sent, transaction.tag)
        if self._side is not None:
            self._side.ledger.append(entries, message_counts, answered, tag)
            return
        if self._held is None:
            self._held = []
            self._tasks.start(self._open_side(), "opening the side log")
        self._held.append((entries, message_counts, answered, tag))

    def _begin(self, txn_id: TxnId) -> AsideTransaction:
        require_partition(self._outcomes, txn_id, self._topic)
        self._visit_later()
        return self.open.begin(txn_id, self._clock.now_ms())

    async def _open_side(self) -> None:
        try:
            await self.log_order.prepare_for_copies()
            self._side = await SideLog.open(self._factory, side_log(self._ledger_name))
        except BaseException as error:
            self._refuse_held(error)
            raise
        held, self._held = self._held or [], None
        for entries, message_counts, answered, tag in held:
            self._side.ledger.append(entries, message_counts, answered, tag)

    def _refuse_held(self, error: BaseException) -> None:
        held, self._held = self._held or [], None
        why = f"the side log of {self._topic} cannot be opened: {error}"
        for _, _, answered, _ in held:
            answered(None, LedgerClosed(why))

    def _appended(
        self,
        txn_id: TxnId,
        transaction: AsideTransaction,
        count: int,
        size_bytes: int,
        done: Appended,
        first: Position | None,
        error: Exception | None,
    ) -> None:
        transaction.in_flight -= 1
        if first is not None:
            self.open.appended(transaction, first, count, size_bytes)
        elif not (transaction.ranges or transaction.in_flight or transaction.ending):
            self.open.remove(txn_id)
        done(first, error)
        if transaction.ending is None or transaction.in_flight:
            return
        if transaction.action is TxnAction.ABORT:
            self._ends.add(txn_id, TxnAction.ABORT)
        self._go_on()

    # End

    def end(self, txn_id: TxnId, action: TxnAction) -> "asyncio.Future[None] | None":
        """Like LogOrderBuffer.end."""
        transaction = self.open.get(txn_id)
        if transaction is None:
            return None
        ending = transaction.ending
        if ending is None:
            ending = transaction.ending = prompt()
            transaction.action = action
            if action is TxnAction.COMMIT or not transaction.in_flight:
                self._ends.add(txn_id, action)
            self._go_on()
        return ending if txn_id in self.open else None

    def settle_if_over(self, most: int, low_watermark: int) -> None:
        """Settle the oldest transaction, if the low watermark of an END says that it has ended."""
        oldest = self.open.oldest()
        if oldest is not None and oldest.most == most and oldest.least <= low_watermark:
            self._settle(oldest)

    def _settle(self, txn_id: TxnId) -> None:
        transaction = self.open.get(txn_id)
        if transaction is None or transaction.ending is not None:
            return
        try:
            action = action_to_settle(self._outcomes, txn_id)
        except TransactionCoordinatorNotFound:
            return  # the outcome is not known yet: ask again later
        if action is not None:
            what = "%s: transaction %s was left open; its outcome is %s"
            log.warning(what, self._topic, txn_id, action.name)
            self.end(txn_id, action)

    def _go_on(self) -> None:
        """Perform the next ends. An end waits for its transaction's appends to the side log."""
        while self._live:
            txn_id = self._ends.first(not self._copying, self._go_on)
            if txn_id is None:
                return
            transaction = self.open.get(txn_id)
            assert transaction is not None, "the transaction is being ended"
            if transaction.in_flight:
                return
            self._ends.begin(len(transaction.ranges))
            if transaction.action is TxnAction.ABORT:
                self._abort(txn_id, transaction)
            elif not self._copy_at_once(txn_id, transaction):
                self._copying = True
                self._tasks.start(self._copy(txn_id, transaction), f"copying {txn_id}")

    def _copy_at_once(self, txn_id: TxnId, transaction: AsideTransaction) -> bool:
        """Copy the whole transaction and its marker in one turn, if it is small and in memory."""
        if not transaction.ranges:  # it has no entries, and there may be no side log
            self._end_copy(txn_id, transaction, TxnAction.COMMIT)
            return True
        assert self._side is not None
        if transaction.given_up or transaction.size_bytes > _AT_ONCE_BYTES:
            return False
        if len(transaction.ranges) > _AT_ONCE_RANGES:
            return False
        runs = self._side.cached(transaction.ranges)
        if runs is None:
            return False
        copy = Copy(self.log_order, txn_id, self.sequence_ids, self._clock.now_ms())
        copy.copy(runs)
        copy.complete()
        self._end_copy(txn_id, transaction, TxnAction.COMMIT)
        return True

    async def _copy(self, txn_id: TxnId, transaction: AsideTransaction) -> None:
        assert self._side is not None
        copy = Copy(self.log_order, txn_id, self.sequence_ids, self._clock.now_ms())
        try:
            await self._forget_given_up(transaction)
            async for run in self._side.read(transaction.ranges):
                copy.copy([run])
                await copy.room()
            copy.complete()
            self._end_copy(txn_id, transaction, TxnAction.COMMIT)
        except (ManagedLedgerError, PulsarError) as error:
            await copy.settled()
            self._failed(txn_id, transaction, error)
        finally:
            self._copying = False
            self._go_on()

    async def _forget_given_up(self, transaction: AsideTransaction) -> None:
        """If an incomplete copy is hidden, make that durable before the next copy."""
        if transaction.given_up:
            await self.log_order.write_snapshot()
            transaction.given_up = False

    def _abort(self, txn_id: TxnId, transaction: AsideTransaction) -> None:
        """After a crash, recovery finds the transaction and asks for the outcome, so no record of
        the abort is needed. But sequence ids that deduplication releases go into the topic's log,
        in order.
        """
        told = [] if self.sequence_ids is None else self.sequence_ids.given_back(txn_id)
        if not told:
            self._over(txn_id, transaction, TxnAction.ABORT)
        elif transaction.given_up:  # an earlier attempt failed
            again = self._abort_again(txn_id, transaction, told)
            self._tasks.start(again, f"aborting {txn_id}")
        else:
            self._tell(txn_id, transaction, told)

    async def _abort_again(
        self, txn_id: TxnId, transaction: AsideTransaction, told: list[bytes]
    ) -> None:
        try:
            await self._forget_given_up(transaction)
        except (ManagedLedgerError, PulsarError) as error:
            self._failed(txn_id, transaction, error)
        else:
            self._tell(txn_id, transaction, told)

    def _tell(self, txn_id: TxnId, transaction: AsideTransaction, told: list[bytes]) -> None:
        copy_what_is_told(self.log_order, txn_id, told, self._clock.now_ms())
        self._end_copy(txn_id, transaction, TxnAction.ABORT)

    def _end_copy(self, txn_id: TxnId, transaction: AsideTransaction, action: TxnAction) -> None:
        if not self.log_order.holds(txn_id):  # nothing was copied: no entries, or all are damaged
            self._over(txn_id, transaction, action)
            return
        ended = partial(self._copy_ended, txn_id, transaction)
        self.log_order.end_copy(txn_id, action, ended, transaction.followed)

    def _copy_ended(
        self, txn_id: TxnId, transaction: AsideTransaction, error: Exception | None
    ) -> None:
        if error is None:
            first = self.log_order.ranges_of(txn_id).first_position
            self._known_ends.add(first)
            self._drop(txn_id)
        else:
            self._failed(txn_id, transaction, error)

    def _failed(self, txn_id: TxnId, transaction: AsideTransaction, error: BaseException) -> None:
        """The copy is repeated when the END is repeated. So are its coordinator's commits behind
        it, which must not go before it.
        """
        if self.log_order.give_up_copy(txn_id):
            transaction.given_up = True
        is_commit = transaction.action is TxnAction.COMMIT
        later = self._ends.take_commits(txn_id.most) if is_commit else []
        transaction.failed(error)
        for each in later:
            if (behind := self.open.get(each)) is not None:
                behind.failed(error)

    def _over(self, txn_id: TxnId, transaction: AsideTransaction, action: TxnAction) -> None:
        """End a transaction that has no entries in the topic's log."""
        self._drop(txn_id)
        self.log_order.on_ended(txn_id, action, None)
        transaction.followed()

    def _drop(self, txn_id: TxnId) -> None:
        transaction = self.open.get(txn_id)
        if transaction is None:
            return
        self.open.remove(txn_id)
        if self._side is not None and not self._side.delete(transaction.ranges) and self._live:
            self._tasks.start(self._side.delete_rest(), f"deleting {txn_id}")

    # Timed work

    def _visit_later(self) -> None:
        if self._live:
            after_ms = max(100, self._config.transaction_buffer_snapshot_min_time_in_millis)
            self._visits.visit_in(after_ms / 1000, self._visited)

    def _visited(self) -> None:
        self._visits.visit(iter(list(self.open)), self._settle, self._all_settled)

    def _all_settled(self) -> None:
        if self.open:
            self._visit_later()

    async def _flush(self) -> None:
        """Make deletions durable; runs before the log-order part forgets ended transactions."""
        if self._side is not None and not self._side.ledger.closed:
            await self._side.flush()

    def _kept_from(self) -> Position:
        needed = self._known_ends.first
        if needed < LATEST and self._live and not self._known_ends.are_being_forgotten:
            self._tasks.start(self._forget_and_trim(), "the deletion of what has ended")
        return needed

    async def _forget_and_trim(self) -> None:
        try:
            await self.forget_ended()
        finally:
            if self._live:
                self.log_order.ledger.touch()

    async def forget_ended(self) -> None:
        """Make deletions durable, so that the topic's log need no longer record the ends. Raises
        ManagedLedgerError.
        """
        await self._known_ends.forget(self._flush)

    async def read_open(self) -> AsyncIterator[EntryRun]:
        """The entries, piece by piece; no transaction may be added or ended meanwhile."""
        for _, transaction in list(self.open.items()):
            if self._side is not None:
                async for run in self._side.read(transaction.ranges):
                    yield run

    # For stats

    @property
    def ledger(self) -> ManagedLedger | None:
        """The log beside the topic's own; None until it is open."""
        return None if self._side is None else self._side.ledger

    @property
    def size_bytes(self) -> int:
        """The size of the side log on disk."""
        return 0 if self._side is None else self._side.ledger.total_size_bytes

    # Life

    async def stop(self) -> None:
        """Start nothing more, and fail waiting ENDs; their coordinators repeat them."""
        self._live = False
        self._visits.cancel()
        await self._tasks.close()
        why = f"{self._topic} is being unloaded"
        self._refuse_held(ServiceNotReady(why))  # the side log may not have begun to open
        for _, transaction in list(self.open.items()):
            transaction.failed(ServiceNotReady(why))

    async def close(self) -> None:
        """Call it after `stop` and after closing the log-order part, which needs the side log."""
        self.break_cycle()
        if self._side is not None:
            await self._side.ledger.close()

    def break_cycle(self) -> None:
        """Drop the log-order part's reference to this buffer: it is part of a reference cycle."""
        if self._log is not None:
            self._log.written_first = None
