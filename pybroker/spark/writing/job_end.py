"""The end of a `df.write` job: all of it becomes visible atomically, or nothing.

The job's transaction was begun before its tasks' were. Its commit is requested until its outcome is
known; repeating the request is safe. If the transaction was aborted (by its timeout, say), nothing
of the job became visible, and another one replaces it as long as the attempts' are still open.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from pybroker.base.errors import (
    InvalidTxnStatus,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
)
from pybroker.client import AlreadyClosed, ConnectError, Timeout, TransactionOutcomeUnknown
from pybroker.spark.session import PATIENCE_S, PAUSE_S, Session
from pybroker.spark.writing.attempt import Job, Written
from pybroker.spark.writing.committing import accepted, publish_entries, to_commit
from pybroker.spark.writing.notes import abort_all

log = logging.getLogger("pybroker.spark")

_MAY_HEAL: Final = (
    AlreadyClosed,
    ConnectError,
    ServiceNotReady,
    Timeout,
    TransactionCoordinatorNotFound,
    TransactionOutcomeUnknown,
)
_TRANSACTIONS: Final = 3

Pause = Callable[[float], None]


class JobEnd:
    def __init__(
        self,
        job: Job,
        written: Sequence[Written],
        pause: Pause = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._written = written
        self._pause = pause
        self._clock = clock
        self._txn_id = job.txn_id
        # Whether a commit was requested: from then on the transaction's outcome counts.
        self._asked = False
        # Whether the transaction may contain a part of the job: then a retry needs another one.
        self._half_done = False
        self._transactions = 1

    def commit(self) -> None:
        """Returns when the job is visible. Raises otherwise; then nothing of it is visible or, with
        TransactionOutcomeUnknown, the outcome is unknown."""
        give_up_at = self._clock() + PATIENCE_S
        while True:
            try:
                self._with_session(self._attempt)
                return
            except InvalidTxnStatus:
                if self._transactions >= _TRANSACTIONS:
                    raise
                self._transactions += 1
                self._with_session(self._begin_again)
            except _MAY_HEAL as error:
                log.warning("The job of transaction %s: %s", self._job.txn_id, error)
                if self._clock() >= give_up_at:
                    raise
                self._pause(PAUSE_S)

    def _attempt(self, session: Session) -> None:
        attempts = to_commit(self._written)
        if self._half_done:
            self._begin_again(session)
        txn = session.client.attach_transaction(self._txn_id)
        if not self._asked:
            try:
                publish_entries(session, self._written, txn)
            except BaseException:
                self._half_done = True
                self._begin_again(session)
                raise
            self._asked = True
        txn.commit(together_with=attempts)
        self._sweep(session)

    def _begin_again(self, session: Session) -> None:
        with contextlib.suppress(PulsarError):
            session.client.attach_transaction(self._txn_id).abort()
        timeout_ms = self._job.transaction_timeout_ms
        self._txn_id = session.client.new_transaction(timeout_ms, beside=self._job.txn_id).txn_id
        self._asked = self._half_done = False

    def abort(self) -> None:
        """Best effort: what stays open times out."""
        with contextlib.suppress(PulsarError):
            self._with_session(self._abort)

    def _abort(self, session: Session) -> None:
        abort_all(session, [self._job.txn_id, *accepted(self._written)])
        self._sweep(session)

    def _sweep(self, session: Session) -> None:
        """Aborts attempts that were not accepted; if it cannot, they time out."""
        if self._job.max_driver_bytes is not None:
            with contextlib.suppress(PulsarError):
                notes = self._job.notes
                abort_all(session, list(notes.noted(session, notes.keep(session))))
                notes.release(session)

    def _with_session(self, action: Callable[[Session], None]) -> None:
        session = Session(self._job.connect())
        try:
            action(session)
        finally:
            session.close()
