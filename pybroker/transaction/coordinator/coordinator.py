"""A transaction coordinator: logs each decision, then has the participants follow it.

Participants are the topics and subscriptions that a transaction uses. Each command has four steps:

    decide   metadata_store.decide_*: may refuse, changes nothing
    log      append the decision to the transaction log, in order
    apply    metadata_store.apply: at once, so that the next decision sees it
    answer   only when the log entry is durable

An END logs two decisions. COMMITTING or ABORTING settles the outcome: from then on the coordinator
tells each participant until it has followed. COMMITTED or ABORTED closes the transaction after the
last one. Repeated requests for the same end wait for the end in progress.

Memory is ahead of the disk only by the entries in flight, and no answer depends on an entry that
may still be lost: even a refusal waits until the decision that caused it is durable. If an append
fails, this coordinator stops and fails all waiting requests. `Coordinators` then opens a new one
from the log.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from managed_ledger.errors import ManagedLedgerError
from managed_ledger.prompt import Prompt, fail, prompt
from pybroker.base.errors import InvalidTxnStatus, TransactionCoordinatorNotFound
from pybroker.base.names import TxnId
from pybroker.base.runtime import Clock, Pace, Tasks
from pybroker.transaction.coordinator.coordinator_limits import CoordinatorLimits
from pybroker.transaction.coordinator.coordinator_stats import CoordinatorStats, ExecutionTimes
from pybroker.transaction.coordinator.ends.ended_transactions import EndedTransactions
from pybroker.transaction.coordinator.ends.endings import Endings
from pybroker.transaction.coordinator.ends.participants import ParticipantEnds, Participants, Retry
from pybroker.transaction.coordinator.ends.timeline import NOT_OF_PREPARED, DecidedBy, note_added
from pybroker.transaction.coordinator.ends.timeouts import Timeouts
from pybroker.transaction.coordinator.group_commits.group_ends import Core, GroupEnds
from pybroker.transaction.coordinator.live_transaction import TransactionMetadata
from pybroker.transaction.coordinator.log.records import (
    BindSession,
    ChangeStatus,
    Record,
    SpanNamespace,
)
from pybroker.transaction.coordinator.log.transaction_log import TransactionLog
from pybroker.transaction.coordinator.metadata_store import Promised, TransactionMetadataStore
from pybroker.transaction.coordinator.preparing import Core as PreparingCore
from pybroker.transaction.coordinator.preparing import Preparing
from pybroker.transaction.coordinator.sessions.transactional_ids import SessionRef
from pybroker.transaction.snapshot_log import Done, InOrder
from pybroker.transaction.txn_status import (
    ACTION_OF_STATUS,
    UNDECIDED,
    TxnAction,
    TxnStatus,
    coordinator_not_ready,
)

_TOLD_A_TURN: Final = 200  # participants, by timeouts and by recovery

log = logging.getLogger(__name__)


class TransactionCoordinator:
    """The transactions of one coordinator id. `open` makes one from its log. A `principal` of None
    may do everything: authentication is off, or the client is a superuser.
    """

    def __init__(
        self,
        coordinator_id: int,
        store: TransactionMetadataStore,
        transaction_log: TransactionLog,
        clock: Clock,
        participants: Participants,
        failed: Callable[["TransactionCoordinator"], None],
        ended: EndedTransactions,
    ) -> None:
        self.coordinator_id = coordinator_id
        self._store = store
        self._log, self._clock = transaction_log, clock
        # See the store: who owns a local id, live or ended, and what is live.
        self.owner_of, self.bound_to = store.owner_of, store.bound_to
        self.live_of, self.live_in, self.live = store.live_of, store.live_in, store.live
        self.participants_of, self.prepared = store.participants_of, store.prepared
        self._failed, self._noted_ended = failed, ended
        self._endings = Endings(coordinator_id)
        self._timeouts = Timeouts(clock, self._expired, _TOLD_A_TURN)
        self._tasks = Tasks(f"transaction coordinator {coordinator_id}")
        self._participants = ParticipantEnds(participants, self._tasks, clock.now_ms)
        self._served_from_ms = store.outcomes.latest_ms or clock.now_ms()
        self._served_since_s = clock.monotonic_s()
        self.recovered_ms = (0, 0)  # when recovery began and when it was complete
        self._snapshotting: asyncio.Task[None] | None = None
        self._closed = False
        self._opened = self._timed_out = 0
        self._execution_ms = ExecutionTimes()
        self._ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}
        core = Core(
            self._check_open,
            self._not_found,
            self._end_decided,
            self._timeouts.remove,
            self._track_what_is_left,
            self._snapshot_if_due,
        )
        self.group_ends = GroupEnds(
            coordinator_id, store, transaction_log, self._endings, self._tasks, clock, core
        )
        self.preparing = Preparing(
            coordinator_id,
            store,
            clock,
            self._endings,
            self._timeouts,
            self.group_ends,
            PreparingCore(self._check_open, self._not_found, self._log_then),
        )
        transaction_log.on_failure(self._fail)

    @property
    def is_full(self) -> bool:
        return self._store.is_full

    # Commands. Each takes effect at once. Its future completes with the id once the effect is
    # durable, or fails with TransactionCoordinatorNotFound if this coordinator fails or closes.

    def new_transaction(
        self,
        timeout_ms: int | None,
        owner: str | None,
        exempt: bool = False,
        namespace: str | None = None,
        session: SessionRef | None = None,
        client: tuple[str, str] | None = None,
    ) -> asyncio.Future[TxnId]:
        """`timeout_ms`: None for none. `namespace`: its topics join the transaction when touched,
        see `joining`. `session`: the session of a transactional id that owns the transaction.
        `client`: address and version, for display.

        Raises NotAllowed (timeout); TooManyRequests if the coordinator is full, unless `exempt`.
        """
        self._check_open()
        decision = self._store.decide_new(timeout_ms, owner, self._clock.now_ms(), exempt)
        durable = self._log_and_apply(decision, decision.local_id)
        if namespace is not None:  # a crash before this leaves a transaction that no client knows
            spanning = SpanNamespace(decision.local_id, namespace)
            durable = self._log_and_apply(spanning, decision.local_id)
        if session is not None:  # the client learns the id only when this record is durable
            durable = self.bind(decision.local_id, session)
        self._opened += 1
        transaction = self._store.transactions[decision.local_id]
        transaction.client = client
        if transaction.waits_for_owner:
            self.preparing.watch(transaction)
        else:
            self._timeouts.add(decision.local_id, transaction.timeout_ms)
        return durable

    def bind(self, local_id: int, session: SessionRef) -> asyncio.Future[TxnId]:
        """Assign a live transaction that belongs to no session to `session`."""
        self._check_open()
        return self._log_and_apply(BindSession(local_id, session), local_id)

    def add_partitions(
        self, txn_id: TxnId, topics: list[str], principal: str | None
    ) -> asyncio.Future[TxnId]:
        """Record that `txn_id` writes to `topics` (canonical names). Idempotent.

        Raises, or fails with, TransactionNotFound, InvalidTxnStatus (not OPEN), NotAllowed (too
        many participants), and the errors of a namespace's limits (`Admission`).
        Source: PIP-31, "TC Request Processing".
        """
        self._check_open()
        local_id = txn_id.least
        try:
            decision = self._store.decide_add_partitions(local_id, topics, principal)
        except InvalidTxnStatus as refusal:
            return self._endings.refused(local_id, refusal)
        durable = self._log_and_apply(decision, local_id)
        note_added(self._store.transactions[local_id].partitions, topics, self._clock.now_ms())
        return durable

    def add_subscriptions(
        self, txn_id: TxnId, subscriptions: list[tuple[str, str]], principal: str | None
    ) -> asyncio.Future[TxnId]:
        """Record that `txn_id` acknowledges on (topic, subscription) pairs. Idempotent. Raises, or
        fails with, the errors of `add_partitions`.
        """
        self._check_open()
        local_id = txn_id.least
        try:
            decision = self._store.decide_add_subscriptions(local_id, subscriptions, principal)
        except InvalidTxnStatus as refusal:
            return self._endings.refused(local_id, refusal)
        durable = self._log_and_apply(decision, local_id)
        note_added(
            self._store.transactions[local_id].subscriptions, subscriptions, self._clock.now_ms()
        )
        return durable

    def end(self, txn_id: TxnId, action: TxnAction, principal: str | None) -> asyncio.Future[TxnId]:
        """Commit or abort. Completes when all participants have followed.

        Idempotent, even long after the end. Raises, or fails with, TransactionNotFound,
        InvalidTxnStatus (the opposite was decided).
        Differs: Apache Pulsar answers TransactionNotFound to a repeated END.
        """
        return self._end(txn_id.least, action, principal)

    def _end(
        self,
        local_id: int,
        action: TxnAction,
        principal: str | None,
        reason: str = "",
        by: DecidedBy = DecidedBy.CLIENT,
    ) -> asyncio.Future[TxnId]:
        self._check_open()
        self._store.forget_old_outcomes(self._served_ms())
        now_ms = self._clock.now_ms()
        if by in NOT_OF_PREPARED:
            self._store.require_unprepared(local_id)
        try:
            decision = self._store.decide_end(local_id, action, principal, now_ms, reason)
        except Promised:
            again = partial(self._end, local_id, action, principal, reason, by)
            return self.group_ends.end_when_free(local_id, again)
        except InvalidTxnStatus as refusal:
            return self._endings.refused(local_id, refusal)
        if decision is not None:
            self._start_end(local_id, action, decision, by)
        return self._endings.following(local_id)

    def abort(
        self, txn_id: TxnId, reason: str, by: DecidedBy = DecidedBy.ADMINISTRATOR
    ) -> asyncio.Future[TxnId]:
        """Like `end`, on behalf of anyone but the owner. The `reason` is a clause that says who
        aborted the transaction and why; the refusal of a later commit contains it.
        """
        return self._end(txn_id.least, TxnAction.ABORT, None, reason, by)

    def commit_together(
        self, txn_id: TxnId, others: Sequence[int], principal: str | None
    ) -> asyncio.Future[TxnId]:
        """Commit `txn_id` and others of this coordinator by one decision: all of them, or none.

        The others end first, so a reader that sees part of `txn_id` also finds all of theirs.
        (Recovery ends them in parallel.) Idempotent. Raises, or fails with, the errors of `end`,
        and InvalidTxnStatus if some were committed earlier and others were not. For transactions
        of other coordinators see `groups`.
        """
        self._check_open()
        local_ids = [each for each in dict.fromkeys(others) if each != txn_id.least]
        local_ids.append(txn_id.least)  # the leader is last, even if `others` contains it
        self._store.forget_old_outcomes(self._served_ms())
        return self.group_ends.commit(local_ids, (), principal)

    # Decide, log, apply

    def _log_and_apply(self, decision: Record, local_id: int) -> asyncio.Future[TxnId]:
        durable: Prompt[TxnId] = prompt()
        self._log_then(decision, partial(self._logged, durable, local_id))
        return durable

    def _log_then(self, decision: Record, done: Done, in_order: InOrder | None = None) -> None:
        """Takes effect at once. For `done` and `in_order` see `TransactionLog.append`."""
        self._log.append(decision, done, in_order)
        self._store.apply(decision)
        self._snapshot_if_due()

    def _logged(
        self, durable: asyncio.Future[TxnId], local_id: int, error: Exception | None
    ) -> None:
        if error is not None:
            fail(durable, self._not_found())
        elif not durable.done():  # otherwise the caller was cancelled
            durable.set_result(TxnId(self.coordinator_id, local_id))

    @property
    def served_s(self) -> float:
        """The time in seconds since this coordinator was opened."""
        return self._clock.monotonic_s() - self._served_since_s

    def _served_ms(self) -> int:
        """The time base for expiring outcomes; advances only while this coordinator is served."""
        return self._served_from_ms + int(1000 * (self._clock.monotonic_s() - self._served_since_s))

    # The end of a transaction

    def _start_end(
        self, local_id: int, action: TxnAction, decision: ChangeStatus, by: DecidedBy
    ) -> None:
        self._timeouts.remove(local_id)
        self._endings.begin(local_id)
        decided = partial(self._end_decided, local_id, action)
        self._log_then(decision, decided, partial(self._end_in_order, local_id, action))
        if (end := self._store.transactions[local_id].end) is not None:
            end.by = by

    def _end_in_order(self, local_id: int, action: TxnAction) -> None:
        """The decision is in the storage's queue. What participants append in this turn of the loop
        follows in the same commit of the storage, so it is durable only if the decision is.
        """
        transaction = self._store.transactions[local_id]
        self._participants.begin_everywhere(transaction, action, self._store.low_watermark)

    def _end_decided(self, local_id: int, action: TxnAction, error: BaseException | None) -> None:
        if error is not None or self._closed:
            # This coordinator has failed or is closed, and has failed its waiters. The next one
            # continues if the decision is durable.
            log.info("Transaction (%s,%s): its end is interrupted", self.coordinator_id, local_id)
            return
        self._endings.decided(local_id)
        self._participants.end_everywhere(
            self._store.transactions[local_id],
            action,
            self._store.low_watermark,
            partial(self._end_followed, local_id, action),
        )

    def _end_followed(self, local_id: int, action: TxnAction) -> None:
        """The decision and all its effects are durable, so no request waits for the record that
        closes the transaction. If a crash loses that record, recovery ends the transaction again.
        """
        transaction = self._store.transactions[local_id]
        why = "" if action is TxnAction.COMMIT else self._store.why_aborted(local_id)
        ended = self._store.decide_ended(local_id, action, self._served_ms())
        self._log.append_without_hurry(ended, _ignore_error)
        self._store.apply(ended)
        now_ms = self._clock.now_ms()
        self._execution_ms.add(max(0, now_ms - transaction.opened_at_ms))
        self._noted_ended.note(transaction, action, why, now_ms)
        self._snapshot_if_due()
        self._ended[action] += 1
        self._endings.over(local_id)

    def _track_what_is_left(self, transaction: TransactionMetadata) -> None:
        left_ms = transaction.left_ms(self._clock.now_ms())
        if left_ms is None:
            self.preparing.watch(transaction)
        else:  # If the wall clock was set back, it must not get more than its timeout.
            self._timeouts.add(transaction.txn_id.least, min(transaction.timeout_ms, left_ms))

    def _expired(self, local_id: int) -> int:
        transaction = self._store.get(local_id)
        if transaction is None or transaction.status not in UNDECIDED:
            return 0
        if transaction.waits_for_owner and not self.preparing.got_too_old(transaction):
            return 0
        self._timed_out += 1
        decision = self._store.decide_end(local_id, TxnAction.ABORT, None, self._clock.now_ms())
        assert decision is not None
        self._start_end(local_id, TxnAction.ABORT, decision, DecidedBy.TIMEOUT)
        return 1 + transaction.participant_count

    # Recovery, snapshots, failure

    @classmethod
    async def open(
        cls,
        coordinator_id: int,
        transaction_log: TransactionLog,
        limits: CoordinatorLimits,
        clock: Clock,
        participants: Participants,
        failed: Callable[["TransactionCoordinator"], None],
        ended: EndedTransactions,
    ) -> "TransactionCoordinator":
        """Replay the log. No end continues before `resume`: register the coordinator in between."""
        store, begun_ms = TransactionMetadataStore(coordinator_id, limits), clock.now_ms()
        await transaction_log.replay(store)
        limits.replayed(store.transactions.values(), begun_ms)
        coordinator = cls(
            coordinator_id, store, transaction_log, clock, participants, failed, ended
        )
        coordinator.recovered_ms = begun_ms, clock.now_ms()
        return coordinator

    async def resume(self) -> None:
        """Continue decided ends, in the order of decision, and the timeouts of the others; a
        limited number per turn. Topics in commit order rely on that order: until this returns, the
        caller must not end a transaction, except by an abort.
        """
        transactions, pace = self._store.decided_first(), Pace(_TOLD_A_TURN)
        for transaction in transactions:
            if transaction.status not in UNDECIDED:
                self._endings.begin(transaction.txn_id.least)  # repeated ENDs wait for this end
        decided = [(each, each.status) for each in transactions]
        for transaction, status in decided:
            if self._closed:
                return
            if self._store.get(transaction.txn_id.least) is transaction:
                self._resume(transaction, status)
            await pace.step(1 + transaction.participant_count)

    def _resume(self, transaction: TransactionMetadata, status: TxnStatus) -> None:
        """`status` is the status when `resume` began: an end that began later needs no help."""
        if transaction.status is not status or self.group_ends.resume(transaction):
            return
        if status in UNDECIDED:
            self._track_what_is_left(transaction)
        else:
            self._end_decided(transaction.txn_id.least, ACTION_OF_STATUS[status], None)

    def _snapshot_if_due(self) -> None:
        records = self._log.records_since_snapshot
        if records < self._store.snapshot_entries or self._snapshotting is not None:
            return
        if self._store.snapshot_pays_after(records):
            self._snapshotting = self._tasks.start(self._snapshot(), "snapshot")

    async def _snapshot(self) -> None:
        try:
            await self._log.snapshot(self._store)
        except ManagedLedgerError as error:
            self._fail(error)
        finally:
            self._snapshotting = None

    async def replace_past(self) -> None:
        """Write a snapshot now. Raises ManagedLedgerError."""
        await self._log.snapshot(self._store)

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            log.error("Transaction coordinator %s: %s; reopening it", self.coordinator_id, error)
            self._stop()
            self._log.abandon(error)
            self._failed(self)

    def _stop(self) -> None:
        self._closed = self._participants.closed = True
        if self._snapshotting is not None:  # it would contain decisions that were never written
            self._snapshotting.cancel()
        self._timeouts.stop()
        self._endings.fail(self._not_found())
        self.group_ends.fail(self._not_found())

    def _check_open(self) -> None:
        if self._closed:
            raise self._not_found()

    def _not_found(self) -> TransactionCoordinatorNotFound:
        return coordinator_not_ready(self.coordinator_id)

    async def close(self) -> None:
        """Release the log; unfinished ends continue at the next `open`. Idempotent."""
        if not self._closed:
            self._stop()
        await self._tasks.close()
        await self._log.close()

    # Queries

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return self._store.status(txn_id.least)

    def is_deciding(self, txn_id: TxnId) -> bool:
        """Whether the status comes from a decision that is not durable yet."""
        return self._endings.is_undecided(txn_id.least)

    def metadata(self, txn_id: TxnId) -> TransactionMetadata | None:
        """The live transaction, or None; read-only for the caller."""
        return self._store.transactions.get(txn_id.least)

    def why_aborted(self, txn_id: TxnId) -> str:
        """The reason given to `abort`; empty if there was none or if it is no longer known."""
        return self._store.why_aborted(txn_id.least)

    @property
    def highest_id(self) -> int:
        """The highest local id assigned so far; -1 before the first."""
        return self._store.highest_id

    def retries_of(self, txn_id: TxnId) -> list[Retry]:
        """Participants that have failed to follow the end and are told again."""
        return [each for each in self._participants.retries() if each.txn_id == txn_id]

    def stats(self) -> CoordinatorStats:
        return CoordinatorStats(
            self.coordinator_id,
            self._store.live_count,
            self._store.low_watermark,
            self._store.highest_id,
            self._opened,
            self._ended[TxnAction.COMMIT],
            self._ended[TxnAction.ABORT],
            self._timed_out,
            self._participants.retries(),
            self._participants.given_up(),
            self._log.appended,
            self._execution_ms,
        )


def _ignore_error(error: Exception | None) -> None:
    """No request waits for this record; if it fails, the log notifies the coordinator."""
