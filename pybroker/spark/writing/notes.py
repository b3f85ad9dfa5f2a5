"""Records possibly open transactions on a control topic before they are used.

A writer may die with a transaction open, which hides later messages from readers until it times
out. So the transaction's id is published first, outside the transaction, with its job's id. Then
the writer checks that the job's transaction is still open, because nobody would end a transaction
that is noted later. The job's end, or its successor, first ends the job's transaction and then all
noted transactions that are not wanted: a zombie has either noted its own before that, or finds that
the job has ended.

A subscription that exists before the first note keeps notes, and the topic, from being deleted: a
query's own, which its chain of markers moves, or one for all jobs, which they move past notes that
have become useless.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self

from pybroker.base.errors import InvalidTxnStatus, PulsarError, TransactionNotFound
from pybroker.base.names import TxnId
from pybroker.spark.control_topics import first_partition, first_partition_for_jobs
from pybroker.spark.offsets import EARLIEST, CursorName, Position
from pybroker.spark.session import Session

_OF_ALL_JOBS: Final = "jobs"


def subscription_of(query_id: str) -> str:
    """On the control topic; keeps the query's markers and notes."""
    return f"query-{query_id}"


class NoteBook(NamedTuple):
    """The owner of the notes, and where they are."""

    topic: str
    owner: str  # a query's or a job's id
    batch_id: int = 0
    # Keeps the notes; empty in books of queries, which have their own subscription.
    kept_by: str = ""
    # The topic's name in earlier versions, if that was another: see pybroker.spark.control_topics.
    former: str = ""

    @classmethod
    def of_job(cls, topic: str, job_id: str, former: str = "") -> Self:
        return cls(topic, job_id, kept_by=_OF_ALL_JOBS, former=former)

    def place(self, session: Session) -> str:
        if self.kept_by:
            return first_partition_for_jobs(session, self.topic, self.former)
        return first_partition(session, self.topic, self.former)

    def keep(self, session: Session) -> Position:
        """Makes the subscription that keeps the notes, if it is missing; returns where it is.

        A job can do without: whoever may only publish may write, and what its killed tasks leave
        open times out.
        """
        name = CursorName(self.place(session), self.kept_by or subscription_of(self.owner))
        try:
            position = session.cursor(name, create=True)
            session.release(name)
        except PulsarError:
            if not self.kept_by:
                raise
            return EARLIEST
        return position

    def note(self, session: Session, job: TxnId, timeout_ms: int, *txn_ids: TxnId) -> None:
        """`job`: the transaction of the job to which they belong; `timeout_ms`: of them all."""
        self.keep(session)
        of_batch = {"owner": self.owner, "batch_id": self.batch_id, "job": list(job)}
        place, until_ms = self.place(session), _now_ms() + timeout_ms
        for txn_id in txn_ids:
            note = of_batch | {"transaction": list(txn_id), "until_ms": until_ms}
            session.publish(place, json.dumps(note).encode())

    def noted(self, session: Session, after: Position, job: TxnId | None = None) -> Iterator[TxnId]:
        """The transactions noted for this batch and earlier ones, which may still be running, or
        only those of one job."""
        own = self.owner.encode()
        for _, data in session.read_to_end(self.place(session), after):
            if own in data and (txn_id := self._parsed(data, job)) is not None:
                yield txn_id

    def release(self, session: Session) -> None:
        """For the book of a job that is over: lets go of the oldest notes up to the first one that
        another job may still need."""
        name, done = CursorName(self.place(session), self.kept_by), None
        for position, data in session.read_to_end(name.topic, self.keep(session)):
            if self._is_needed_by_others(data):
                break
            done = position
        if done is not None:
            session.acknowledge_up_to(name, done)

    def _is_needed_by_others(self, data: bytes) -> bool:
        """Notes of earlier versions have no end; nothing has ever kept them."""
        try:
            note = json.loads(data)
            return note["owner"] != self.owner and int(note["until_ms"]) > _now_ms()
        except (ValueError, KeyError, TypeError):
            return False

    def _parsed(self, data: bytes, job: TxnId | None) -> TxnId | None:
        """None for anything else: the topic contains markers, and anyone may write to it. Notes of
        earlier versions name no job."""
        try:
            note = json.loads(data)
            if note["owner"] != self.owner or int(note["batch_id"]) > self.batch_id:
                return None
            if job is not None and note.get("job") != list(job):
                return None
            most, least = map(int, note["transaction"])
        except (ValueError, KeyError, TypeError):
            return None
        return TxnId(most, least)


def _now_ms() -> int:
    return int(time.time() * 1000)


def require_open(session: Session, txn_id: TxnId, topic: str) -> None:
    """Adds `topic` to the transaction, which must be open. Raises InvalidTxnStatus,
    TransactionNotFound."""
    session.client.attach_transaction(txn_id).join(topic)


def end(session: Session, txn_id: TxnId) -> None:
    """Aborts the transaction, or waits for a commit in progress."""
    txn = session.client.attach_transaction(txn_id)
    try:
        txn.abort()
    except TransactionNotFound:
        return
    except InvalidTxnStatus:
        session.client.attach_transaction(txn_id).commit()


def abort_all(session: Session, txn_ids: Iterable[TxnId]) -> None:
    """Aborts as many as possible; the others have committed, or time out."""
    for txn_id in txn_ids:
        with contextlib.suppress(PulsarError):
            session.client.attach_transaction(txn_id).abort()
