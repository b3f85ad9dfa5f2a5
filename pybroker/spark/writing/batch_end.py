"""The end of a micro-batch of `writeStream`, on the driver; found out anew by whoever replays it.

Spark calls `commit` once for a batch, or, if the driver died around it, again after the batch was
written again. What is true then, only the broker knows: the query's chain of markers. The
transaction that makes a batch visible publishes the batch's marker and acknowledges the one before
it. So it is found that the batch was committed (then what was written again is aborted), and of two
drivers one gets the lock.

1. The query's newest marker says whether the batch runs, is skipped or is refused
   (pybroker.spark.decision; the sink knows of no sources).
2. A transaction beside the attempts', noted; it acknowledges the newest marker, which is the lock.
   Who finds it taken waits, and after a while ends those that are noted: their driver is dead, or
   will find itself fenced.
3. With the lock: the entries that came through the driver, the marker, and one decision for this
   transaction and the accepted attempts'. Then attempts that are noted and not of this commit are
   aborted: losers, zombies, another driver's.
4. Whatever fails or is not answered: a new connection, and back to 1. Nothing is guessed.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pybroker.base.errors import (
    InvalidTxnStatus,
    ProducerFenced,
    PulsarError,
    TransactionConflict,
)
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

# foreachBatch tries an abort again only if its cause may heal: the application's code runs in its
# transaction, and must hear of its failures at once. Here nothing of the application runs any more.
_WORTH_ANOTHER_TRY: Final = (*MAY_HEAL, TransactionAborted)
# After so long the one who holds the lock is taken for dead.
_LOCK_PATIENCE_S: Final = 5.0
# So often a new transaction may find that the attempts' have ended.
_REFUSALS: Final = 3


class AttemptsEnded(ProducerFenced):
    """The tasks' transactions are over: another driver has ended them, or their timeout."""


class Step(StrEnum):
    """Places of a commit that an observer hears of."""

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
            notes.note(session, self.job.txn_id, txn.txn_id)
            chain.acknowledge(session, txn)
            self.on_step(Step.LOCKED, self.work)
            publish_entries(session, self.written, txn)
            self.on_step(Step.PUBLISHED, self.work)
            marker = Marker(self.work.query_id, self.work.batch_id, txn.txn_id, {})
            chain.publish(session, marker, txn)
            self.on_step(Step.MARKED, self.work)
        except PulsarError:
            with contextlib.suppress(PulsarError):
                txn.abort()
            raise
        self._commit(txn, attempts)
        self.on_step(Step.COMMITTED, self.work)
        self._sweep(session)

    def _sweep(self, session: Session, job: TxnId | None = None) -> None:
        """Losers, zombies, what a dead driver or another one left; else it times out."""
        if self.job.max_driver_bytes is not None:
            with contextlib.suppress(PulsarError):
                self.chain.sweep(session, self.work.batch_id, job)

    def _begin(self, session: Session) -> Transaction:
        """The job's own, at first; whatever became of that, another one does as well."""
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
                    f"Batch {self.work.batch_id} of query {self.work.query_id} wrote nothing: the "
                    f"transactions of its tasks are over ({error}). Another driver of this "
                    "checkpoint has ended them: stop one of the two; or the batch took longer than "
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
        """As far as it can be done: what is left open times out."""
        with contextlib.suppress(PulsarError):
            self._with_session(self._abort)

    def _abort(self, session: Session) -> None:
        """This job's alone: the batch is not over, and another driver may be at work on it."""
        abort_all(session, [self.job.txn_id, *accepted(self.written)])
        self.chain.newest(session)
        self._sweep(session, self.job.txn_id)

    def _with_session(self, action: Callable[[Session], None]) -> None:
        session = Session(self.job.connect())
        try:
            action(session)
        finally:
            session.close()
