"""A transaction coordinator: decides, logs, applies; then makes every participant follow.

    decide   metadata_store.decide_*: may refuse, changes nothing
    log      the decision goes into the transaction log, in order
    apply    metadata_store.apply: at once, so that the next decision sees it
    answer   only when the log entry is durable

An END is two such steps with the participants between them: COMMITTING or ABORTING is the decision;
once it is durable each participant is told, again and again until it has followed; COMMITTED or
ABORTED closes the transaction. Whoever asks for the same end meanwhile waits for the one that runs.

Memory is ahead of the disk only by entries in flight, and no answer tells what may still be lost: a
refusal that rests on a decision waits for it, too. If an entry fails, this coordinator is done for:
it fails whoever waits, and `Coordinators` opens a new one from the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar, TypeVarTuple

from managed_ledger.errors import ManagedLedgerError
from pybroker.errors import InvalidTxnStatus, TransactionCoordinatorNotFound
from pybroker.names import TxnId
from pybroker.runtime import Clock, Tasks
from pybroker.transaction.metadata_store import (
    CoordinatorLimits,
    Record,
    TransactionMetadata,
    TransactionMetadataStore,
)
from pybroker.transaction.participants import ParticipantEnds, Participants, Retry
from pybroker.transaction.timeout_tracker import TimeoutTracker
from pybroker.transaction.transaction_log import TransactionLog
from pybroker.transaction.txn_status import ACTION_OF_STATUS, TxnAction, TxnStatus

_FULL_WAIT_S: Final = 0.1
Arguments = TypeVarTuple("Arguments")
Decision = TypeVar("Decision")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    coordinator_id: int
    active: int
    low_watermark: int
    opened: int
    committed: int
    aborted: int
    timed_out: int
    retries: list[Retry]
    given_up: list[Retry]


@dataclass(frozen=True, slots=True)
class _Ending:
    decided: asyncio.Future[None]  # the decision is durable
    followed: asyncio.Future[None]  # and all participants have followed

    def fail(self, error: Exception) -> None:
        for waited_for in (self.decided, self.followed):
            if not waited_for.done():
                waited_for.set_exception(error)
                waited_for.exception()  # retrieved: nobody may be waiting


class TransactionCoordinator:
    """Transactions of one coordinator id. Build it with `open`.

    A `principal` of None may do everything: authentication is off, or it is a superuser.
    """

    def __init__(
        self,
        coordinator_id: int,
        store: TransactionMetadataStore,
        transaction_log: TransactionLog,
        clock: Clock,
        participants: Participants,
        failed: Callable[["TransactionCoordinator"], None],
    ) -> None:
        self.coordinator_id = coordinator_id
        self._store = store
        self._log = transaction_log
        self._clock = clock
        self._participants = ParticipantEnds(participants)
        self._failed = failed
        self._ends: dict[int, _Ending] = {}
        self._timeouts = TimeoutTracker()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._tasks = Tasks(f"transaction coordinator {coordinator_id}")
        self._snapshotting = False
        self._closed = False
        self._opened = self._timed_out = 0
        self._ended = {TxnAction.COMMIT: 0, TxnAction.ABORT: 0}
        transaction_log.on_failure(self._fail)

    # Commands

    async def new_transaction(self, timeout_ms: int, owner: str | None) -> TxnId:
        """Raises NotAllowed (timeout), TooManyRequests (after a short wait for room)."""
        if self._store.is_full:
            await asyncio.sleep(_FULL_WAIT_S)
        self._check_open()
        decision = self._store.decide_new(timeout_ms, owner, self._clock.now_ms())
        durable = self._log_and_apply(decision)
        self._opened += 1
        self._track(decision.local_id, timeout_ms)
        await durable
        return TxnId(self.coordinator_id, decision.local_id)

    async def add_partitions(self, txn_id: TxnId, topics: list[str], principal: str | None) -> None:
        """Record that `txn_id` writes to `topics`, by canonical name. Idempotent.

        Raises TransactionNotFound, InvalidTxnStatus (not OPEN).
        Source: PIP-31, "TC Request Processing".
        """
        self._check_open()
        decide = self._store.decide_add_partitions
        decision = await self._decided(decide, txn_id.least, topics, principal)
        await self._log_and_apply(decision)

    async def add_subscriptions(
        self, txn_id: TxnId, subscriptions: list[tuple[str, str]], principal: str | None
    ) -> None:
        """Record that `txn_id` acknowledges on (topic, subscription) pairs. Idempotent.

        Raises TransactionNotFound, InvalidTxnStatus (not OPEN).
        """
        self._check_open()
        decide = self._store.decide_add_subscriptions
        decision = await self._decided(decide, txn_id.least, subscriptions, principal)
        await self._log_and_apply(decision)

    async def end(self, txn_id: TxnId, action: TxnAction, principal: str | None) -> None:
        """Commit or abort; all participants have followed when this returns.

        Idempotent, also long after the end. Raises TransactionNotFound, InvalidTxnStatus (the
        opposite was decided).
        Differs: Apache Pulsar answers TransactionNotFound to the repeated END of an ended one.
        """
        self._check_open()
        decide, now_ms = self._store.decide_end, self._clock.now_ms()
        decision = await self._decided(decide, txn_id.least, action, principal, now_ms)
        if decision is not None:
            self._start_end(txn_id.least, action, self._log_and_apply(decision))
        running = self._ends.get(txn_id.least)
        if running is not None:
            await asyncio.shield(running.followed)

    async def _decided(
        self, decide: Callable[[int, *Arguments], Decision], local_id: int, *arguments: *Arguments
    ) -> Decision:
        """At once; only a refusal may take its time. Who is told that a transaction ends takes it
        for granted, and a crash could still undo a decision that is not durable.
        """
        try:
            return decide(local_id, *arguments)
        except InvalidTxnStatus:
            if (running := self._ends.get(local_id)) is not None:
                await asyncio.shield(running.decided)
            raise

    # Decide, log, apply

    def _log_and_apply(self, decision: Record) -> Awaitable[object]:
        self._check_open()
        durable = self._log.append(decision)
        self._store.apply(decision)
        self._snapshot_if_due()
        return self._until_durable(durable)

    async def _until_durable(self, durable: Awaitable[object]) -> None:
        try:
            await durable
        except ManagedLedgerError as error:
            raise self._not_found() from error

    # The end of a transaction

    def _start_end(self, local_id: int, action: TxnAction, decided: Awaitable[object]) -> None:
        self._timeouts.remove(local_id)
        new_future = asyncio.get_running_loop().create_future
        self._ends[local_id] = _Ending(new_future(), new_future())
        self._tasks.start(self._end(local_id, action, decided), f"end {local_id}")

    async def _end(self, local_id: int, action: TxnAction, decided: Awaitable[object]) -> None:
        try:
            await decided
            self._check_open()
            self._ends[local_id].decided.set_result(None)
            await self._end_everywhere(local_id, action)
        except TransactionCoordinatorNotFound:
            # The log failed and whoever waits was told. Recovery goes on from what is durable.
            log.info("Transaction (%s,%s) is not ended here", self.coordinator_id, local_id)

    async def _end_everywhere(self, local_id: int, action: TxnAction) -> None:
        transaction = self._store.get(local_id)
        assert transaction is not None
        await self._participants.end_everywhere(transaction, action, self._store.low_watermark)
        # The decision and all that followed from it are durable: nobody has to wait for the entry
        # that closes the books. Lost in a crash, it is written again by the recovered end.
        closed = self._log_and_apply(
            self._store.decide_ended(local_id, action, self._clock.now_ms())
        )
        self._ended[action] += 1
        self._ends.pop(local_id).followed.set_result(None)
        await closed

    # Timeouts

    def _track(self, local_id: int, timeout_ms: int) -> None:
        self._timeouts.add(local_id, self._clock.monotonic_s() + timeout_ms / 1000)
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self._timeouts.next_deadline_s
        if due_s is None or (self._timer is not None and self._timer_due_s <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = due_s
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._abort_expired)

    def _abort_expired(self) -> None:
        self._timer = None
        for local_id in self._timeouts.expired(self._clock.monotonic_s()):
            if self._store.status(local_id) is TxnStatus.OPEN:
                self._timed_out += 1
                decision = self._store.decide_end(
                    local_id, TxnAction.ABORT, None, self._clock.now_ms()
                )
                assert decision is not None
                self._start_end(local_id, TxnAction.ABORT, self._log_and_apply(decision))
        self._set_timer()

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
    ) -> "TransactionCoordinator":
        """Replay the log. Nothing is driven until `resume`, so the caller can publish it first."""
        store = TransactionMetadataStore(coordinator_id, limits)
        await transaction_log.replay(store)
        return cls(coordinator_id, store, transaction_log, clock, participants, failed)

    def resume(self) -> None:
        """Finish what was decided; open transactions keep their original deadlines."""
        for transaction in self._store.live():
            local_id = transaction.txn_id.least
            if transaction.status is TxnStatus.OPEN:
                passed_ms = self._clock.now_ms() - transaction.opened_at_ms
                # A wall clock that went back must not give it more than it asked for.
                left_ms = min(transaction.timeout_ms, transaction.timeout_ms - passed_ms)
                self._track(local_id, left_ms)
            else:
                self._start_end(local_id, ACTION_OF_STATUS[transaction.status], _already())

    def _snapshot_if_due(self) -> None:
        entries = self._log.entries_since_snapshot
        if self._store.snapshot_pays_after(entries) and not self._snapshotting:
            self._snapshotting = True
            self._tasks.start(self._snapshot(), "snapshot")

    async def _snapshot(self) -> None:
        try:
            await self._log.snapshot(self._store)
        except ManagedLedgerError as error:
            self._fail(error)
        finally:
            self._snapshotting = False

    def _fail(self, error: Exception) -> None:
        if not self._closed:
            log.error("Transaction coordinator %s: %s; reopening it", self.coordinator_id, error)
            self._stop()
            self._failed(self)

    def _stop(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for running in self._ends.values():
            running.fail(self._not_found())
        self._ends.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise self._not_found()

    def _not_found(self) -> TransactionCoordinatorNotFound:
        return coordinator_not_ready(self.coordinator_id)

    async def close(self) -> None:
        """Let go of the log; unfinished ends go on at the next `open`. Idempotent."""
        if not self._closed:
            self._stop()
        await self._tasks.close()
        await self._log.close()

    # What is

    def status(self, txn_id: TxnId) -> TxnStatus | None:
        return self._store.status(txn_id.least)

    def metadata(self, txn_id: TxnId) -> TransactionMetadata | None:
        """A live transaction; read it, never change it."""
        return self._store.get(txn_id.least)

    def live(self) -> list[TransactionMetadata]:
        """For the admin API, oldest first."""
        return self._store.live()

    def stats(self) -> CoordinatorStats:
        return CoordinatorStats(
            self.coordinator_id,
            self._store.live_count,
            self._store.low_watermark,
            self._opened,
            self._ended[TxnAction.COMMIT],
            self._ended[TxnAction.ABORT],
            self._timed_out,
            self._participants.retries(),
            self._participants.given_up(),
        )


async def _already() -> None:
    """The decision that recovery read back is durable already."""


def coordinator_not_ready(coordinator_id: int) -> TransactionCoordinatorNotFound:
    return TransactionCoordinatorNotFound(
        f"Transaction coordinator {coordinator_id} is not served here at the moment: reconnect "
        "and retry"
    )
