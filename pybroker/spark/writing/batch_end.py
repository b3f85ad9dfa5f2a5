"""The end of a `writeStream` micro-batch, on the driver; decided again on every replay.

Spark calls `commit` once for a batch. If the driver died around that, Spark writes the batch again
and calls `commit` again. Then only the broker knows the outcome, in the query's chain of markers.
The transaction that makes a batch visible publishes the batch's marker and acknowledges the
previous one. So a replay finds that the batch was committed (then what was written again is
aborted), and of two drivers only one gets the lock.

1. The query's newest marker determines whether the batch runs, is skipped or is refused
   (pybroker.spark.decision). The sink has no cursors, but a digest of what the batch reads
   (pybroker.spark.writing.planned), which the marker holds too.
2. A transaction, begun beside the attempts' and noted, acknowledges the newest marker: that is the
   lock. If the lock is taken, wait, and after a while end the noted transactions: their driver is
   dead, or will find itself fenced.
3. With the lock: publish the entries that came through the driver and the marker, and commit this
   transaction atomically with the accepted attempts'. Then abort the noted attempts that are not
   part of this commit: losers, zombies, another driver's.
4. If anything fails or is not answered, start again at 1 on a new connection. Nothing is guessed.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pybroker.base.errors import InvalidTxnStatus, ProducerFenced, PulsarError, TransactionConflict
from pybroker.base.names import TxnId
from pybroker.client import Transaction, TransactionAborted
from pybroker.spark.chain import Chain
from pybroker.spark.decision import Decision, decide
from pybroker.spark.marker import Marker
from pybroker.spark.session import MAY_HEAL, PATIENCE_S, PAUSE_S, Session
from pybroker.spark.work import Work
from pybroker.spark.writing.attempt import Job, Written
from pybroker.spark.writing.committing import accepted, publish_entries, to_commit
from pybroker.spark.writing.notes import abort_all, end

log = logging.getLogger("pybroker.spark")

# foreachBatch retries an abort only if its cause may be transient: the application's code runs in
# its transaction and must learn of failures at once. Here no application code runs any more.
_WORTH_ANOTHER_TRY: Final = (*MAY_HEAL, TransactionAborted)
# How long until the lock's holder is considered dead.
_LOCK_PATIENCE_S: Final = 5.0
# How many times a new transaction may find that the attempts' transactions have ended.
_REFUSALS: Final = 3


class AttemptsEnded(ProducerFenced):
    """The tasks' transactions are over: ended by another driver or their timeout."""


class Step(StrEnum):
    """Steps of a commit that are reported to an observer."""

    LOCKED = "locked"
    PUBLISHED = "published"
    MARKED = "marked"
    COMMITTED = "committed"
    SKIPPED = "skipped"


@dataclass(slots=True)
class BatchEnd:
    job: Job
    chain: Chain
    work: Work
    written: Sequence[Written]
    on_step: Callable[[Step, Work], None] = lambda step, work: None
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _conflict_since_s: float | None = None
    _refusals: int = 0
    _has_begun: bool = False

    def commit(self) -> None:
        """Returns when the batch is known to be committed."""
        give_up_at = self.clock() + PATIENCE_S
        while True:
            try:
                self._with_session(self._attempt)
                return
            except _WORTH_ANOTHER_TRY as error:
                log.warning(
                    "Batch %d of query %s: %s", self.work.batch_id, self.work.query_id, error
                )
                self.chain.forget()
                self._note(error)
                if self.clock() >= give_up_at:
                    raise
            self.pause(PAUSE_S)

    def _attempt(self, session: Session) -> None:
        newest = self.chain.newest(session)
        if decide(self.work, {}, newest) is Decision.SKIP:
            abort_all(session, [self.job.txn_id, *accepted(self.written)])
            self._sweep(session)
            self.on_step(Step.SKIPPED, self.work)
            return
        if self._lock_is_stuck:
            self._break_lock(session)
        self._run(session)

    def _run(self, session: Session) -> None:
        chain, attempts = self.chain, to_commit(self.written)
        txn = self._begin(session)
        try:
            notes = chain.notes(session, self.work.batch_id)
            timeout_ms = self.job.transaction_timeout_ms
            notes.note(session, self.job.txn_id, timeout_ms, txn.txn_id)
            chain.acknowledge(session, txn)
            self.on_step(Step.LOCKED, self.work)
            publish_entries(session, self.written, txn)
            self.on_step(Step.PUBLISHED, self.work)
            chain.publish(session, Marker.of(self.work, txn.txn_id), txn)
            self.on_step(Step.MARKED, self.work)
        except PulsarError:
            with contextlib.suppress(PulsarError):
                txn.abort()
            raise
        self._commit(txn, attempts)
        self.on_step(Step.COMMITTED, self.work)
        self._sweep(session)

    def _sweep(self, session: Session, job: TxnId | None = None) -> None:
        """Aborts what losers, zombies and other drivers left; if it cannot, that times out."""
        if self.job.max_driver_bytes is not None:
            with contextlib.suppress(PulsarError):
                self.chain.sweep(session, self.work.batch_id, job)

    def _begin(self, session: Session) -> Transaction:
        """The job's own transaction at first; later a new one, in case that has ended."""
        if not self._has_begun:
            self._has_begun = True
            return session.client.attach_transaction(self.job.txn_id)
        timeout_ms = self.job.transaction_timeout_ms
        return session.client.new_transaction(timeout_ms, beside=self.job.txn_id)

    def _commit(self, txn: Transaction, attempts: Sequence[TxnId]) -> None:
        try:
            txn.commit(together_with=attempts)
        except InvalidTxnStatus as error:
            self._refusals += 1
            if self._refusals >= _REFUSALS:
                raise AttemptsEnded(
                    f"Batch {self.work.batch_id} of query {self.work.query_id} wrote nothing: its "
                    f"tasks' transactions have ended ({error}). Either another driver uses this "
                    "checkpoint and ended them: stop one of the two. Or the batch took longer than "
                    "transactionTimeoutMs: raise it"
                ) from error
            raise

    def _note(self, error: Exception) -> None:
        if not isinstance(error, TransactionConflict):
            self._conflict_since_s = None
        elif self._conflict_since_s is None:
            self._conflict_since_s = self.clock()

    @property
    def _lock_is_stuck(self) -> bool:
        since_s = self._conflict_since_s
        return since_s is not None and self.clock() - since_s >= _LOCK_PATIENCE_S

    def _break_lock(self, session: Session) -> None:
        attempts = accepted(self.written)
        for txn_id in self.chain.noted(session, self.work.batch_id):
            if txn_id not in attempts:
                with contextlib.suppress(PulsarError):
                    end(session, txn_id)
        self._conflict_since_s = None

    def abort(self) -> None:
        """Best effort: what stays open times out."""
        with contextlib.suppress(PulsarError):
            self._with_session(self._abort)

    def _abort(self, session: Session) -> None:
        """Aborts only this job's transactions: the batch is not over, and another driver may be
        working on it."""
        abort_all(session, [self.job.txn_id, *accepted(self.written)])
        self.chain.newest(session)
        self._sweep(session, self.job.txn_id)

    def _with_session(self, action: Callable[[Session], None]) -> None:
        session = Session(self.job.connect())
        try:
            action(session)
        finally:
            session.close()
